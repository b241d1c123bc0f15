"""Remedies of jobs: what they would save is what the job that they lead to takes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bfpp.schedules.replicas.arrangements import WORK_CHANGES, over_replicas
from bfpp.traces.stragglers.gains import Remedy, TriedRemedy, gained
from bfpp.traces.stragglers.remedies import JobCase, recut_layers, remedies
from tests.helpers.straggler_jobs import SHARE, Job, Row
from tests.traces.stragglers.jobs import slowdowns_of

WORK = arrays(float, st.tuples(st.integers(1, 4), st.integers(1, 6)), elements=st.floats(0.5, 9))


def remedies_of(rows: list[Row], layers: int | None = None) -> dict[str, Remedy]:
    return {each.name: each for each in remedies(JobCase(slowdowns_of(rows), layers))}


def scaled(*slow: tuple[int, ...], by: float = 1.5, **sizes) -> Job:
    """A job whose passes and updates of these steps, replicas and ranks (-1: all) are slow."""

    def scale(*at: object) -> float:
        is_slow = at[-1] in SHARE and any(
            all(own in (-1, place) for own, place in zip(each, at, strict=False)) for each in slow
        )
        return by if is_slow else 1.0

    return Job(**{"noise": 0.0, "gap": 0.0, "steps": (1, 2), **sizes}, scale=scale)


def step_of(job: Job) -> float:
    return float(slowdowns_of(job.rows()).replayed.mean())


def test_a_worker_that_is_replaced_is_as_fast_as_the_others():
    found = remedies_of(scaled((-1, 1, 2), dp=3).rows())["replace"]
    assert found.change == "worker 1/2 as fast as the others on its rank"
    assert found.step_time == pytest.approx(step_of(scaled(dp=3)), rel=0.03)  # its update stays


def test_of_one_replica_a_slow_device_cannot_be_told_from_a_long_stage():
    found = remedies_of(scaled((-1, 0, 2), dp=1).rows())
    assert found["replace"][2:] == (None, None, None, None)
    assert not {"drop", "background-sync", "balance"} & found.keys()


def test_a_replica_that_is_left_out_leaves_its_work_to_the_others():
    found = remedies_of(scaled((-1, 1), by=3.0, dp=4).rows())["drop"]
    assert found.step_time == pytest.approx(step_of(scaled(dp=3)) * 4 / 3, rel=0.01)


def test_stages_that_are_cut_anew_take_the_same_time():
    found = remedies_of(scaled((-1, -1, 3), by=2.0, microbatches=8).rows())["recut"]
    even = scaled((-1, -1, -1), by=1.25, microbatches=8)
    assert found.step_time == pytest.approx(step_of(even), rel=0.03)


def test_whole_layers_are_moved_where_their_number_is_known():
    layers, times = recut_layers(np.array([4.0, 4.0, 4.0, 6.0]), np.array([4] * 4))
    assert layers.tolist() == [5, 5, 4, 2]
    assert times.tolist() == [5, 5, 4, 4]
    found = remedies_of(scaled((-1, -1, 3)).rows(), layers=8)["recut"]
    assert found.change == "stages cut anew, layers 3 2 2 1"


def test_without_waiting_in_each_step_what_is_slow_in_turn_costs_half():
    found = remedies_of(scaled((1, 0), (2, 1)).rows())["background-sync"]
    assert found.gain == pytest.approx(1 / 6, abs=0.01)


def lengthened(*long: tuple[int, int, int]) -> list[Row]:
    """Rows of a job in which passes of a step's, replica's and micro-batch's take twice as long."""
    return [
        {**row, "duration": row["duration"] * 2} if is_long else row
        for row in scaled(dp=2).rows()
        for is_long in [(row["step"], row["dp_rank"], row.get("mb_id")) in long]
    ]


def test_micro_batches_are_divided_over_replicas():
    uneven = [(1, 0, 0), (1, 0, 1), (2, 1, 0), (2, 1, 1)]
    found = remedies_of(lengthened(*uneven))
    even = [(1, 0, 0), (1, 1, 0), (2, 0, 2), (2, 1, 2)]
    expected = slowdowns_of(lengthened(*even)).replayed.mean()
    assert found["balance"].step_time == pytest.approx(expected, rel=1e-3)
    assert found["balance"].gain > 0.05


def test_an_even_job_gains_nothing():
    gains = {name: each.gain for name, each in remedies_of(scaled().rows()).items()}
    assert max(gains.values()) < 0.01
    assert gains["drop"] == pytest.approx(-1, abs=0.01)


@given(WORK)
def test_changes_of_micro_batches_keep_the_work(work):
    for change in WORK_CHANGES:
        if len(work) % change.replicas == 0:
            new = change.applied(work, work)
            assert new.shape == work.shape
            assert new.sum() == pytest.approx(work.sum())


@given(WORK)
def test_each_micro_batch_goes_to_one_replica(work):
    assert sorted(over_replicas(work).ravel()) == list(range(work.size))


def gain_of(before: list[float], after: list[float]) -> Remedy:
    return gained(TriedRemedy("it", "", np.array(after)), np.array(before))


def test_a_gain_of_one_step_has_no_interval_and_one_of_nothing_is_not_told():
    assert gain_of([4.0], [3.0]) == ("it", "", 3.0, 0.25, None, None)
    assert gain_of([0.0], [0.0]).gain is None
    low, high = gain_of([4.0, 4.0], [3.0, 2.0])[-2:]
    assert 0.25 < low < high < 0.5
