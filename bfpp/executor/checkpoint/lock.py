"""One training run at a time in a directory of checkpoints.

A run holds an exclusive `flock` on the file `.lock` in the directory. The kernel
lets go of it however the holder ends, so no lock is ever stale; the file itself
stays, and says who held it last. It is a regular file: what a link leads to is never
written to. Some file systems of a network cannot lock: the run goes on there, once that
is said, and leaves others' unfinished saves alone.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from bfpp.executor.checkpoint.processes import CheckpointError

LOCK = ".lock"
CANNOT = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS}
"""Errors of file systems that cannot lock."""

PATIENCE = 1.0
"""Seconds for which a lock is tried: who only looks whether it is free holds it for a moment."""

_held: set[Path] = set()
"""Directories that this process holds."""


@contextmanager
def locked(directory: Path, process: int) -> Iterator[str | None]:
    """Holds a directory for a run, naming `process` as holder; gives a warning if it cannot.

    Raises `CheckpointError` where another run holds it.
    """
    descriptor = _opened(directory, os.O_CREAT)
    own = directory.resolve()
    try:
        cannot = _lock(descriptor, directory, PATIENCE)
        if cannot is None:
            _held.add(own)
            _say_who(descriptor, process)
        yield cannot and (
            f"{directory} cannot be locked ({cannot}): see to it that no other run saves there"
        )
    finally:
        if own in _held:
            _held.discard(own)
            # Processes that were forked from this one may have the descriptor still.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def require_unlocked(directory: Path) -> None:
    """Raises `CheckpointError` where a live run holds the directory."""
    with suppress(FileNotFoundError):
        _try(directory)


def may_tidy(directory: Path) -> bool:
    """True if no other run can be at work in the directory."""
    if directory.resolve() in _held:
        return True
    try:
        return _try(directory) is None
    except FileNotFoundError:
        return True
    except CheckpointError:
        return False


def _try(directory: Path) -> str | None:
    """Takes an existing lock and lets go of it; why, if that cannot be."""
    descriptor = _opened(directory)
    try:
        return _lock(descriptor, directory)
    finally:
        os.close(descriptor)


def _opened(directory: Path, flags: int = 0) -> int:
    """The open lock file.

    Raises `CheckpointError` for anything but a file with this one name: its content, which is
    replaced, would be that of a file elsewhere.
    """
    path = directory / LOCK
    # O_NONBLOCK: a FIFO of that name would wait for its other end.
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | flags, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise CheckpointError(f"{path} is a link, and no lock of bfpp") from None
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
        return descriptor
    os.close(descriptor)
    raise CheckpointError(f"{path} is not a regular file of one name, and no lock of bfpp")


def _lock(descriptor: int, directory: Path, patience: float = 0.0) -> str | None:
    """Take the lock: None once it is held, or the reason why the file system has none."""
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return None
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise CheckpointError(f"{directory} is in use: {_who(descriptor)}") from None
        except OSError as error:
            if error.errno not in CANNOT:
                raise
            return error.strerror
        time.sleep(0.05)


def _say_who(descriptor: int, process: int) -> None:
    now = datetime.now(UTC).isoformat(sep=" ", timespec="seconds").replace("+00:00", " UTC")
    holder = {"host": platform.node(), "process": process, "since": now}
    with suppress(OSError):  # a courtesy: the lock holds without it
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)


def _who(descriptor: int) -> str:
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
        return (
            f"process {owner['process']} on {owner['host']} has trained into it "
            f"since {owner['since']}; one run at a time"
        )
    except (OSError, ValueError, LookupError, TypeError):
        return "another run trains into it; one run at a time"
