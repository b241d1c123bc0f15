"""Slowdowns: what holds of every job, whatever is uneven in it."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bfpp.schedules import InvalidInput
from tests.helpers.straggler_jobs import JOBS, SHARE, Job, Row
from tests.traces.stragglers.jobs import means, published_rows, slowdowns_of, table_of

EVEN = Job(noise=0.0, gap=0.0)

SIZES = st.fixed_dictionaries(
    {
        "dp": st.integers(1, 3),
        "pp": st.integers(1, 3),
        "microbatches": st.sampled_from([3, 6]),
        "overlapped": st.booleans(),
        "seed": st.integers(0, 99),
    }
)


def without(rows: list[Row], *names: str) -> list[Row]:
    return [{name: row[name] for name in row if name not in names} for row in rows]


def test_an_even_job_is_not_slow():
    found = slowdowns_of(EVEN.rows())
    assert found.whole.mean == pytest.approx(1, abs=1e-4)
    for by in (found.by_stage, found.by_replica, found.by_worker):
        assert list(means(by).values()) == pytest.approx([1] * len(by), abs=1e-4)
    assert found.worst_workers_share is None or abs(found.replayed - found.even).max() < 1e-4


@given(SIZES, st.data())
def test_the_worker_that_is_slow_is_the_first(sizes, data):
    assume(sizes["dp"] * sizes["pp"] > 1)  # alone, it is as the mean of all is
    dp, pp = (data.draw(st.integers(0, sizes[name] - 1)) for name in ("dp", "pp"))
    slow = dp, pp

    def scale(_: int, replica: int, rank: int, kind: str) -> float:
        return 1.6 if (replica, rank) == slow and kind in SHARE else 1.0

    found = slowdowns_of(Job(**sizes, scale=scale, steps=(1, 2)).rows())
    assert next(iter(found.by_worker)) == slow
    assert (next(iter(found.by_replica)), next(iter(found.by_stage))) == slow
    assert found.worst_workers == [slow]


@given(SIZES, st.integers(0, 2**16))
def test_the_order_of_rows_and_the_clock_of_a_job_do_not_matter(sizes, seed):
    rows = Job(**sizes, noise=0.1, steps=(1, 5)).rows()
    moved = [{**row, "start_ts": row["start_ts"] + 1.7e9} for row in rows]
    Random(seed).shuffle(moved)
    one, other = slowdowns_of(rows), slowdowns_of(moved)
    assert other.replayed == pytest.approx(one.replayed, abs=1e-5)
    assert means(other.by_worker) == pytest.approx(means(one.by_worker), abs=1e-5)


@pytest.mark.parametrize("name", JOBS)
def test_columns_that_a_file_may_lack_say_nothing_new(name):
    rows = JOBS[name].rows()
    one, other = slowdowns_of(rows), slowdowns_of(without(rows, "seq_id", "mc", "gmc", "rank"))
    assert other.replayed == pytest.approx(one.replayed)
    assert means(other.by_operation) == pytest.approx(means(one.by_operation))


def test_time_in_another_unit_changes_steps_and_no_slowdown():
    rows = JOBS["unequal sequences"].rows()
    longer = [{**row, **{name: 2 * row[name] for name in ("start_ts", "duration")}} for row in rows]
    one, other = slowdowns_of(rows), slowdowns_of(longer)
    assert other.replayed == pytest.approx(2 * one.replayed)
    assert means(other.by_replica) == pytest.approx(means(one.by_replica))


def test_replicas_keep_the_numbers_that_they_have():
    rows = [{**row, "dp_rank": 7 * row["dp_rank"] + 1} for row in JOBS["a slow worker"].rows()]
    assert next(iter(slowdowns_of(rows).by_worker)) == (8, 2)


# What was not measured


@pytest.mark.parametrize("seed", range(3))
def test_a_job_with_some_rows_missing_is_about_as_slow(seed):
    rows, random = published_rows(), Random(seed)
    kept = [row for row in rows if random.random() > 0.01]
    one, other = slowdowns_of(rows), slowdowns_of(kept)
    assert other.whole.mean == pytest.approx(one.whole.mean, rel=0.01)
    assert means(other.by_stage) == pytest.approx(means(one.by_stage), rel=0.01)
    assert (~other.job.is_known).sum() >= len(rows) - len(kept)


def test_a_worker_without_rows_is_not_measured():
    rows = [row for row in published_rows() if (row["dp_rank"], row["stage"]) != (1, 2)]
    found = slowdowns_of(rows)
    assert means(found.by_worker)["(1, 2)"] is None
    assert next(iter(found.by_stage)) == 3
    assert (1, 2) not in found.worst_workers


def test_a_step_that_was_cut_off_is_left_out():
    rows = published_rows()
    cut = [row for row in rows if row["step"] != 1048 or row["start_ts"] < 1.0]
    job = slowdowns_of(cut).job
    assert job.partial == (1048,)
    assert [job.table.steps[step] for step in job.steps] == [23, 34, 259]


@pytest.mark.parametrize(("noise", "slower"), [(0.0, 1e-9), (0.1, 0.06)])
def test_steps_may_have_other_numbers_of_micro_batches(noise, slower):
    """Four ranks take as long as 3 + 3 passes, and 6 + 3; noise alone is no straggler."""
    few, many = (Job(microbatches=each, steps=(each,), noise=noise) for each in (3, 6))
    found = slowdowns_of([*few.rows(), *many.rows()])
    assert found.even[1] / found.even[0] == pytest.approx(9 / 6, rel=0.03)
    assert found.replayed == pytest.approx(found.even, rel=slower)


def test_what_runs_in_some_steps_only_takes_no_time_in_others():
    collecting = Job(
        steps=tuple(range(12)), scale=lambda step, _, __, kind: 101 if kind == "gc" and step == 5
        else 1.0,
    )  # fmt: skip
    rows = [row for row in collecting.rows() if row["optype"] != "gc" or row["step"] == 5]
    by_operation = slowdowns_of(rows).by_operation["gc"]
    assert by_operation.steps.argmax() == 5
    assert by_operation.steps[5] > by_operation.steps[4] + 0.05


def test_operations_of_no_known_kind_take_their_time_unless_a_pass_has_them_inside():
    rows = EVEN.rows()
    forward = [row for row in rows if row["optype"] == "forward-compute"]
    inside = [{**row, "optype": "tp-allreduce", "duration": row["duration"] / 2} for row in forward]
    loading = [
        {**row, "optype": "data-load", "start_ts": row["start_ts"] - 0.5, "duration": 0.4}
        for row in forward
        if row["seq_id"] == 0
    ]
    one = slowdowns_of(rows)
    assert slowdowns_of([*rows, *inside]).replayed == pytest.approx(one.replayed)
    assert (slowdowns_of([*rows, *loading]).replayed > one.replayed + 0.3).all()


def test_a_pipeline_rank_must_not_be_missing():
    rows = [row for row in published_rows() if row["stage"] != 2]
    with pytest.raises(InvalidInput, match="no operation of stage 2"):
        slowdowns_of(rows)


def test_a_second_device_of_a_worker_is_left_out_and_counted():
    rows = JOBS["a slow worker"].rows()
    other = [{**row, "rank": row["rank"] + 100, "duration": 2 * row["duration"]} for row in rows]
    table = table_of([*other, *rows])
    assert table.left_out == {"of a worker's other devices": len(rows)}
    assert np.array_equal(table.start, table_of(rows).start)
