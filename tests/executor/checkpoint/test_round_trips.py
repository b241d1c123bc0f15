"""Checkpoints are read by torch's own loader, by names and shapes of `state_dict()`."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from bfpp.executor import checkpoint
from bfpp.executor.checkpoint import TensorPieces, load, save
from bfpp.executor.checkpoint.manifest import MANIFEST, sealed
from bfpp.executor.checkpoint.pieces import matrix_of
from bfpp.executor.model.model import Model
from bfpp.executor.run.state import pieces_of, under_own_names
from bfpp.schedules import Communication, Sharding, find_schedule
from tests.executor.model.test_modules import Network, batch, loss, model_of
from tests.helpers.checkpoint_states import run_group
from tests.helpers.small_models import chain
from tests.helpers.strategies import some_configuration
from tests.helpers.training_runs import plan_of, training


def read_by_torch(path: Path, like: dict[str, Tensor]) -> dict[str, Tensor]:
    """What torch's loader finds of these names and shapes, without a process group."""
    found = {name: torch.full_like(each, -1) for name, each in like.items()}
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        dcp.load(found, checkpoint_id=path)
    return found


@st.composite
def cut_tensors(draw: st.DrawFn) -> tuple[Tensor, Sequence[int]]:
    """A tensor of up to four dimensions, and where its flat values are cut."""
    shape = draw(st.lists(st.integers(1, 4), max_size=4))
    size = math.prod(shape)
    cuts = draw(st.lists(st.integers(0, size), max_size=4).map(sorted))
    return torch.arange(size, dtype=torch.float32).view(shape), [0, *cuts, size]


def pieces_of_tensor(value: Tensor, cuts: Sequence[int]) -> TensorPieces:
    flat, (rows, columns) = value.flatten(), matrix_of(value.shape)
    pieces = [(a, flat[a:b].clone()) for a, b in pairwise(cuts)]
    row = columns if value.dim() > 1 else None
    assert rows * columns == len(flat)
    return TensorPieces(len(flat), pieces, row, tuple(value.shape))


@given(cut_tensors(), cut_tensors())
def test_torch_reads_any_cut_of_any_shape(one, other) -> None:
    with TemporaryDirectory() as folder:
        named = {"a": pieces_of_tensor(*one), "b.c": pieces_of_tensor(*other)}
        path = save(Path(folder), 1, named, {}, None)
        whole = {"a": one[0], "b.c": other[0]}
        found = read_by_torch(path, whole)
        assert all(torch.equal(found[name], value) for name, value in whole.items())
        for name, (value, cuts) in {"a": one, "b.c": other}.items():
            again = {
                **named,
                name: pieces_of_tensor(torch.zeros_like(value), cuts[:: len(cuts) - 1]),
            }
            load(path, again, None)
            assert torch.equal(again[name].pieces[0][1], value.flatten())


@pytest.mark.parametrize("sharding", [Sharding.NONE, Sharding.FULL])
def test_a_network_comes_home_with_the_names_of_its_state_dict(
    sharding: Sharding, tmp_path: Path
) -> None:
    network = Network().double()
    model = Model.of(network, loss, batch)
    configuration = some_configuration(find_schedule("gpipe"), 2, Communication(sharding))
    with training(plan_of(configuration.graph(), model, 3)) as run:
        run.run(range(2))
        pieces = under_own_names(pieces_of(run.backend.workers), model)
        path = save(tmp_path, 2, pieces, {}, None)
        trained = run.values()
    before = {name: value.detach().clone() for name, value in network.named_parameters()}
    left = network.load_state_dict(read_by_torch(path, before), strict=False)
    assert left.missing_keys == ["angles", "shift"]  # constants, which the network brings
    named = {model.own_name(name): value for name, value in trained.items()}
    for name, value in network.named_parameters():
        assert torch.equal(value.flatten(), named[name])
        assert not torch.equal(value, before[name])


def read_sharded(rank: int, path: Path, shapes: dict[str, torch.Size]) -> dict[str, list[float]]:
    """As torchtitan reads: into DTensors of two processes, each with half of the rows."""
    mesh = init_device_mesh("cpu", (2,))
    state = {
        name: distribute_tensor(torch.zeros(shape, dtype=torch.float64), mesh, [Shard(0)])
        for name, shape in shapes.items()
    }
    dcp.load(state, checkpoint_id=path)
    assert all(len(each.to_local()) < len(each) for each in state.values()), rank
    return {name: each.full_tensor().flatten().tolist() for name, each in state.items()}


