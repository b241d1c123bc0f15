"""A directory of checkpoints: one run at a time, what it keeps and needs, where it begins."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import re
import shutil
import signal
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.executor.checkpoint import (
    CheckpointError,
    Retention,
    complete,
    latest,
    locked,
    read_settings,
    require_space,
    require_usable,
    save,
    start_of,
)
from tests.helpers.checkpoint_states import PROCESSES, loaded_step, state_of, whole


def save_step(directory: Path, step: int, retention: Retention | int = 2) -> Path:
    return save(directory, step, whole(state_of(step)), {}, None, retention)


def steps_in(directory: Path) -> list[int]:
    return [loaded_step(each) for each in complete(directory)]


# What is kept


@settings(max_examples=10)
@given(st.integers(1, 3), st.none() | st.integers(1, 4), st.integers(0, 2**32))
def test_the_last_ones_and_every_so_many_steps_are_kept(
    last: int, every: int | None, seed: int
) -> None:
    steps = sorted(random.Random(seed).sample(range(1, 20), 6))
    kept = {each for each in steps if every and each % every == 0} | {*steps[-last:]}
    with tempfile.TemporaryDirectory() as directory:
        for step in steps:
            save_step(Path(directory), step, Retention(last, every))
        assert steps_in(Path(directory)) == sorted(kept)


def test_what_is_abandoned_stays_until_another_is_written(tmp_path: Path) -> None:
    paths = [save_step(tmp_path, step, 9) for step in (3, 6, 8, 12)]
    start = start_of(tmp_path, 6)
    assert start is not None
    assert (start.path, start.step) == (paths[1], 6)
    assert start.abandoned == (paths[2].name, paths[3].name)
    with pytest.raises(CheckpointError):
        save(tmp_path, 9, {}, {"value": {1}}, None, Retention(9, 4, start.abandoned))
    assert steps_in(tmp_path) == [3, 6, 8, 12]
    save_step(tmp_path, 9, Retention(9, 4, start.abandoned))
    assert steps_in(tmp_path) == [3, 6, 9], "those that every fourth step keeps are gone too"
    save_step(tmp_path, 12, Retention(9, 4, start.abandoned))
    assert steps_in(tmp_path) == [3, 6, 9, 12]


def test_who_goes_back_and_saves_the_same_steps_again_keeps_them(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save_step(tmp_path, step, 9)
    start = start_of(tmp_path, 2)
    assert start
    for step in (3, 4, 5):
        save_step(tmp_path, step, Retention(9, None, start.abandoned))
    assert steps_in(tmp_path) == [1, 2, 3, 4, 5]


# Where a run begins


def test_a_run_begins_with_the_last_checkpoint_or_the_one_it_names(tmp_path: Path) -> None:
    assert start_of(tmp_path / "none") is None
    for step in (30, 50, 40):
        save_step(tmp_path, step, 3)
    last = start_of(tmp_path)
    assert last
    assert (last.step, last.abandoned) == (40, ())
    named = start_of(tmp_path, 30)
    assert named
    assert named.path.name == "save-000001-step-30"
    assert named.abandoned == ("save-000002-step-50", "save-000003-step-40")
    with pytest.raises(CheckpointError) as refused:
        start_of(tmp_path, 31)
    assert str(refused.value) == f"{tmp_path} has no checkpoint of step 31, but of 30, 40 and 50"
    with pytest.raises(CheckpointError, match=r"has no checkpoint of step 3, nor of any other"):
        start_of(tmp_path / "none", 3)


# One run at a time


def hold(directory: Path, told: Connection) -> None:
    with locked(directory, 4711):
        told.send("held")
        told.recv()


@pytest.fixture
def holder(tmp_path: Path) -> Any:
    """Another process that holds the directory, as a run does."""
    ours, theirs = PROCESSES.Pipe()
    process = PROCESSES.Process(target=hold, args=(tmp_path, theirs))
    process.start()
    assert ours.poll(60)
    yield process
    process.kill()
    process.join()


def test_a_second_run_is_refused_and_told_by_whom(tmp_path: Path, holder: Any) -> None:
    assert holder.is_alive()
    for refuses in (lambda: require_usable(tmp_path), lambda: locked(tmp_path, 1).__enter__()):
        with pytest.raises(CheckpointError) as refused:
            refuses()
        assert re.fullmatch(
            rf"{re.escape(str(tmp_path))} is in use: process 4711 on \S+ has trained into it "
            r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC; one run at a time",
            str(refused.value),
        )


@pytest.mark.parametrize("ends_by", [signal.SIGKILL, signal.SIGTERM])
def test_the_lock_goes_with_its_holder(tmp_path: Path, holder: Any, ends_by: int) -> None:
    os.kill(holder.pid, ends_by)
    holder.join()
    require_usable(tmp_path)
    for _ in range(2):
        with locked(tmp_path, 1) as warning:
            assert warning is None
            found = json.loads((tmp_path / ".lock").read_text())
            assert found["process"] == 1


def test_unfinished_saves_of_a_live_run_stay(tmp_path: Path, holder: Any) -> None:
    unfinished = tmp_path / ".unfinished-of-the-run"
    unfinished.mkdir()
    save_step(tmp_path, 1)
    assert unfinished.exists()
    holder.kill()
    holder.join()
    save_step(tmp_path, 2)
    assert not unfinished.exists()
    unfinished.mkdir()
    with locked(tmp_path, 1):
        save_step(tmp_path, 3)
    assert not unfinished.exists()


@pytest.mark.parametrize("reason", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_where_nothing_can_be_locked_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(fcntl, "flock", refuse)
    (tmp_path / ".unfinished-of-another").mkdir()
    old = tmp_path / ".unfinished-long-ago"
    old.mkdir()
    os.utime(old, (0, 0))
    require_usable(tmp_path)
    with locked(tmp_path, 1) as warning:
        assert warning == (
            f"{tmp_path} cannot be locked ({os.strerror(reason)}): see to it that no other run "
            "saves there"
        )
        save_step(tmp_path, 1)
    assert (tmp_path / ".unfinished-of-another").exists()
    assert not old.exists()


# What it needs


@pytest.mark.parametrize("kind", ["link", "dangling link", "hard link", "pipe"])
def test_a_lock_that_is_no_file_of_its_own_is_refused(kind: str, tmp_path: Path) -> None:
    """Its content would be replaced, wherever it is."""
    victim, lock = tmp_path / "victim.txt", tmp_path / "saved" / ".lock"
    lock.parent.mkdir()
    if kind != "dangling link":
        victim.write_text("mine")
    match kind:
        case "hard link":
            lock.hardlink_to(victim)
        case "pipe":
            os.mkfifo(lock)
        case _:
            lock.symlink_to(victim)
    takes_it = require_usable, lambda path: locked(path, 1).__enter__()
    for each in takes_it:
        with pytest.raises(CheckpointError, match=rf"^{lock} is (a link|not a regular file)"):
            each(lock.parent)
    assert (victim.read_text() if victim.exists() else None) == (
        "mine" if kind != "dangling link" else None
    )


def test_a_directory_is_made_with_those_above_it(tmp_path: Path) -> None:
    for _ in range(2):
        require_usable(tmp_path / "runs" / "today" / "saved")
        assert [*(tmp_path / "runs" / "today" / "saved").iterdir()] == []


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="file/saved: Not a directory"):
        require_usable(tmp_path / "file" / "saved")


@pytest.mark.parametrize("operation", ["mkdir", "write_bytes", "rename"])
def test_a_directory_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    tmp_path.joinpath("saved").mkdir()

    def refuse(self: Path, *_: object, **__: object) -> None:
        if operation != "mkdir" or self.name.startswith("."):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    monkeypatch.setattr(Path, operation, refuse)
    with pytest.raises(CheckpointError, match=r"saved/\..*: Read-only file system$"):
        require_usable(tmp_path / "saved")
    monkeypatch.undo()
    assert list((tmp_path / "saved").iterdir()) == []


def test_trying_leaves_nothing(tmp_path: Path) -> None:
    require_usable(tmp_path / "made" / "saved")
    assert list((tmp_path / "made" / "saved").iterdir()) == []
    assert latest(tmp_path / "made" / "saved") is None


def test_too_little_space_is_refused_with_both_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        total, used, free = 10**9, 10**9 - 10**6, 10**6

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage)
    require_space(tmp_path, 10**6)
    with pytest.raises(CheckpointError) as refused:
        require_space(tmp_path, 2_500_000)
    assert str(refused.value) == f"{tmp_path}: a checkpoint takes 2.5 MB, and 1 MB are free"
    Usage.total = Usage.free = 0  # a file system that does not tell
    require_space(tmp_path, 10**9)


# Which there are


def test_none_are_there_at_first(tmp_path: Path) -> None:
    assert latest(tmp_path / "none") is None
    assert latest(tmp_path) is None


@pytest.mark.parametrize("keep", [1, 3])
def test_the_last_ones_are_kept(tmp_path: Path, keep: int) -> None:
    directory = tmp_path / "made" / "as needed"
    for step in range(5):
        path = save(directory, step, whole(state_of(step)), {}, None, keep)
        assert latest(directory) == path
    assert [loaded_step(path) for path in complete(directory)] == list(range(5))[-keep:]
    assert len(list(directory.iterdir())) == keep


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 4, whole(state_of(4)), {"attempt": 0}, None)
    for attempt in (1, 2):
        path = save(tmp_path, 5, whole(state_of(5)), {"attempt": attempt}, None)
        assert read_settings(path) == {"attempt": attempt}
    assert [loaded_step(each) for each in complete(tmp_path)] == [4, 5]


def test_the_latest_is_the_last_saved_not_the_highest_step(tmp_path: Path) -> None:
    """Who goes back to step 30 goes on from there."""
    for step in (30, 50, 40):
        path = save(tmp_path, step, whole(state_of(step)), {}, None, keep=2)
    assert latest(tmp_path) == path
    assert [loaded_step(each) for each in complete(tmp_path)] == [50, 40]


def test_what_interrupted_saves_left_is_removed(tmp_path: Path) -> None:
    for name in (".unfinished-1", ".discarded-2"):
        shutil.copytree(save(tmp_path / "other", 1, whole(state_of(1)), {}, None), tmp_path / name)
    (tmp_path / "notes.txt").touch()
    assert latest(tmp_path) is None
    path = save(tmp_path, 2, whole(state_of(2)), {}, None)
    assert {each.name for each in tmp_path.iterdir()} == {"other", "notes.txt", path.name}
