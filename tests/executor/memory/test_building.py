"""Workers made a layer at a time: their first values, and the memory that it takes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from benchmarks.helpers.faulty_models import mean_square
from bfpp.executor.checkpoint.state_dicts import StateDict
from bfpp.executor.devices.flat_buffers import frozen_of, parameters_of, size_of, values_of
from bfpp.executor.memory.allocations import Allocations
from bfpp.executor.memory.rank_memory import RankMemory
from bfpp.executor.memory.sizes import start_bytes
from bfpp.executor.model.batches import StatefulBatches
from bfpp.executor.model.model import Model
from bfpp.executor.model.parallel.exchange import ThreadExchange, ThreadShards
from bfpp.executor.model.sources import with_weights
from bfpp.executor.model.transformer.corpus import Text
from bfpp.executor.model.transformer.names import HUGGING_FACE, TORCHTITAN
from bfpp.executor.model.transformer.torchtitan import TorchtitanWeights
from bfpp.executor.model.transformer.transformer import TransformerSizes, transformer
from bfpp.executor.plan.plan import Plan
from bfpp.executor.run.state import pieces_of, weights_of
from bfpp.executor.settings import DType
from bfpp.schedules import Communication, Layout, Sharding, build_graph
from tests.executor.model.test_tied_training import given, kept
from tests.helpers.run_program import run_here
from tests.helpers.small_models import Averaged, Tanh, chain, numbers
from tests.helpers.training_runs import training

pytestmark = pytest.mark.usefixtures("one_thread")

WIDE = TransformerSizes(
    layers=8, hidden=128, heads=4, context=8, vocabulary=257, mlp=512, kv_heads=4
)
TEXT = Text(bytes(range(256)), WIDE.context, 0)
CPU = torch.device("cpu")


def built_in(**sizes: Any) -> Model:
    return transformer(replace(WIDE, layers=4, hidden=16, mlp=64, **sizes), TEXT)


def frozen_and_buffers() -> Model:
    def make() -> nn.Module:
        layer = Averaged(4)
        layer.linear.bias.requires_grad_(False)
        return layer

    return Model([make] * 4, mean_square, partial(numbers, 4))


MODELS: dict[str, Callable[[], Model]] = {
    "built in": built_in,
    "tied": partial(built_in, tied=True),
    "functions": partial(chain, 4),
    "given": given,
    "kept": kept,
    "frozen": frozen_and_buffers,
}


def plan_of(make: Callable[[], Model], sharding: Sharding, **settings: Any) -> Plan:
    model = make()
    ties = bool(model.tied) or make in (given, kept)
    graph = build_graph(
        "breadth-first", Layout(2, 2, 2), Communication(sharding, tied_embeddings=ties)
    )
    return Plan(graph, model, **{"dp": 2, **settings})


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *((name, {}) for name in MODELS),
        ("built in", {"tp": 2, "precision": DType.BFLOAT16}),
        ("tied", {"tp": 2}),
        ("functions", {"precision": DType.FLOAT64, "keeps_float32": ("Linear",)}),
    ],
)
@pytest.mark.parametrize("sharding", [Sharding.NONE, Sharding.FULL])
def test_the_first_weights_are_the_plain_models(
    name: str, settings: dict[str, Any], sharding: Sharding
) -> None:
    """To the last bit, whoever holds which part of them."""
    torch.manual_seed(3)
    plan = plan_of(MODELS[name], sharding, **settings)
    layers = plan.build(range(len(plan.model.layers)))
    plain = values_of(parameters_of(layers))
    with training(plan) as run:
        for held in (weights_of(run.backend.workers), pieces_of(run.backend.workers)):
            for parameter, value in plain.items():
                flat = value.flatten().to(plan.state_dtype)
                seen = torch.zeros_like(flat)
                for place, piece in held[parameter].within(flat):
                    assert torch.equal(place, piece)
                for place, piece in held[parameter].within(seen):
                    place.copy_(piece)
                assert torch.equal(seen, flat)
        units = [unit for worker in run.backend.workers for unit in worker.units.values()]
        for unit in units:
            own = frozen_of(parameters_of({each: layers[each] for each in unit.layers}))
            assert own <= {*(unit.frozen.flat.shapes if unit.frozen else ())}
            for number, layer in unit.layers.items():
                for key, buffer in layer.named_buffers():
                    expected = layers[number].get_buffer(key)
                    assert torch.equal(buffer, plan.compute_in(layers[number]).get_buffer(key))
                    assert buffer.device == expected.device


def worker_of(plan: Plan, rank: int, pipeline: int) -> RankMemory:
    shards = ThreadShards(ThreadExchange(plan.tp), pipeline % plan.tp)
    return RankMemory(plan, rank, pipeline, CPU, shards)


def started(plan: Plan, *, restores: bool = False) -> tuple[int, int]:
    """The peak of one worker's start, measured and predicted."""
    _ = plan.traced
    allocations = Allocations()
    with allocations.seen():
        worker = worker_of(plan, 0, 1)
        if restores:
            pieces_of([worker])  # type: ignore[list-item]
    return allocations.peak, start_bytes(plan, [0], restores=restores).peak


