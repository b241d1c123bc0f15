"""Some of the faults of `python -m benchmarks faults`: each ends clearly."""

from __future__ import annotations

import pytest

from benchmarks.faults import FAULTS, Observed, chain, observed, undisturbed

pytestmark = pytest.mark.slow

SOME = [chain(3), *(FAULTS[name] for name in ("exception", "read-only", "terminate"))]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Observed]:
    folder = tmp_path_factory.mktemp("faults")
    return {fault.name: observed(fault, folder / fault.name) for fault in SOME}


@pytest.fixture(scope="module")
def losses(found: dict[str, Observed]) -> list[float]:
    return undisturbed(max(each.steps for each in found.values()))


@pytest.mark.parametrize("name", [fault.name for fault in SOME])
def test_a_fault_ends_clearly(name: str, found: dict[str, Observed], losses: list[float]) -> None:
    each = found[name]
    assert each.is_told, each.end
    assert each.keeps
    assert each.goes_on(losses), each.again
    assert each.left == 0


def test_what_is_not_as_it_should_be_is_seen(found: dict[str, Observed]) -> None:
    each = found["SIGTERM of the launcher"]
    wrong = [each.losses.get(step, 0.0) + 1e-9 for step in range(each.steps)]
    assert not each.goes_on(wrong)
    assert not each.is_clear(wrong)
