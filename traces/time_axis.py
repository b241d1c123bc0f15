"""Round ticks and readable units for an axis of seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
"""(seconds in one unit, its symbol), longest first."""

ROUND_STEPS = (1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True)
class TimeAxis:
    """Ticks from 0 to at most the axis's length, as numbers of `unit`."""

    unit: str
    seconds_in_unit: float
    ticks: tuple[float, ...]

    @property
    def tick_seconds(self) -> tuple[float, ...]:
        """The ticks in seconds."""
        return tuple(tick * self.seconds_in_unit for tick in self.ticks)

    @property
    def tick_labels(self) -> tuple[str, ...]:
        """The ticks as they are written, without the unit."""
        return tuple(f"{tick:g}" for tick in self.ticks)


def time_axis(seconds: float, most_ticks: int = 10) -> TimeAxis:
    """The axis of a figure that is `seconds` long: steps of 1, 2 or 5 and a power of ten."""
    seconds_in_unit, unit = unit_of(seconds)
    length = seconds / seconds_in_unit
    step = round_step(length / most_ticks) if length else 1.0
    count = math.floor(length / step * (1 + 1e-9)) + 1
    return TimeAxis(unit, seconds_in_unit, tuple(tick * step for tick in range(count)))


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


def round_step(least: float) -> float:
    """The smallest of 1, 2 or 5 times a power of ten that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in ROUND_STEPS if step * power >= least * (1 - 1e-9))
