"""Muon on shares of matrices: exactly torch.optim.Muon's training, however the state is cut."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from bfpp.api.running.run_memory import predicted_memory
from bfpp.executor.dispatch.dispatch import ignore
from bfpp.executor.model.transformer.corpus import Text
from bfpp.executor.model.transformer.transformer import TransformerSizes, transformer
from bfpp.executor.optimizer.muon import Rule, make_muon
from bfpp.executor.optimizer.optimizers import require_elementwise
from bfpp.executor.plan.plan import Plan
from bfpp.executor.settings import DType, LearningRates, Optimization
from bfpp.executor.train.memory_report import MemoryReport
from bfpp.schedules import (
    Communication,
    InvalidConfiguration,
    Sharding,
    build_graph,
    find_schedule,
    registered_schedules,
)
from bfpp.traces.timeline.memory_record import PARTS
from tests.helpers.run_program import run_here
from tests.helpers.small_models import chain, tied_chain
from tests.helpers.spoilt_models import without_targets
from tests.helpers.strategies import some_configuration
from tests.helpers.training_runs import EXACT, errors_of, plan_of, same, training

pytestmark = pytest.mark.usefixtures("one_thread")

MUON = Optimization(
    1e-2,
    0.3,
    optimizer="muon",
    no_decay=("vectors",),
    rates=LearningRates("cosine", warmup=2, steps=6, final=0.1),
)

SIZES = TransformerSizes(2, 8, 4, 4, 257, 12, 2, gated=True, norm="rms", positions="rotary")
"""Two tensor-parallel ranks have 129 tokens of the vocabulary and 128."""


def communication(sharding: Sharding, clips: bool = False, **others: bool) -> Communication:
    return Communication(sharding, clipping=clips, muon=True, **others)  # type: ignore[arg-type]


def plan_of_transformer(
    name: str = "1f1b",
    pp: int = 2,
    dp: int = 1,
    tp: int = 1,
    sharding: Sharding = Sharding.NONE,
    chosen: Optimization = MUON,
    **settings: object,
) -> Plan:
    schedule = find_schedule(name)
    layout = schedule.divided(pp, 4 // dp, 1)
    graph = build_graph(schedule, layout, communication(sharding, chosen.needs_norm))
    model = transformer(SIZES, Text(np.arange(4000).astype(np.uint8), SIZES.context, 1))
    defaults: dict[str, object] = {"precision": DType.FLOAT64, "optimization": chosen}
    return Plan(graph, model, dp=dp, tp=tp, **(defaults | settings))  # type: ignore[arg-type]


# The rule is torch's


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (1, 5), (6, 6)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_matrix_is_made_orthogonal_as_by_torch(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    chance = torch.Generator().manual_seed(1)
    chosen = replace(MUON, arguments=(("momentum", 0.0), ("nesterov", False)), weight_decay=0.0)
    weights = nn.Parameter(torch.zeros(shape, dtype=dtype))
    weights.grad = torch.randn(shape, generator=chance, dtype=dtype)
    make_muon(chosen, [{"params": [weights], "weight_decay": 0.0}]).step()
    rule = Rule.of(chosen)
    own = torch.zeros(shape, dtype=dtype)
    own.add_(rule.orthogonal(weights.grad), alpha=-rule.rate(rule.lr, shape))
    assert torch.equal(own, weights.detach())


def test_singular_values_become_about_one() -> None:
    chance = torch.Generator().manual_seed(2)
    found = Rule.of(MUON).orthogonal(torch.randn(16, 48, generator=chance))
    values = torch.linalg.svdvals(found.double())
    assert 0.6 < values.min() < values.max() < 1.3


def test_arguments_are_of_muon_or_of_the_adamw_of_all_others() -> None:
    rule = Rule.of(replace(MUON, arguments=(("ns_steps", 3.0), ("adamw_lr", 1e-4))))
    assert (rule.ns_steps, rule.lr, rule.adjust_lr_fn) == (3, 1e-2, "match_rms_adamw")
    given = Rule.of(replace(MUON, arguments=(("adjust_lr_fn", "original"),)))
    assert given.rate(1.0, (8, 2)) == 2.0
    assert given.rate(1.0, (2, 8)) == 1.0
    assert rule.rate(1.0, (2, 9)) == pytest.approx(0.6)
    of_torch = (
        ("size", 3.0),
        ("adamw_size", 3.0),
        ("momentum", -1.0),
        ("ns_coefficients", (1.0, 2.0)),
    )
    for wrong in (*of_torch, ("ns_steps", 2.5), ("ns_steps", 100.0)):
        with pytest.raises(InvalidConfiguration, match="optimizer"):
            require_elementwise(replace(MUON, arguments=(wrong,)))


# Training is that of a plain loop


@pytest.mark.parametrize("name", registered_schedules())
def test_every_schedule_trains_as_a_plain_loop(name: str) -> None:
    """Sharded or not, in groups or not, clipped or not; matrices lie across shares."""
    for sharding, clips, hybrid, replicas in (
        (Sharding.NONE, True, False, 2),
        (Sharding.PARTIAL, False, False, 3),
        (Sharding.FULL, True, True, 2),
    ):
        try:
            made = communication(sharding, clips, hybrid=hybrid)
            graph = some_configuration(find_schedule(name), 2, made).graph()
        except InvalidConfiguration:
            continue
        if graph.layout.slices > 1 or (graph.layout.copies and sharding is not Sharding.NONE):
            continue
        chosen = replace(MUON, clip=0.05 if clips else None)
        plan = plan_of(graph, chain(max(graph.layout.units, 3), 7), replicas, optimization=chosen)
        plan.check()
        assert errors_of(plan).worst < EXACT, (sharding, clips, hybrid)


def test_more_replicas_than_a_matrix_has_rows() -> None:
    """Every share is a part of a matrix."""
    graph = build_graph("1f1b", find_schedule("1f1b").layout(1, 2), communication(Sharding.FULL))
    plan = plan_of(graph, chain(3, 9), 6, optimization=MUON)
    assert errors_of(plan).worst < EXACT


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("sharding", Sharding)
def test_a_transformer_trains_as_a_plain_loop(sharding: Sharding, nesterov: bool) -> None:
    arguments = (("nesterov", nesterov), ("adamw_betas", (0.8, 0.9)), ("adamw_lr", 3e-3))
    chosen = replace(MUON, arguments=arguments, clip=0.05)
    assert errors_of(plan_of_transformer(dp=2, sharding=sharding, chosen=chosen)).worst < EXACT


TENSOR_PARALLEL = {
    "alone": plan_of_transformer(pp=1, tp=2),
    "sharded, a vocabulary that divides unevenly": plan_of_transformer(
        "gpipe", dp=2, tp=2, sharding=Sharding.FULL
    ),
    "the sequence, too": plan_of_transformer(
        dp=2, tp=2, sharding=Sharding.PARTIAL, chosen=replace(MUON, clip=0.05),
        sequence_parallel=True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TENSOR_PARALLEL)
def test_matrices_that_tensor_parallel_ranks_divide_are_made_whole(name: str) -> None:
    plan = TENSOR_PARALLEL[name]
    plan.check()
    assert errors_of(plan).worst < EXACT


def test_which_parameters_are_matrices() -> None:
    """Neither embedding nor head, wherever they are, nor vectors; nor what both share."""
    with training(plan_of_transformer(dp=2, sharding=Sharding.FULL)) as found:
        found.run(range(1))
        momenta = {name for name in found.values() if name.endswith("momentum_buffer")}
    layers, linear = (1, 2), ("attention.query", "attention.key_value", "attention.output",
                              "mlp.gate", "mlp.up", "mlp.down")  # fmt: skip
    assert momenta == {
        f"{each}.{name}.weight momentum_buffer" for each in layers for name in linear
    }
    tied = build_graph(
        "1f1b",
        find_schedule("1f1b").layout(2, 2),
        communication(Sharding.FULL, tied_embeddings=True),
    )
    assert errors_of(plan_of(tied, tied_chain(4), 2, optimization=MUON)).worst < EXACT


# Steps that are left out, and checkpoints


def test_a_step_that_is_left_out_leaves_momentum_alone() -> None:
    made = communication(Sharding.FULL, clips=True)
    graph = build_graph("1f1b", find_schedule("1f1b").layout(2, 2), made)
    plan = plan_of(graph, chain(4, 7), 2, optimization=replace(MUON, skip_nonfinite=1))
    with training(plan) as one, training(without_targets(plan)) as other:
        one.run(range(1))
        other.run(range(2))
        assert same(one.values(), other.values())


def test_a_checkpoint_goes_on_in_any_layout(tmp_path: Path) -> None:
    plan = plan_of_transformer(dp=2, sharding=Sharding.FULL)
    with training(plan) as straight:
        losses = straight.run(range(4))
        expected = straight.values()
    with training(plan) as before:
        before.run(range(2))
        saved = before.save(tmp_path, 2)
    other = plan_of_transformer("gpipe", 1, 2, 2)
    with training(other) as elsewhere, training(plan) as after:
        elsewhere.load(saved)
        after.load(saved)
        assert same(after.values(), elsewhere.values())
        assert after.run(range(2, 4)) == losses[2:]
        assert same(after.values(), expected)
        elsewhere.run(range(2, 4))
        found = elsewhere.values()
        assert all(torch.allclose(found[name], expected[name], atol=EXACT) for name in expected)


# Memory


@pytest.mark.parametrize("sharding", Sharding)
def test_the_state_is_predicted_to_the_byte(sharding: Sharding) -> None:
    """That of the share with the fewest matrices, which takes most."""
    plan = plan_of_transformer(dp=3, sharding=sharding, precision=DType.FLOAT32)
    report = MemoryReport(ignore)
    with training(plan, observe=report) as run:
        run.run(range(2))
    state = PARTS["state"]
    for rank, expected in enumerate(predicted_memory(plan, SIZES)):
        own = [each.held for each in report.measured() if each.held.rank == rank]
        assert max(each.during[state].max() for each in own) == expected.during[state].max()
        assert all(len(each.during[state]) == len(expected.during[state]) for each in own)


# The command


def test_what_cannot_be_is_refused() -> None:
    schedule = find_schedule("chimera")
    graph = build_graph(schedule, schedule.layout(2, 4), communication(Sharding.FULL))
    with pytest.raises(InvalidConfiguration, match="copies of stages need --sharding none"):
        plan_of(graph, chain(4), 2, optimization=MUON).check()
    plain = build_graph("1f1b", find_schedule("1f1b").layout(2, 2), Communication())
    with pytest.raises(InvalidConfiguration, match="in which matrices are made orthogonal"):
        plan_of(plain, chain(4), optimization=MUON).check()


@pytest.mark.usefixtures("forked_processes")
def test_the_command_trains_with_it_in_processes(capsys: pytest.CaptureFixture[str]) -> None:
    """In single precision, over gloo."""
    words = "1f1b --pp 1 --dp 2 --sharding full --microbatches 2 --layers 1 --hidden 16"
    line = f"{words} --context 8 --steps 3 --optimizer muon,adamw_betas=0.9:0.95 --verify --json"
    assert run_here(capsys, *line.split()).record["exact"] is True
