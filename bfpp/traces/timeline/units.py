"""Units of durations and of memory, and durations as text."""

from __future__ import annotations

GIGABYTE = 2**30

MICROSECONDS_PER_SECOND, NANOSECONDS_PER_SECOND = 1e6, 1e9
SECONDS_PER_MICROSECOND, SECONDS_PER_NANOSECOND = 1e-6, 1e-9

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
"""(seconds in one unit, its symbol), longest first."""


def unit_of(seconds: float) -> tuple[float, str]:
    """The longest unit of which `seconds` holds one; a nanosecond at least."""
    if seconds == 0:
        return UNITS[0]
    return next((unit for unit in UNITS if seconds >= unit[0] * (1 - 1e-9)), UNITS[-1])


def in_words(seconds: float) -> str:
    """A duration to four digits or to a whole number, with its unit: `1.25 ms`."""
    seconds_in_unit, unit = unit_of(abs(seconds))
    length = seconds / seconds_in_unit
    return f"{length:.0f} {unit}" if abs(length) >= 1000 else f"{length:.4g} {unit}"
