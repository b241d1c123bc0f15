"""A small model, and `bfpp run` with it: in this process, or as a program with children."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bfpp.command_line import main
from executor import checkpoint
from executor.backends.local import LocalBackend
from executor.lanes import Device, Threads
from executor.model import Model
from executor.plan import Plan
from executor.state import pieces_of
from executor.training import Trainer

ROOT = Path(__file__).parent.parent
MODEL = f"{__file__}:regression"
WIDTH = 6


def regression(seed: int) -> Model:
    """Eight layers that learn a sum; in double precision if that is the run's."""

    def batch(step: int, samples: range) -> tuple[torch.Tensor, torch.Tensor]:
        chance = torch.Generator().manual_seed(seed * 1_000_003 + step)
        inputs = torch.randn(256, WIDTH, generator=chance)[samples.start : samples.stop]
        return inputs, inputs.sum(dim=1, keepdim=True)

    def inner() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def outer() -> nn.Module:
        return nn.Linear(WIDTH, 1)

    return Model([*[inner] * 7, outer], nn.functional.mse_loss, batch)


class Broken(nn.Module):
    """A layer that hangs or raises in its third step of four micro-batches, two passes each."""

    def __init__(self, hangs: bool) -> None:
        super().__init__()
        self.hangs, self.passes = hangs, 0
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        if self.passes > 16:
            loop(self.hangs)
        return self.linear(value)


def loop(forever: bool) -> None:
    while forever:
        pass
    raise ValueError("the layer broke")


def with_fifth(seed: int, layer: Callable[[], nn.Module]) -> Model:
    """The model with another fifth layer."""
    model = regression(seed)
    return replace(model, layers=[*model.layers[:4], layer, *model.layers[5:]])


def hanging(seed: int) -> Model:
    return with_fifth(seed, lambda: Broken(hangs=True))


def raising(seed: int) -> Model:
    return with_fifth(seed, lambda: Broken(hangs=False))


# In this process: every rank a thread or two


class Training:
    """A plan that is trained in this process, one device for all ranks."""

    def __init__(self, plan: Plan, device: Device | None = None) -> None:
        self.plan = plan
        self.backend = LocalBackend(plan, device or Threads())
        self.trainer = Trainer(plan, self.backend)

    def run(self, steps: range) -> list[float]:
        """The losses of these steps."""
        return [report.loss for report in self.trainer.run(steps)]

    def save(self, directory: Path, step: int) -> Path:
        return checkpoint.save(directory, step, pieces_of(self.backend.workers), {}, None)

    def load(self, path: Path) -> None:
        checkpoint.load(path, pieces_of(self.backend.workers), None)
        for worker in self.backend.workers:
            worker.refresh()

    def values(self) -> dict[str, torch.Tensor]:
        """Every parameter and its moments, whole; all who hold a value agree on it."""
        found = {}
        for name, whole in pieces_of(self.backend.workers).items():
            values = torch.full((whole.size,), torch.nan, dtype=torch.float64)
            for start, piece in whole.pieces:
                own, piece = values[start : start + len(piece)], piece.detach().cpu()
                assert ((own == piece) | own.isnan()).all(), name
                own.copy_(piece)
            assert not values.isnan().any(), name
            found[name] = values
        return found

    def close(self) -> None:
        self.trainer.close()


@contextmanager
def training(plan: Plan, device: Device | None = None) -> Iterator[Training]:
    found = Training(plan, device)
    try:
        yield found
    finally:
        found.close()


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    """Whether all values are the same to the last bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# As a command


def command(*options: object) -> list[str]:
    """`run SCHEDULE ...` with the small model, unless another is among the options."""
    words = [str(option) for option in options]
    return ["run", *words, *([] if {"--model", "--layers"} & {*words} else ["--model", MODEL])]


@dataclass(frozen=True)
class Ended:
    """A command's exit code, standard output and standard error."""

    code: int
    output: str
    errors: str

    @property
    def record(self) -> dict[str, Any]:
        """What it tells as JSON, if it ended well."""
        assert (self.code, self.errors) == (0, "")
        return dict(json.loads(self.output))

    @property
    def line(self) -> str:
        """Its one line of error."""
        (line,) = self.errors.splitlines()
        assert self.output == ""
        return line


def run_here(capsys: pytest.CaptureFixture[str], *options: object) -> Ended:
    """`bfpp run` in this process, with a child for each rank; or one, if it is local."""
    try:
        code = main(command(*options))
    except SystemExit as left:
        code = int(str(left.code))
    return Ended(code, *capsys.readouterr())


def program(
    *options: object,
    before: Sequence[str] = ("-m", "bfpp.command_line"),
    variables: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
) -> subprocess.Popen[str]:
    """`bfpp run` as a program, on its way."""
    return subprocess.Popen(
        [*prefix, sys.executable, *before, *command(*options)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **(variables or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*options: object, variables: Mapping[str, str] | None = None) -> Ended:
    """`bfpp run` as a program, once it has ended."""
    with program(*options, variables=variables) as process:
        output, errors = process.communicate(timeout=120)
    return Ended(process.returncode, output, errors)


# Its processes


def ranks_of(process: subprocess.Popen[str]) -> dict[int, int]:
    """The process ids of a program's ranks that have begun, by their number."""
    found = {}
    for pid in children(process.pid):
        try:
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for word in words:
            if word.startswith(b"RANK="):
                found[int(word[5:])] = pid
    return found


def children(pid: int) -> list[int]:
    """The child processes of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(word) for word in task.read_text().split()]
        except OSError:
            continue
    return found


def alive(pids: Sequence[int]) -> list[int]:
    """Those of the processes that run; a zombie does not."""
    stat = [(pid, Path(f"/proc/{pid}/stat")) for pid in pids]
    return [pid for pid, file in stat if file.exists() and " Z " not in file.read_text()]


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
