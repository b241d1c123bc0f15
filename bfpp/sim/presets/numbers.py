"""Numbers in options and files: their limits, and how they are read.

A number is written in ASCII digits, without separators. A count is at least 1, and fits
into 32 bits; any other number is zero or within 30 powers of ten of one. So whatever is
computed from them is finite, and needs no care of its own.
"""

from __future__ import annotations

import math
import re

LARGEST_COUNT = 2**31 - 1
LEAST, LARGEST = 1e-30, 1e30

MOST_PASSES = 10_000_000
"""Passes of a micro-batch through a stage in the largest step: 40 million tasks, 6 GB."""

MOST_DEVICES = 1_000_000
"""Devices over all groups."""

QUANTILE = 1.2816
"""Standard deviations on each side of a normal distribution's middle 80 %."""

_WHOLE = re.compile(r"-?[0-9]+")
_REAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DIGITS = 19
"""Digits beyond which a number is larger than any that is accepted."""


def whole(text: str) -> int | None:
    """The whole number, if the text is one; those of very many digits are as good as infinite."""
    if not _WHOLE.fullmatch(text):
        return None
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    return sign * int(digits.lstrip("0")[:_DIGITS] or "0")


def real(text: str) -> float:
    """The number, or NaN if the text is none."""
    return float(text) if _REAL.fullmatch(text) else math.nan


def is_count(value: object) -> bool:
    """True for whole numbers from 1 to the largest."""
    return type(value) is int and 1 <= value <= LARGEST_COUNT


def is_usable(value: object, *, zero: bool = True) -> bool:
    """True for finite numbers; for zero too, unless excluded."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return bool(LEAST <= value <= LARGEST or (zero and value == 0))
