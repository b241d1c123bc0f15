"""Clocks that are known to differ, measured in real processes."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from bfpp.executor.processes.clock import ClockOffset, measure_offset
from bfpp.executor.processes.launcher.launch import launch
from bfpp.executor.processes.launcher.process_context import ProcessContext, join

SKEW = 1_234_500_000  # nanoseconds that the second process's clock is ahead
PLAUSIBLE = 50_000_000  # a round trip of more would make the measurement worthless


@dataclass(frozen=True)
class Measured:
    own: ClockOffset
    skewed: ClockOffset
    unskewed: ClockOffset


def measure(context: ProcessContext, skew: int) -> Measured | None:
    """The offsets of the second process, which are sent to the first to be its outcome."""
    join(context)
    ahead = skew * context.process
    skewed = measure_offset(clock=lambda: time.perf_counter_ns() + ahead)
    unskewed = measure_offset()
    keys = [f"{name}/{field}" for name in ("skewed", "unskewed") for field in ("offset", "error")]
    if not context.is_first:
        values = (skewed.measured, skewed.uncertainty, unskewed.measured, unskewed.uncertainty)
        for key, value in zip(keys, values, strict=True):
            context.store.set(key, str(value))
        return None
    values = tuple(int(context.store.get(key)) for key in keys)
    return Measured(skewed, ClockOffset(*values[:2]), ClockOffset(*values[2:]))


@pytest.mark.usefixtures("forked_processes")
def test_a_skewed_clock_is_found_out() -> None:
    measured = launch(measure, SKEW, 2)
    assert measured is not None
    assert measured.own == ClockOffset(0, 0)
    assert 0 < measured.skewed.uncertainty < PLAUSIBLE
    assert abs(measured.skewed.nanoseconds - SKEW) <= measured.skewed.uncertainty
    assert measured.unskewed.nanoseconds == 0


@pytest.mark.parametrize(("measured", "offset"), [(10, 0), (-10, 0), (11, 11), (-11, -11)])
def test_an_offset_within_the_uncertainty_is_none(measured: int, offset: int) -> None:
    assert ClockOffset(measured, 10).nanoseconds == offset
