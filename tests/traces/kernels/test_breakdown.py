"""The time of devices in parts, held against a count of single microseconds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.traces.kernels.breakdown import Breakdown, TimeParts
from bfpp.traces.profiles.device_profile import ActivityKind
from bfpp.traces.profiles.kineto_activities import read_kineto_activities
from bfpp.traces.timeline.intervals import union
from tests.helpers.device_traces import Ran, device_trace, event, events_of

COMPUTE, COMMUNICATION, COPY = ActivityKind
LAST = 40


def breakdown(*activities: Ran, more=()) -> Breakdown:
    return Breakdown(read_kineto_activities(device_trace([*events_of(*activities), *more])))


def spans(least=0):
    ends = st.tuples(st.integers(0, LAST - 1), st.integers(0, 12))
    return st.lists(ends.map(lambda it: (it[0], min(it[0] + it[1], LAST))), min_size=least)


@st.composite
def activities(draw):
    kinds = st.sampled_from(list(ActivityKind))
    return [Ran(draw(kinds), *span, draw(st.integers(1, 3))) for span in draw(spans(least=1))]


def ticks(ran, kinds):
    """True where one of these kinds runs, microsecond by microsecond."""
    runs = np.zeros(LAST, dtype=bool)
    for each in ran:
        if each.kind in kinds:
            runs[int(each.start) : int(each.end)] = True
    return runs


@given(spans(), spans())
def test_lengths_within_intervals_are_those_of_single_ticks(one, other):
    def columns(of):
        return np.array(of, dtype=np.float64).reshape(-1, 2).T

    def runs(of):
        return ticks([Ran(COMPUTE, *each) for each in of], {COMPUTE})

    own = union(*columns(one))
    assert own.length == runs(one).sum()
    assert (own.start[1:] > own.end[:-1]).all()
    within = own.within(*columns(other))
    assert within.tolist() == [runs(one)[start:end].sum() for start, end in other]


@given(activities())
def test_parts_are_those_of_single_microseconds_and_leave_nothing_out(ran):
    compute, communication, copies = (ticks(ran, {kind}) for kind in ActivityKind)
    kernels = compute | communication
    length = max(it.end for it in ran) - min(it.start for it in ran)
    expected = TimeParts(
        length,
        compute.sum(),
        (communication & ~compute).sum(),
        (copies & ~kernels).sum(),
        length - (kernels | copies).sum(),
        communication.sum(),
        (communication & compute).sum(),
        copies.sum(),
    )
    found = breakdown(*ran)
    assert found.whole is not None
    np.testing.assert_allclose(np.array(found.whole) * 1e6, expected, atol=1e-6)
    assert sum(found.whole[1:5]) == pytest.approx(found.whole.seconds, abs=1e-12)


@given(activities())
def test_streams_and_names_count_everything_once(ran):
    found = breakdown(*ran)
    assert sum(number for number, _, _ in found.by_stream.values()) == len(ran)
    named = [each for kind in ActivityKind for each in found.by_name(kind).values()]
    assert sum(each.number for each in named) == len(ran)


def test_idle_time_is_before_or_after_the_launch_of_what_ends_it():
    found = breakdown(
        Ran(COMPUTE, 0, 10, launched=-5),
        Ran(COMPUTE, 16, 20, launched=12),  # launched 2 late, started 4 after that
        Ran(COMPUTE, 30, 40),
        Ran(COPY, 40, 41, launched=1),  # no stretch ends with it
    )
    np.testing.assert_allclose(np.array(found.waiting) * 1e6, (2, 4, 10))
    assert found.delays is not None
    assert found.delays.launches == 3
    assert (found.delays.median, found.delays.largest) == pytest.approx((5e-6, 39e-6))


def test_without_launches_nothing_is_said_of_them():
    found = breakdown(Ran(COMPUTE, 0, 10), Ran(COMPUTE, 16, 20))
    assert found.waiting == (None, None, pytest.approx(6e-6))
    assert (found.delays, found.launched_in_steps) == (None, None)


def test_a_graph_counts_as_one_launch_and_clocks_that_differ_are_counted():
    launch = event("cuda_runtime", "cudaGraphLaunch", 0, 1, correlation=9)
    late = event("cuda_runtime", "cudaLaunchKernel", 50, 51, correlation=10)
    kernels = [
        event("kernel", "gemm", at, at + 2, device=0, stream=7, correlation=number)
        for at, number in ((4, 9), (8, 9), (12, 9), (40, 10))
    ]
    found = breakdown(more=[launch, late, *kernels]).delays
    assert found is not None
    assert (found.launches, found.median, found.early) == (1, pytest.approx(4e-6), 1)


def test_a_step_is_what_devices_did_while_the_host_was_in_it():
    found = breakdown(
        Ran(COMPUTE, 0, 10, launched=-5), Ran(COMMUNICATION, 8, 14, launched=1),
        Ran(COMPUTE, 30, 34, launched=22),
        more=[event("user_annotation", f"ProfilerStep#{n}", 20 * n, 20 * n + 20) for n in (0, 1)],
    )  # fmt: skip
    (first, parts), (second, others) = found.steps
    assert (first.number, second.number) == (0, 1)
    assert parts is not None
    assert others is not None
    np.testing.assert_allclose(np.array(parts[:5]) * 1e6, (20, 10, 4, 0, 6))
    np.testing.assert_allclose(np.array(others[:5]) * 1e6, (20, 4, 0, 0, 16))


def test_what_was_launched_before_the_trace_is_not_among_what_its_steps_launched():
    found = breakdown(
        Ran(COMPUTE, 0, 10), Ran(COMPUTE, 15, 20, launched=3),
        more=[event("user_annotation", "ProfilerStep#4", 0, 9)],
    )  # fmt: skip
    assert found.launched_in_steps is not None
    assert found.whole is not None
    assert found.launched_in_steps.seconds == pytest.approx(5e-6)
    assert found.whole.compute == pytest.approx(15e-6)
