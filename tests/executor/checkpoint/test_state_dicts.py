"""Weights that torch.distributed.checkpoint saved from plain modules are a run's first ones."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from bfpp.executor import checkpoint
from bfpp.executor.checkpoint.manifest import read_manifest
from bfpp.executor.model.model import Model, build
from bfpp.executor.model.sources import TransformerSource, with_weights
from bfpp.executor.model.transformer.transformer import TransformerSizes
from bfpp.executor.plan.plan import Plan
from bfpp.executor.run.history import LAST
from bfpp.executor.settings import DType
from bfpp.schedules import (
    Communication,
    InvalidConfiguration,
    Layout,
    Sharding,
    build_graph,
    find_schedule,
)
from tests.executor.model.test_modules import Network, batch, loss
from tests.helpers.checkpoint_states import run_group
from tests.helpers.run_program import run_here
from tests.helpers.small_models import Averaged, Tanh, chain
from tests.helpers.strategies import some_configuration
from tests.helpers.training_runs import EXACT, errors_of, plan_of, training

pytestmark = pytest.mark.usefixtures("one_thread")

SIZES = TransformerSizes(
    layers=4, hidden=16, heads=2, context=8, vocabulary=257, mlp=24, kv_heads=1
)


def saved(state: dict[str, Any], path: Path) -> Path:
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        dcp.save(state, checkpoint_id=path)
    return path


def drawn(module: nn.Module) -> nn.Module:
    """A module with values that nothing else has, in all parameters and buffers."""
    chance = torch.Generator().manual_seed(71)
    for value in module.state_dict().values():
        value.copy_(torch.rand(value.shape, generator=chance, dtype=torch.float64) * 3)
    return module


def beginning(model: Model, sharding: Sharding = Sharding.FULL) -> dict[str, Tensor]:
    """All that two ranks and their replicas hold before the first step, by name."""
    configuration = some_configuration(find_schedule("1f1b"), 2, Communication(sharding))
    with training(plan_of(configuration.graph(), model, 3)) as run:
        return {model.own_name(name): value for name, value in run.values().items()}


def network_model() -> tuple[Model, nn.Module]:
    return Model.of(Network(), loss, batch), Network().double()


def averaged_model() -> tuple[Model, nn.Module]:
    plain = nn.Sequential(*(Averaged(4).double() for _ in range(4)))
    return chain(4, make=lambda _: Averaged(4).double()), plain


def transformer_model(sizes: TransformerSizes = SIZES) -> tuple[Model, nn.Module]:
    model = TransformerSource(sizes).load(0)
    built = build(model, range(len(model.layers)), 5)
    return model, nn.Sequential(*built.values()).double()


MODELS: dict[str, Callable[[], tuple[Model, nn.Module]]] = {
    "a network": network_model,
    "moving buffers": averaged_model,
    "the transformer": transformer_model,
}


@pytest.mark.parametrize("is_below", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_they_are_those_of_the_plain_modules_to_the_last_bit(
    name: str, is_below: bool, tmp_path: Path
) -> None:
    model, plain = MODELS[name]()
    state = drawn(plain).state_dict()
    others = {"train_state.step": torch.ones(1), "lr_scheduler.last": 3}
    below = {"model": state, "optim": {"exp_avg": torch.ones(2)}, "step": 4}
    path = saved(below if is_below else {**state, **others}, tmp_path / "saved")
    found = beginning(with_weights(model, path))
    held = [each for each in state if each in found]
    assert {*held} >= {each for each, _ in plain.named_parameters()}
    assert {*held} >= {*state} - {"angles", "shift"}
    for each in held:
        assert torch.equal(found[each], state[each].double().flatten()), each


@pytest.mark.parametrize("name", ["a network", "the transformer"])
def test_a_run_from_them_is_that_of_the_plain_loop(name: str, tmp_path: Path) -> None:
    model, plain = MODELS[name]()
    path = saved({"model": plain.state_dict()}, tmp_path / "saved")
    graph = build_graph("breadth-first", Layout(2, 4), Communication(Sharding.FULL))
    plan = Plan(graph, with_weights(model, path), dp=2, precision=DType.FLOAT64)
    plan.check()
    assert errors_of(plan).worst < EXACT


def test_tied_weights_are_stored_once_or_twice(tmp_path: Path) -> None:
    model, plain = transformer_model(replace(SIZES, tied=True))
    last = f"{len(model.layers) - 1}.scores.weight"
    state = drawn(plain).state_dict()
    assert torch.equal(state[last], state["0.tokens.weight"])
    once = {name: value for name, value in state.items() if name != last}
    for number, each in enumerate((state, once)):
        path = saved({"model": each}, tmp_path / str(number))
        graph = build_graph(
            "gpipe", Layout(2, 2), Communication(Sharding.PARTIAL, tied_embeddings=True)
        )
        plan = Plan(graph, with_weights(model, path), dp=2, precision=DType.FLOAT64)
        plan.check()
        with training(plan) as run:
            assert torch.equal(run.values()["0.tokens.weight"], state[last].flatten())


def test_a_checkpoint_of_ours_can_be_begun_with(tmp_path: Path) -> None:
    model = chain(4)
    configuration = some_configuration(find_schedule("gpipe"), 2, Communication(Sharding.PARTIAL))
    with training(plan_of(configuration.graph(), model, 3)) as run:
        run.run(range(2))
        path = run.save(tmp_path, 2)
        trained = run.values()
    found = beginning(with_weights(model, path))
    for name, value in nn.Sequential(*(Tanh(4) for _ in range(4))).named_parameters():
        assert torch.equal(found[name], trained[name]), value.shape


def save_sharded(rank: int, path: Path) -> None:
    """As torchtitan saves: DTensors of two processes, each with some rows or columns."""
    mesh = init_device_mesh("cpu", (2,))
    state = drawn(network_model()[1]).state_dict()
    shards = {
        name: distribute_tensor(value, mesh, [Shard((value.dim() > 1) * number % 2)])
        for number, (name, value) in enumerate(state.items())
    }
    dcp.save({"model": shards}, checkpoint_id=path)
    assert all(len(each.to_local()) <= len(each) for each in shards.values()), rank


@pytest.mark.slow
def test_dtensors_of_a_mesh_are_read(tmp_path: Path) -> None:
    run_group(2, tmp_path / "meeting", save_sharded, tmp_path / "saved")
    model, plain = network_model()
    found = beginning(with_weights(model, tmp_path / "saved"))
    for name, value in drawn(plain).named_parameters():
        assert torch.equal(found[name], value.flatten()), name


def without(state: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {each: value for each, value in state.items() if each != name}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (partial(without, name="norm.bias"), "has no norm.bias, which the model has"),
        (
            lambda state: {
                **state,
                "layers.4.inner.linear.weight": torch.ones(1),
                "z": torch.ones(1),
            },
            r"has layers.4.inner.linear.weight (and 1 more), which the model has not",
        ),
        (
            lambda state: {**state, "norm.bias": torch.ones(5)},
            "has {}norm.bias in shape [5], but [4] in the model",
        ),
        (
            lambda _: {"other": torch.ones(1)},
            "has no layers.0.inner.linear.bias (and 11 more), which the model has",
        ),
    ],
)
@pytest.mark.parametrize("is_below", [True, False])
def test_others_are_refused_in_a_line(
    change: Callable[[dict[str, Tensor]], dict[str, Tensor]],
    told: str,
    is_below: bool,
    tmp_path: Path,
) -> None:
    model, plain = network_model()
    state: dict[str, Any] = change(plain.state_dict())
    path = saved({"model": state} if is_below else state, tmp_path / "saved")
    graph = build_graph("gpipe", Layout(2, 2), Communication())
    plan = Plan(graph, with_weights(model, path), precision=DType.FLOAT64)
    with pytest.raises(InvalidConfiguration, match=re.escape(told.format("model." * is_below))):
        plan.check()


class Code:
    """What a forged pickle would run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("run",))


