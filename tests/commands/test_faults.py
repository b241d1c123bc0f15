"""Some of the faults of `python -m benchmarks faults`: each ends clearly. One is done always."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from benchmarks.executor.faults import FAULTS, Fault, Observed, chain, observed, undisturbed

ALWAYS = FAULTS["exception"]
SLOW = [chain(3), FAULTS["read-only"], FAULTS["terminate"]]

Observing = Callable[[Fault], Observed]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Observing:
    folder = tmp_path_factory.mktemp("faults")
    return cache(lambda fault: observed(fault, folder / fault.name))


@pytest.mark.parametrize(
    "fault",
    [ALWAYS, *(pytest.param(fault, marks=pytest.mark.slow) for fault in SLOW)],
    ids=lambda fault: fault.name,
)
def test_a_fault_ends_clearly(fault: Fault, seen: Observing) -> None:
    each = seen(fault)
    losses = undisturbed(each.steps)
    assert each.is_told, each.end
    assert each.keeps
    assert each.goes_on(losses), each.again
    assert each.left == 0


def test_what_is_not_as_it_should_be_is_seen(seen: Observing) -> None:
    each = seen(ALWAYS)
    wrong = [each.losses.get(step, 0.0) + 1e-9 for step in range(each.steps)]
    assert not each.goes_on(wrong)
    assert not each.is_clear(wrong)