def test_a_start_takes_little_more_than_a_share() -> None:
    """Of eight fully sharded processes: a share x 1.3, and the largest unit."""
    graph = build_graph("breadth-first", Layout(1, 1, 8), Communication(Sharding.FULL))
    plan = Plan(graph, transformer(WIDE, TEXT), dp=8)
    layers = plan.build(range(len(plan.model.layers)))
    units = [
        sum(parameter.nbytes for each in cut for parameter in layers[each].parameters())
        for cut in plan.cuts
    ]
    peak, predicted = started(plan)
    assert peak <= 1.3 * sum(units) / 8 + max(units)
    assert peak == pytest.approx(predicted, rel=0.05)


@pytest.mark.slow
def test_eight_processes_report_it(capsys: pytest.CaptureFixture[str]) -> None:
    """25.5 M parameters: 12.15 MiB a share, and a layer of 12.02 MiB."""
    words = (
        "breadth-first --pp 1 --loops 8 --dp 8 --sharding full --microbatches 1 --layers 8 "
        "--hidden 512 --heads 8 --context 16 --steps 1 --json"
    )
    starts = run_here(capsys, *words.split()).record["start_memory"]
    assert [start["process"] for start in starts] == [*range(8)]
    for start in starts:
        assert start["peak"] <= (1.3 * 12.15 + 12.02) * 2**20
        assert start["peak"] == pytest.approx(start["predicted_peak"], rel=0.05)


@pytest.mark.parametrize("restores", [False, True])
@pytest.mark.parametrize(
    ("sharding", "settings"),
    [
        (Sharding.NONE, {}),
        (Sharding.PARTIAL, {"precision": DType.BFLOAT16}),
        (Sharding.FULL, {"tp": 2}),
        (Sharding.FULL, {"precision": DType.FLOAT64, "dp": 4}),
    ],
)
def test_a_start_takes_what_is_predicted(
    sharding: Sharding, settings: dict[str, Any], restores: bool
) -> None:
    model = partial(transformer, WIDE, TEXT)
    measured, predicted = started(plan_of(model, sharding, **settings), restores=restores)
    assert measured == pytest.approx(predicted, rel=0.05)


def test_modules_that_are_given_are_in_every_process() -> None:
    modules = [nn.Linear(64, 64) for _ in range(4)]
    model = Model(modules, mean_square, partial(numbers, 64))
    plan = plan_of(lambda: model, Sharding.FULL)
    own = size_of(parameter for module in modules for parameter in module.parameters())
    measured, predicted = started(plan)
    assert own + measured == pytest.approx(predicted, rel=0.05)