@pytest.mark.slow
def test_a_mesh_of_processes_reads_dtensors(tmp_path: Path) -> None:
    model = chain(4)
    configuration = some_configuration(find_schedule("1f1b"), 2, Communication(Sharding.FULL))
    with training(plan_of(configuration.graph(), model, 3)) as run:
        run.run(range(2))
        path = run.save(tmp_path / "saved", 2)
        trained = run.values()
    shapes = {
        name: value.shape
        for name, value in nn.Sequential(*(make() for make in model.layers)).named_parameters()
    }
    first, second = run_group(2, tmp_path / "meeting", read_sharded, path, shapes)
    assert first == second == {name: trained[name].tolist() for name in shapes}


def test_a_list_of_layers_is_read_as_a_sequential_of_them(tmp_path: Path) -> None:
    """Convolutions and moving statistics, of which a rank's share ends within a row."""

    def convolution() -> nn.Module:
        return nn.Sequential(
            nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2, padding=1), nn.BatchNorm2d(3),
            nn.Flatten(), nn.Linear(27, 4),
        )  # fmt: skip

    model = chain(4, make=lambda _: convolution())
    configuration = some_configuration(
        find_schedule("breadth-first"), 2, Communication(Sharding.FULL)
    )
    with training(plan_of(configuration.graph(), model, 2)) as run:
        run.run(range(2))
        path = run.save(tmp_path, 2)
        trained = run.values()
    plain = nn.Sequential(*(convolution().double() for _ in range(4)))
    plain.load_state_dict(read_by_torch(path, plain.state_dict()), strict=True)
    for name, value in plain.state_dict().items():
        assert torch.equal(value.flatten().double(), trained[name].double()), name


def as_of_the_format_of_rows(path: Path) -> None:
    """The manifest as it was when shapes were rows and columns, and flat ones one row."""
    content = json.loads((path / MANIFEST).read_text())["content"]
    content["format"] = 2
    for tensor in content["tensors"].values():
        tensor["shape"] = [*matrix_of(tensor["shape"])]
    (path / MANIFEST).write_text(sealed(content))


@given(cut_tensors(), st.data())
def test_tensors_of_the_format_of_rows_are_read_in_any_shape(one, data) -> None:
    """Earlier checkpoints had rows as long as slices of tensor-parallel ranks repeat."""
    value, cuts = one
    size = value.numel()
    row = data.draw(st.sampled_from([None, *(n for n in range(1, size) if size % n == 0)]))
    with TemporaryDirectory() as folder:
        stored = TensorPieces(size, pieces_of_tensor(value, cuts).pieces, row)
        path = save(Path(folder), 1, {"a": stored}, {}, None)
        as_of_the_format_of_rows(path)
        into = pieces_of_tensor(torch.zeros_like(value), cuts)
        checkpoint.load(path, {"a": into}, None)
        assert torch.equal(torch.cat([each for _, each in into.pieces]), value.flatten())


NETWORK = """
from tests.executor.model.test_modules import model_of


def model(seed):
    return model_of()
"""


@pytest.mark.usefixtures("one_process")
def test_a_run_goes_on_from_layers_by_number(tmp_path: Path, bfpp) -> None:
    """As earlier checkpoints have them, in the format of rows; and by name, as it saves them."""
    (tmp_path / "mine.py").write_text(NETWORK)
    words = f"run 1f1b --pp 2 --microbatches 4 --backend local --model {tmp_path}/mine.py:model"
    words += " --precision fp64 --json"

    def losses(steps: int, *more: str) -> list[float]:
        code, out, err = bfpp(" ".join([words, f"--steps {steps}", *more]))
        assert code == 0, err
        return json.loads(out)["losses"]

    whole = losses(4)
    for is_earlier in (False, True):
        directory = tmp_path / f"saved {is_earlier}".replace(" ", "-")
        losses(2, f"--checkpoint {directory}")
        (path,) = checkpoint.complete(directory)
        names = checkpoint.read_manifest(path).tensors.keys()
        assert "layers.0.inner.linear.weight first moment" in names
        if is_earlier:
            as_of_the_format_of_rows(path)
            numbered = {model_of().own_name(name): name for name in numbered_names()}
            rename(path, {name: numbered.get(name, name) for name in names})
            assert "1.part.inner.linear.weight" in checkpoint.read_manifest(path).tensors
        assert losses(4, f"--checkpoint {directory}", "--resume") == whole[2:]


def numbered_names() -> list[str]:
    """The names of parameters and moments, by their layers' numbers."""
    weights = [
        f"{number}.{name}"
        for number, layer in enumerate(model_of().layers)
        for name, _ in layer.named_parameters()
    ]
    return [f"{name}{end}" for name in weights for end in ("", " first moment", " second moment")]


def rename(path: Path, names: dict[str, str]) -> None:
    content = json.loads((path / MANIFEST).read_text())["content"]
    content["tensors"] = {names[name]: each for name, each in content["tensors"].items()}
    (path / MANIFEST).write_text(sealed(content))
