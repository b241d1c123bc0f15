"""The published program's answers, on a published job and on jobs that we made up."""

from __future__ import annotations

import pytest

from bfpp.traces.stragglers.slowdowns import Slowdowns
from tests.traces.stragglers.jobs import ANSWERS, means, rows_of, slowdowns_of

CLOSE = 1e-5
"""The program computes in 32 bits, and the published job's times are whole microseconds here."""


@pytest.fixture(scope="module", params=ANSWERS)
def case(request) -> tuple[Slowdowns, dict]:
    return slowdowns_of(rows_of(request.param)), ANSWERS[request.param]


def test_the_slowdown_is_the_published_one(case):
    found, answer = case
    assert found.whole.mean == pytest.approx(answer["slowdown"], rel=CLOSE)


@pytest.mark.parametrize("kind", ["stage", "replica", "operation"])
def test_each_cause_costs_what_is_published_and_the_first_comes_first(case, kind):
    found, answer = case
    by, published = means(getattr(found, f"by_{kind}")), answer["by"][kind]
    assert by == pytest.approx(published, rel=CLOSE)
    assert list(by.values()) == sorted(by.values(), reverse=True)
    assert published[next(iter(by))] == pytest.approx(max(published.values()), rel=CLOSE)


@pytest.mark.parametrize("share", ["worst_workers_share", "last_stage_share"])
def test_shares_of_the_worst_workers_and_of_the_last_stage_are_the_published_ones(case, share):
    found, answer = case
    assert getattr(found, share) == pytest.approx(answer[share], abs=1e-3)


@pytest.mark.parametrize(("own", "published"), [("replayed", "replayed"), ("measured", "measured")])
def test_each_step_takes_what_is_published(case, own, published):
    found, answer = case
    steps = found.replayed if own == "replayed" else found.job.measured_steps
    numbers = [str(found.job.table.steps[step]) for step in found.job.steps]
    assert dict(zip(numbers, steps, strict=True)) == pytest.approx(answer[published], rel=CLOSE)