def test_weights_are_read_a_layer_at_a_time(tmp_path: Path) -> None:
    """No random ones are drawn for them."""
    hugging_face = pytest.importorskip("bfpp.executor.model.transformer.hugging_face")
    from safetensors.torch import save_file

    sizes = replace(
        WIDE, norm="rms", positions="rotary", gated=True, biases=False, query_biases=False
    )
    plain = transformer(sizes, TEXT)
    stored = {}
    for number, make in enumerate(plain.layers):
        for name, parameter in make().named_parameters():
            stored |= dict(HUGGING_FACE.theirs(number, name, parameter.detach(), sizes))
    file = tmp_path / "model.safetensors"
    save_file({name: value.clone() for name, value in stored.items()}, file)
    fill = hugging_face.Weights(tmp_path, sizes).fill
    model = transformer(sizes, TEXT, None, fill)
    plan = plan_of(lambda: model, Sharding.FULL)
    before = torch.get_rng_state()
    (first,) = plan.build([1]).values()
    assert torch.equal(first.mlp.up.weight, stored["model.layers.0.mlp.up_proj.weight"])
    assert torch.equal(torch.get_rng_state(), before)
    measured, predicted = started(plan)
    assert measured == pytest.approx(predicted, rel=0.05)


def test_stored_pieces_are_counted_while_they_are_read(tmp_path: Path) -> None:
    """Of a network's own state, and of torchtitan's, whose tensors are put together."""
    sizes = replace(
        WIDE, norm="rms", positions="rotary", gated=True, biases=False, query_biases=False
    )
    plain = transformer(sizes, TEXT)
    own, theirs = {}, {}
    for number, make in enumerate(plain.layers):
        for name, parameter in make().named_parameters():
            own[f"{number}.{name}"] = parameter.detach().double()
            theirs |= dict(TORCHTITAN[0, 3].theirs(number, name, parameter.detach(), sizes))
    places = []
    for kind, state in (("own", own), ("theirs", theirs)):
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            dcp.save(dict(state), checkpoint_id=(place := tmp_path / kind))
        places.append(place)
    first, second = places
    fill = TorchtitanWeights(second, sizes, StateDict(second)).fill
    for made in (
        partial(with_weights, plain, first),
        partial(transformer, sizes, TEXT, None, fill),
    ):
        measured, predicted = started(plan_of(made, Sharding.FULL))
        assert measured == pytest.approx(predicted, rel=0.05)


def test_what_a_loader_keeps_is_counted() -> None:
    def made() -> Model:
        return Model([partial(Tanh, 64)] * 4, mean_square, StatefulBatches(Counting(40, 64)))

    allocations = Allocations()
    plan = plan_of(made, Sharding.FULL, microbatch_size=10)
    with allocations.seen():
        _ = plan.traced
        worker_of(plan, 0, 1)
    predicted = start_bytes(plan, [0], restores=False).peak
    assert predicted > 2 * 40 * 64 * 4  # inputs and targets
    assert allocations.peak == pytest.approx(predicted, rel=0.05)


class Counting:
    """A loader of batches that are numbers, whose state is how many it gave."""

    def __init__(self, samples: int, width: int) -> None:
        self.shape, self.given = (samples, width), 0

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            self.given += 1
            yield torch.full(self.shape, float(self.given)), torch.full(self.shape, -1.0)

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]


@pytest.mark.slow
def test_pieces_are_counted_while_a_run_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Saved whole, by one process with one unit, and read by four, each with shares of four."""
    words = (
        "breadth-first --pp 1 --microbatches 1 --layers 4 --hidden 256 --heads 4 --context 16 "
        f"--json --checkpoint {tmp_path}/saved"
    )
    run_here(capsys, *f"{words} --loops 1 --steps 1".split())
    resumed = f"{words} --loops 4 --steps 2 --dp 4 --sharding full --resume".split()
    for start in json.loads(run_here(capsys, *resumed).output)["start_memory"]:
        assert start["peak"] == pytest.approx(start["predicted_peak"], rel=0.05)