def test_a_pickle_of_anything_else_runs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, _ = network_model()
    (tmp_path / ".metadata").write_bytes(pickle.dumps({"a": Code()}))
    plan = Plan(
        build_graph("gpipe", Layout(2, 2)), with_weights(model, tmp_path), precision=DType.FLOAT64
    )
    with pytest.raises(InvalidConfiguration, match=r"it names builtins\.print"):
        plan.check()
    assert not capsys.readouterr().out


@pytest.mark.usefixtures("one_process")
def test_bfpp_run_begins_with_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "from tests.executor.model.test_modules import Network, batch, loss\n"
        "from bfpp.executor.model.model import Model\n"
        "def made(seed):\n    return Model.of(Network(), loss, batch)\n"
    )
    words = ["1f1b", "--pp", 2, "--microbatches", 2, "--backend", "local", "--json", "--verify"]
    words += ["--model", f"{file}:made", "--precision", "float64"]
    path = saved({"model": drawn(Network().double()).state_dict()}, tmp_path / "saved")
    ended = run_here(
        capsys, *words, "--steps", 1, "--weights", path, "--checkpoint", tmp_path / "own"
    )
    assert ended.record["max_weight_error"] < EXACT
    (own,) = checkpoint.complete(tmp_path / "own")
    assert read_manifest(own).settings[LAST]["the first weights"] == "saved"
    ended = run_here(capsys, *words, "--steps", 1, "--weights", tmp_path)
    assert ended.code == 2
    assert "has no .metadata of torch.distributed.checkpoint" in ended.line
