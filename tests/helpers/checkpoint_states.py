"""States that checkpoint tests save, and processes that save them until they are killed.

A state's values are functions of its step, so what was loaded tells which step it
is of, and whether all of it is.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bfpp.executor.checkpoint import (
    Retention,
    TensorPieces,
    latest,
    load,
    read_manifest,
    save,
    start_of,
)
from tests.helpers.fork_server import stop_server

SIZES = {"0.weight": 3000, "0.bias": 30, "1.weight": 1000}

DELETIONS = ("os.remove", "os.rmdir")

PROCESSES = multiprocessing.get_context("forkserver")


def begin_anew() -> None:
    """Fork processes off a server that has imported torch: one that runs may be a search's."""
    stop_server()
    PROCESSES.set_forkserver_preload([__name__])


def cut(values: torch.Tensor, *at: int) -> TensorPieces:
    """The whole of a tensor, in pieces."""
    bounds = [0, *at, len(values)]
    return TensorPieces(
        len(values),
        [(start, values[start:stop]) for start, stop in pairwise(bounds)],
    )


def whole(state: dict[str, torch.Tensor]) -> dict[str, TensorPieces]:
    return {name: cut(values) for name, values in state.items()}


def state_of(step: int) -> dict[str, torch.Tensor]:
    """Several dtypes, and each value of a step another than at other steps."""
    state = {name: torch.arange(size) + 10_000.0 * step for name, size in SIZES.items()}
    return state | {
        "0.moment": torch.linspace(0, 1, 500, dtype=torch.float64) + step,
        "0.half": torch.full((77,), step % 256, dtype=torch.bfloat16),
        "step": torch.tensor([step]),
    }


def empty_state() -> dict[str, torch.Tensor]:
    return {name: torch.zeros_like(values) for name, values in state_of(0).items()}


def loaded_step(path: Path) -> int:
    """The step of a checkpoint, all of which must be of it."""
    state = empty_state()
    load(path, whole(state), None)
    step = read_manifest(path).step
    for name, values in state_of(step).items():
        assert torch.equal(state[name], values), name
    return step


# What runs in a process of its own


def save_forever(directory: Path, told: Connection) -> None:
    """Saves step after step, and tells each that is done."""
    path = latest(directory)
    step = 0 if path is None else read_manifest(path).step
    while True:
        step += 1
        save(directory, step, whole(state_of(step)), {}, None)
        told.send(step)


def kill_at_event(number: int, within: str) -> None:
    """From now on, dies before the given one of its operations on files of a directory.

    Trees are deleted by names relative to them, so every deletion counts.
    """
    remaining = [number]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in DELETIONS or (arguments and str(arguments[0]).startswith(within)):
            if remaining[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            remaining[0] -= 1

    sys.addaudithook(hook)


def save_and_die(directory: Path, step: int, event: int) -> None:
    kill_at_event(event, str(directory))
    save(directory, step, whole(state_of(step)), {}, None, keep=1)


def go_back_and_die(directory: Path, start: int, step: int, event: int) -> None:
    """Saves a step of a new history, from an earlier checkpoint than the last."""
    begun = start_of(directory, start)
    assert begun
    kill_at_event(event, str(directory))
    save(directory, step, whole(state_of(step)), {}, None, Retention(9, None, begun.abandoned))


def in_group(rank: int, size: int, meeting: Path, work: Any, told: Connection, *rest: Any) -> None:
    """Runs `work(rank, ...)` as one of a gloo group, and tells what it returned."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    try:
        told.send(work(rank, *rest))
    finally:
        dist.destroy_process_group()


def run_group(size: int, meeting: Path, work: Any, *rest: Any) -> list[Any]:
    """Results of `work` in each of a group of processes; None of one that died."""
    pipes = [PROCESSES.Pipe(duplex=False) for _ in range(size)]
    processes = [
        PROCESSES.Process(target=in_group, args=(rank, size, meeting, work, pipes[rank][1], *rest))
        for rank in range(size)
    ]
    for process, (_, told) in zip(processes, pipes, strict=True):
        process.start()
        told.close()
    results = [_received(heard) for heard, _ in pipes]
    for process in processes:
        process.join(60)
    return results


def _received(heard: Connection) -> Any:
    try:
        return heard.recv() if heard.poll(60) else None
    except EOFError:
        return None
    finally:
        heard.close()
