"""Whatever a transformer's layers are divided over, training is that of a plain loop.

In double precision, over the local backend; `test_training_processes` does the same over gloo.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from bfpp.executor.checkpoint import TensorPieces, read_manifest
from bfpp.executor.memory.unit import Unit
from bfpp.executor.model.model import Model
from bfpp.executor.model.parallel.region import Columns
from bfpp.executor.model.parallel.slices import Slice
from bfpp.executor.model.transformer.corpus import Text
from bfpp.executor.model.transformer.transformer import TransformerSizes, transformer
from bfpp.executor.plan.plan import Plan
from bfpp.executor.run.state import pieces_of
from bfpp.executor.settings import Activations, DType, LossScaling, Optimization
from bfpp.schedules import (
    Communication,
    InvalidConfiguration,
    Sharding,
    build_graph,
    find_schedule,
)
from tests.helpers.small_models import chain
from tests.helpers.training_runs import EXACT, compare, errors_of, run_locally, same, training

pytestmark = pytest.mark.usefixtures("one_thread")

PLAIN = TransformerSizes(2, 8, 2, 4, 257, 8, 2)
"""With biases and learned positions; two ranks have 129 tokens and 128."""

LLAMA = replace(
    PLAIN, heads=4, gated=True, norm="rms", positions="rotary", biases=False, query_biases=False
)


def model_of(sizes: TransformerSizes) -> Model:
    return transformer(sizes, Text(np.arange(4000).astype(np.uint8), sizes.context, 1))


def plan_of(
    name: str = "1f1b",
    pp: int = 1,
    dp: int = 1,
    tp: int = 2,
    sharding: Sharding = Sharding.NONE,
    sizes: TransformerSizes = PLAIN,
    groups: int = 1,
    offload: int = 0,
    **settings: object,
) -> Plan:
    """A plan in double precision, whose clipping does clip."""
    schedule = find_schedule(name)
    layout = schedule.divided(pp, 4 // dp, 1)
    defaults: dict[str, object] = {
        "precision": DType.FLOAT64,
        "optimization": Optimization(1e-2, clip=0.05),
        "dp_replicate": groups,
    }
    communication = Communication(sharding, clipping=True, hybrid=groups > 1, offload=offload)
    graph = build_graph(schedule, layout, communication)
    return Plan(graph, model_of(sizes), dp=dp, tp=tp, **(defaults | settings))  # type: ignore[arg-type]


CASES = {
    "alone": plan_of(),
    "two replicas, unsharded": plan_of(dp=2, sequence_parallel=True, sizes=LLAMA),
    "a pipeline, optimizer state sharded": plan_of(
        "gpipe", 2, 2, sharding=Sharding.PARTIAL, activations=Activations.KEEP
    ),
    "all, fully sharded": plan_of(
        "breadth-first", 2, 2, sharding=Sharding.FULL, activations=Activations.KEEP, sizes=LLAMA
    ),
    "all, fully sharded, offloaded, in sequence": plan_of(
        "breadth-first",
        2,
        sharding=Sharding.FULL,
        activations=Activations.KEEP,
        sizes=LLAMA,
        offload=1,
        sequence_parallel=True,
    ),
    "all, fully sharded, recomputed, in sequence": plan_of(
        "breadth-first", 2, 2, sharding=Sharding.FULL, sequence_parallel=True
    ),
    "two groups of two replicas, fully sharded": plan_of(
        dp=4, sharding=Sharding.FULL, groups=2, sequence_parallel=True, sizes=LLAMA
    ),
    "halves of backward passes": plan_of("zb-h1", 2, activations=Activations.KEEP),
    "halves of backward passes, in sequence": plan_of(
        "zb-h1", 2, activations=Activations.KEEP, sequence_parallel=True, sizes=LLAMA
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_divided_layers_train_as_a_plain_loop(case: str) -> None:
    plan = CASES[case]
    plan.check()
    assert errors_of(plan).worst < EXACT


def test_a_norm_that_counts_what_all_ranks_hold_twice_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Unit, "_own_gradients", lambda unit: [unit.state.gradients])
    assert errors_of(CASES["alone"]).worst > 1e-4


def test_half_a_backward_pass_computes_its_half_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from bfpp.executor.model.parallel import region

    asked: list[tuple[bool, ...]] = []
    are_needed = region._are_needed

    def remember(ctx: Columns) -> list[bool]:
        asked.append(tuple(found := are_needed(ctx)))
        return found

    monkeypatch.setattr(region, "_are_needed", remember)
    run_locally(CASES["halves of backward passes, in sequence"], range(1))
    kinds = {(first, all(others), any(others)) for first, *others in asked}
    assert kinds == {(True, False, False), (False, True, True)}
    asked.clear()
    run_locally(CASES["alone"], range(1))
    assert {all(each) for each in asked} == {True}


def test_a_checkpoint_opens_whatever_the_ranks(tmp_path: Path) -> None:
    sizes = replace(LLAMA, kv_heads=4)
    layouts = [
        plan_of("gpipe", 2, tp=1, sizes=sizes),
        plan_of(dp=2, sharding=Sharding.FULL, sequence_parallel=True, sizes=sizes),
        plan_of("gpipe", 2, tp=4, dp=2, sharding=Sharding.PARTIAL, sizes=sizes),
        plan_of("gpipe", 2, tp=1, dp=2, sharding=Sharding.PARTIAL, sizes=sizes),
    ]
    losses: list[float] = []
    path, before = None, None
    for step, plan in enumerate(layouts):
        with training(plan) as run:
            if path is not None and before is not None:
                run.load(path)
                assert same(run.values(), before)
            losses += run.run(range(step, step + 1))
            path, before = run.save(tmp_path, step + 1), run.values()
            extents = [each.extents for each in read_manifest(path).tensors.values()]
            assert max(map(len, extents)) <= plan.tp * (3 * plan.dp - 2)  # shares cut within rows
            state = pieces_of(run.backend.workers)
    assert compare(layouts[0], losses, state).worst < EXACT


def test_all_ranks_leave_out_a_step_that_overflows() -> None:
    scaling = LossScaling(initial=2.0**40)
    plan = plan_of(
        precision=DType.FLOAT16,
        optimization=Optimization(1e-2, loss_scaling=scaling),
        sequence_parallel=True,
    )
    with training(plan) as run:
        before = run.values()
        (report,) = run.trainer.run(range(1))
        assert "not finite" in report.skipped
        after = run.values()  # the ranks agree, or this fails
    weights = [name for name in before if " " not in name and name != "scale"]
    assert all(torch.equal(before[name], after[name]) for name in weights if name[0].isdigit())


def test_slices_make_up_the_whole() -> None:
    shapes = [(torch.Size([6, 4]), 1), (torch.Size([8, 3]), 2), (torch.Size([7, 2]), 1)]
    for (shape, blocks), dim, ranks in product(shapes, (0, 1), (1, 2)):
        if shape[dim] % (blocks * ranks) and blocks > 1:
            continue
        whole = torch.arange(math.prod(shape)).view(shape)
        found = torch.full((whole.numel(),), -1)
        for rank in range(ranks):
            own = Slice(shape, dim, blocks, rank, ranks)
            values = own.of(whole).flatten()
            for first in range(0, len(values), 5):  # as shares cut it
                pieces = [*own.pieces(first, values[first : first + 5])]
                assert len(pieces) <= 3
                for place, piece in TensorPieces(len(found), pieces, own.row).within(found):
                    assert (place == -1).all()
                    place.copy_(piece)
        assert torch.equal(found, whole.flatten())


def test_what_cannot_be_divided_is_refused() -> None:
    def refused(plan: Plan, reason: str) -> None:
        with pytest.raises(InvalidConfiguration, match=reason):
            plan.check()

    own = plan_of()
    refused(replace(own, model=chain(4)), "divides the loss of the built-in transformer alone")
    mixed = replace(own.model, layers=[own.model.layers[0], torch.nn.Identity()], attached=(0, 0))
    refused(replace(own, model=mixed), "layer 1 is Identity")
    refused(plan_of(tp=3), "3 must divide heads of keys and values: 2")
    odd = replace(PLAIN, context=5)
    refused(plan_of(sizes=odd, sequence_parallel=True), "cannot divide the places of")
