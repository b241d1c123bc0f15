"""Round ticks for an axis of seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bfpp.traces.timeline.units import unit_of

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


def round_step(least: float) -> float:
    """The smallest of 1, 2 or 5 times a power of ten that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in ROUND_STEPS if step * power >= least * (1 - 1e-9))
