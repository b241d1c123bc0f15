"""Several processes, and processes that are killed: the last good checkpoint is always there."""

from __future__ import annotations

import random
import signal
import time
from itertools import count
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from bfpp.executor.checkpoint import CheckpointError, TensorPieces, complete, latest, load, save
from tests.helpers.checkpoint_states import (
    PROCESSES,
    begin_anew,
    cut,
    empty_state,
    go_back_and_die,
    kill_at_event,
    loaded_step,
    run_group,
    save_and_die,
    save_forever,
    state_of,
    whole,
)


@pytest.fixture(autouse=True, scope="module")
def _server() -> None:
    begin_anew()


# Killed


def test_killed_before_any_of_its_file_operations(tmp_path: Path) -> None:
    """Each save dies a little later, until one does not; only one checkpoint is kept."""
    save(tmp_path, 1, whole(state_of(1)), {}, None)
    for event in count():
        process = PROCESSES.Process(target=save_and_die, args=(tmp_path, event + 2, event))
        process.start()
        process.join(60)
        path = latest(tmp_path)
        assert path is not None
        assert all(loaded_step(each) for each in complete(tmp_path))
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    assert event > 10
    assert loaded_step(path) == event + 2
    assert list(tmp_path.iterdir()) == [path]


def test_killed_while_it_abandons_later_ones(tmp_path: Path) -> None:
    """Who goes back to step 6 has the old history or the new one, and step 6, but never both."""
    seen = set()
    for event in count():
        directory = tmp_path / str(event)
        for step in (3, 6, 8, 12):
            save(directory, step, whole(state_of(step)), {}, None, 9)
        process = PROCESSES.Process(target=go_back_and_die, args=(directory, 6, 9, event))
        process.start()
        process.join(60)
        steps = [loaded_step(each) for each in complete(directory)]
        assert steps in ([3, 6, 8, 12], [3, 6, 12], [3, 6, 8], [3, 6], [3, 6, 9])
        seen.add(tuple(steps))
        if process.exitcode == 0:
            break
    assert seen >= {(3, 6, 8, 12), (3, 6), (3, 6, 9)}


def test_killed_at_any_moment(tmp_path: Path) -> None:
    moments = random.Random(3)
    done = 0
    for _ in range(8):
        heard, told = PROCESSES.Pipe(duplex=False)
        process = PROCESSES.Process(target=save_forever, args=(tmp_path, told))
        process.start()
        told.close()
        assert heard.poll(60), "the first save of this process"
        time.sleep(moments.uniform(0, 0.1))
        process.kill()
        process.join()
        while heard.poll():
            try:
                done = heard.recv()
            except EOFError:
                break
        heard.close()
        path = latest(tmp_path)
        assert path is not None
        assert loaded_step(path) in (done, done + 1)
        assert 1 <= len(complete(tmp_path)) <= 3
        assert all(loaded_step(each) for each in complete(tmp_path))


# Several processes


def held_by(rank: int, step: int) -> dict[str, TensorPieces]:
    """Sharded, replicated, one process's own, and overlapping: of two processes."""
    state = state_of(step)
    weight, bias, moment = state["0.weight"], state["0.bias"], state["0.moment"]
    tensors = {
        "0.weight": TensorPieces(
            3000, [(1000 * rank, weight[1000 * rank : 1000 + 1000 * (rank + 1)])]
        ),
        "0.bias": cut(bias),
        "0.moment": TensorPieces(500, [(0, moment[:100]), (100, moment[100:])][rank : rank + 1]),
        "0.half": cut(state["0.half"]),
        "step": cut(state["step"]),
    }
    return tensors | ({"1.weight": cut(state["1.weight"])} if rank else {})


def save_by_two(rank: int, directory: Path) -> str:
    path = save(directory, 6, held_by(rank, 6), {"by": rank}, dist.group.WORLD)
    mismatches = []
    for change in ({"new": cut(torch.zeros(2 + rank))}, {"step": cut(torch.zeros(1 + rank))}):
        with pytest.raises(CheckpointError) as error:
            save(directory, 7, held_by(rank, 7) | change, {}, dist.group.WORLD)
        mismatches.append(str(error.value))
    own = directory.with_name(f"of process {rank}")
    with pytest.raises(CheckpointError, match=r"__1_0\.distcp: .* hosts must share"):
        save(own, 6, held_by(rank, 6), {}, dist.group.WORLD)
    assert latest(own) is None
    return f"{path.name} {mismatches}"


def load_by_three(rank: int, path: Path) -> str:
    """A process has every third value's neighbourhood, one process has another dtype at first."""
    state = empty_state()
    pieces = {
        name: TensorPieces(
            len(values),
            [(start, values[start : start + 10]) for start in range(10 * rank, len(values), 30)],
        )
        for name, values in state.items()
    }
    reasons = []
    for change in (
        {"step": cut(torch.zeros(1))} if rank == 1 else {},
        {"more": cut(torch.ones(2))},
    ):
        with pytest.raises(CheckpointError) as error:
            load(path, pieces | change, dist.group.WORLD)
        reasons.append(str(error.value))
    load(path, pieces, dist.group.WORLD)
    expected = state_of(6)
    for name, each in pieces.items():
        for start, values in each.pieces:
            assert torch.equal(values, expected[name][start : start + 10]), name
    return str(reasons)


def test_processes_save_and_others_load(tmp_path: Path) -> None:
    directory = tmp_path / "saved"
    first, second = run_group(2, tmp_path / "two", save_by_two, directory)
    assert first == second
    assert "new: processes hold it as torch.float32 of shape [2] and torch.float32" in first
    [path] = directory.iterdir()
    assert loaded_step(path) == 6
    values = sum(each.nbytes for each in state_of(6).values())
    sizes = [(path / f"__{rank}_0.distcp").stat().st_size for rank in range(2)]
    assert sum(sizes) < values + 14_000, "archives' headers, but no value twice"
    assert min(sizes) > values / 3

    reasons = run_group(3, tmp_path / "three", load_by_three, path)
    assert None not in reasons
    assert len(set(reasons)) == 1


def save_while_another_fails(rank: int, directory: Path) -> str:
    """First process 1 cannot write its file, then it is killed when it wants to."""
    save(directory, 1, held_by(rank, 1), {}, dist.group.WORLD)
    tensors = held_by(rank, 2)
    if rank == 1:
        tensors["0.bias"] = None  # type: ignore[assignment]
    with pytest.raises(CheckpointError) as error:
        save(directory, 2, tensors, {}, dist.group.WORLD)
    told = [str(error.value)]
    if rank == 1:
        kill_at_event(4, str(directory))
    with pytest.raises(CheckpointError) as error:
        save(directory, 3, held_by(rank, 3), {}, dist.group.WORLD)
    return "\n".join([*told, str(error.value)])


def test_one_of_several_fails_then_dies(tmp_path: Path) -> None:
    directory = tmp_path / "saved"
    told, nothing = run_group(2, tmp_path / "meeting", save_while_another_fails, directory)
    assert nothing is None
    failed, lost = told.splitlines()
    assert "'NoneType' object has no attribute" in failed
    assert lost.startswith(f"{directory}: ")
    [path] = directory.iterdir()
    assert loaded_step(path) == 1
    save(directory, 4, whole(state_of(4)), {}, None)
    assert [loaded_step(each) for each in complete(directory)] == [1, 4]
