"""Losses and gradients that are no numbers: told at once, or the step is left out of the run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.executor import checkpoint
from bfpp.executor.model.batches import is_same
from bfpp.executor.model.model import Model
from bfpp.executor.optimizer.nan_checks import NotFinite
from bfpp.executor.plan.plan import Plan
from bfpp.executor.settings import Activations, DType, Optimization
from bfpp.schedules import (
    Communication,
    InvalidConfiguration,
    Layout,
    Sharding,
    TaskGraph,
    build_graph,
)
from tests.helpers.run_program import run_here
from tests.helpers.small_models import mean_square
from tests.helpers.spoilt_models import WRONG, model_of
from tests.helpers.strategies import order_graphs
from tests.helpers.training_runs import EXACT, compare, run_locally, training

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 5
SIZE = 2


def plan_of(
    graph: TaskGraph,
    wrong: Mapping[int, tuple[int, str]],
    skip: int | None = None,
    **others: object,
) -> Plan:
    clip = 0.05 if graph.communication.clipping and skip is None else None
    defaults: dict[str, object] = {
        "precision": DType.FLOAT64,
        "optimization": Optimization(1e-2, clip=clip, skip_nonfinite=skip),
        "microbatch_size": SIZE,
        "dp": 2,
    }
    model = model_of(graph.layout.units, wrong)
    return Plan(graph, model, **(defaults | others))  # type: ignore[arg-type]


def breadth_first(sharding: Sharding, *, clipping: bool = True) -> TaskGraph:
    return build_graph("breadth-first", Layout(2, 2, 2), Communication(sharding, clipping=clipping))


TOLD = {
    "loss": "the loss of micro-batch 1 is inf on rank 1, replica 1",
    "loss without gradients": "the loss of micro-batch 1 is nan on rank 1, replica 1",
    "gradient": r"the gradient of 0\.before\.\w+ in stage 0 is not finite on rank 0, replica [01]",
}


@pytest.mark.parametrize("clipping", [False, True])
@pytest.mark.parametrize("sharding", Sharding)
@pytest.mark.parametrize("how", WRONG)
def test_a_run_ends_at_numbers_that_are_not_finite(
    how: str, sharding: Sharding, clipping: bool
) -> None:
    """The second micro-batch of the second replica: the fourth of a step."""
    plan = plan_of(breadth_first(sharding, clipping=clipping), {2: (3 * SIZE, how)})
    with training(plan) as found:
        steps = found.trainer.run(range(STEPS))
        assert [next(steps).step, next(steps).step] == [0, 1]
        with pytest.raises(NotFinite, match=TOLD[how]):
            next(steps)


# Steps that are left out


@pytest.mark.parametrize("how", WRONG)
@pytest.mark.parametrize("sharding", Sharding)
def test_a_step_that_is_left_out_changes_nothing(sharding: Sharding, how: str) -> None:
    plan = plan_of(breadth_first(sharding), {2: (3 * SIZE, how)}, skip=1)
    with training(plan) as found:
        states = []
        for report in found.trainer.run(range(4)):
            states.append({name: value.clone() for name, value in found.values().items()})
            assert bool(report.skipped) is (report.step == 2)
    before, after, later = states[1:]
    for name, value in before.items():
        assert is_same(value, after[name]), name
        assert not is_same(value, later[name]), name


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    order_graphs(2, 2).filter(lambda graph: graph.communication.clipping),
    st.dictionaries(st.integers(0, 3), st.tuples(st.integers(0, 2), st.sampled_from([*WRONG]))),
    st.sampled_from(Activations),
    st.none() | st.just(0.05),
)
def test_a_run_that_leaves_steps_out_is_a_plain_loop_that_does(
    graph: TaskGraph,
    wrong: dict[int, tuple[int, str]],
    activations: Activations,
    clip: float | None,
) -> None:
    optimization = Optimization(1e-2, clip=clip, skip_nonfinite=4)
    plan = plan_of(graph, wrong, 4, activations=activations, optimization=optimization)
    reports, state = run_locally(plan, range(4))
    assert [report.step for report in reports if report.skipped] == sorted(wrong)
    assert compare(plan, [0.0] * 4, state).weight < EXACT
    for report in reports:
        has_loss = wrong.get(report.step, (0, "gradient"))[1] == "gradient"
        assert math.isfinite(report.loss) is has_loss


def test_so_many_in_a_row_are_too_many() -> None:
    wrong = dict.fromkeys((0, 1, 3, 4, 5), (0, "loss"))
    plan = plan_of(breadth_first(Sharding.FULL), wrong, skip=2)
    with training(plan) as found:
        steps = found.trainer.run(range(8))
        assert [bool(next(steps).skipped) for _ in range(5)] == [True, True, False, True, True]
        with pytest.raises(
            NotFinite, match=r"is inf on rank 1, replica 0, with 3 such steps in a row"
        ):
            next(steps)


def test_a_graph_without_norms_can_neither_skip_nor_clip() -> None:
    graph = breadth_first(Sharding.NONE, clipping=False)
    for optimization in (Optimization(skip_nonfinite=1), Optimization(clip=1.0)):
        with pytest.raises(InvalidConfiguration, match="measures no norm to clip or to skip"):
            plan_of(graph, {}, optimization=optimization).check()


def test_a_run_that_may_skip_and_need_not_trains_as_another() -> None:
    graph = breadth_first(Sharding.PARTIAL)
    (losses, state), (others, other) = (
        run_locally(plan_of(graph, {}, optimization=Optimization(1e-2, skip_nonfinite=skip)))
        for skip in (None, 1)
    )
    assert [each.loss for each in losses] == pytest.approx(
        [each.loss for each in others], abs=EXACT
    )
    for name, pieces in state.items():
        for (_, one), (_, two) in zip(pieces.pieces, other[name].pieces, strict=True):
            assert torch.allclose(one, two, rtol=0, atol=EXACT)


def test_a_step_in_single_precision_that_is_too_large_for_its_square_is_none() -> None:
    """The norm is taken in double precision."""
    plan = plan_of(breadth_first(Sharding.NONE), {}, precision=DType.FLOAT32)
    large = replace(plan, model=replace(plan.model, loss=lambda *both: mean_square(*both) * 1e30))
    reports, _ = run_locally(large, range(2))
    assert all(math.isfinite(each.loss) and not each.skipped for each in reports)


def test_a_state_that_is_not_finite_is_not_fit_to_be_saved() -> None:
    """As too large a learning rate may leave it after a step that went well."""
    with training(plan_of(breadth_first(Sharding.FULL), {})) as found:
        list(found.trainer.run(range(1)))
        found.trainer.require_finite_state()
        unit = found.backend.workers[1].units[3]
        unit.state.weights.detach()[0] = math.inf
        told = r"3\.linear\.\w+ of stage 3 is not finite on rank 1, replica 0"
        with pytest.raises(NotFinite, match=told):
            found.trainer.require_finite_state()


# The command, and its checkpoints

OPTIONS = ("breadth-first", "--pp", 2, "--loops", 2, "--microbatches", 4, "--microbatch-size", 2)
FOUR = ("--dp", 2, "--sharding", "full", "--skip-nonfinite", 1)


def spoilt(seed: int, how: str = "loss") -> Model:
    """A loss that a command can name: the last micro-batch of replica 0 in steps 3, 5 and 6."""
    del seed
    return model_of(4, dict.fromkeys((3, 5, 6), (7, how)))


def steep(seed: int) -> Model:
    return spoilt(seed, "gradient")


def model(name: str) -> tuple[str, str]:
    return "--model", f"{Path(__file__)}:{name}"


SLOW = pytest.mark.slow


@pytest.mark.usefixtures("forked_processes")
@pytest.mark.parametrize(
    ("name", "options", "saved", "told"),
    [
        (
            "spoilt", (), 2,
            "rank 1 (process 1) failed in step 3: the loss of micro-batch 3 is inf on rank 1",
        ),
        pytest.param(
            "steep", FOUR, 6,
            "rank 0, replica 0 (process 0) failed in step 6: the gradient of 0.before.bias",
            marks=SLOW,
        ),
    ],
)  # fmt: skip
def test_no_checkpoint_is_written_of_what_is_not_finite(
    name: str,
    options: tuple[object, ...],
    saved: int,
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    saving = ("--checkpoint", tmp_path / "saved", "--save-every", 2)
    ended = run_here(capsys, *OPTIONS, *model(name), *saving, *options, "--steps", 8)
    *skipped, line = ended.said
    assert ended.code == 1
    assert line.startswith(f"bfpp run: {told}")
    assert line.endswith("replica 0, with 2 such steps in a row" if options else "replica 0")
    assert len(skipped) == (2 if options else 0)
    last = checkpoint.latest(tmp_path / "saved")
    assert last is not None
    assert checkpoint.read_manifest(last).step == saved


@pytest.mark.usefixtures("one_process")
def test_the_command_leaves_steps_out(capsys: pytest.CaptureFixture[str]) -> None:
    local = ("--backend", "local", *model("spoilt"), "--skip-nonfinite", 2, "--steps", 8)
    ended = run_here(capsys, *OPTIONS, *local, "--verify", "--json", "--precision", "float64")
    told = [
        f"bfpp run: step {step} is skipped: the loss of micro-batch 3 is inf on rank 1, replica 0"
        for step in (3, 5, 6)
    ]
    assert (ended.code, ended.errors.splitlines()) == (0, told)
    record = replace(ended, errors="").record
    assert record["skipped_steps"] == [3, 5, 6]
    assert [loss is None for loss in record["losses"]] == [step in (3, 5, 6) for step in range(8)]
    assert record["exact"] is True
