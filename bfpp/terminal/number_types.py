"""Numbers as options take them: the types of `add_argument`."""

from __future__ import annotations

import argparse

from bfpp.sim.presets.numbers import LARGEST, LARGEST_COUNT, LEAST, is_usable, real, whole

LARGEST_SEED = 2**62

GIGABYTES = ("GB", "GiB")
"""Suffixes of sizes in units of 2^30 bytes."""


def whole_number(text: str) -> int:
    """A whole number of at least 1."""
    value = whole(text) or 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    if value > LARGEST_COUNT:
        raise argparse.ArgumentTypeError(f"must be at most {LARGEST_COUNT}, not {text!r}")
    return value


def index(text: str) -> int:
    """A number of one of several, from 0 on."""
    value = whole(text)
    if value is None or value < 0:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 0, not {text!r}")
    return value


def integer(text: str, largest: int = LARGEST_COUNT) -> int:
    """A whole number of either sign."""
    value = whole(text)
    if value is None or abs(value) > largest:
        raise argparse.ArgumentTypeError(
            f"must be a whole number of at most {largest}, not {text!r}"
        )
    return value


def number(text: str) -> float:
    """A number of either sign."""
    value = real(text)
    if not is_usable(abs(value)):
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r}")
    return value


def seconds(text: str) -> float:
    """A time of at least 0 seconds."""
    value = real(text)
    if not is_usable(value):
        raise argparse.ArgumentTypeError(
            f"must be a number of seconds, at least 0 (or from {LEAST:g} to {LARGEST:g}), "
            f"not {text!r}"
        )
    return value


def positive(text: str) -> float:
    """A number above 0."""
    value = real(text)
    if not is_usable(value, zero=False):
        raise argparse.ArgumentTypeError(f"must be a positive number, not {text!r}")
    return value


def not_negative(text: str) -> float:
    """A number of at least 0."""
    return positive(text) if real(text) else 0.0


def share(text: str) -> float:
    """A share of at least 0, such as 5% or 0.05."""
    value = real(text.removesuffix("%"))
    if value and not is_usable(value):
        raise argparse.ArgumentTypeError(f"must be a share of at least 0, as in 5%, not {text!r}")
    return value / 100 if text.endswith("%") else value


def probability(text: str) -> float:
    """A probability, such as 10% or 0.1."""
    value = share(text)
    if not value <= 1:
        raise argparse.ArgumentTypeError(f"must be a probability, as in 10%, not {text!r}")
    return value


def seed(text: str) -> int:
    """A seed of a random generator."""
    return integer(text, LARGEST_SEED)


def amount(text: str) -> float:
    """The number in a text, with or without a unit of gigabytes; NaN if there is none."""
    return real(text.removesuffix("GB").removesuffix("GiB").strip())


def gigabytes(text: str) -> float:
    """A size above 0 in units of 2^30 bytes, with or without `GiB`, or `GB`, behind it."""
    value = amount(text)
    if not value or not is_usable(value):
        raise argparse.ArgumentTypeError(f"must be a size above 0, as in 60GiB, not {text!r}")
    return value


POINTS = {"mm": 72 / 25.4, "cm": 720 / 25.4, "in": 72.0, "pt": 1.0}
"""Points of print in each unit of length."""

NARROWEST, WIDEST = 200.0, 7200.0
"""Points between which a figure's letters and its drawing have room."""


def length(text: str) -> float:
    """A length of print with its unit, such as 84mm: in points."""
    unit = text[-2:]
    value = real(text.removesuffix(unit))
    points = value * POINTS.get(unit, 0.0) if is_usable(value) else 0.0
    if not NARROWEST <= points <= WIDEST:
        least, most = (f"{each / POINTS['mm']:.0f}mm" for each in (NARROWEST, WIDEST))
        raise argparse.ArgumentTypeError(
            f"must be a length from {least} to {most}, in {', '.join(POINTS)}, not {text!r}"
        )
    return points
