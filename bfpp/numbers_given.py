"""Numbers as options take them: the types of `add_argument`."""

from __future__ import annotations

import argparse

from bfpp.sim.numbers import LARGEST, LARGEST_COUNT, LEAST, is_usable, real, whole


def whole_number(text: str) -> int:
    """A whole number of at least 1."""
    value = whole(text) or 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    if value > LARGEST_COUNT:
        raise argparse.ArgumentTypeError(f"must be at most {LARGEST_COUNT}, not {text!r}")
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
