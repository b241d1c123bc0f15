"""The processes of a run that were started by the one that started this one, from Linux's /proc.

A process is signalled only if it is one of them, whatever other processes say.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

RUN = ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
"""Variables that are the same in all processes of a run."""


def siblings(number: int) -> Iterator[int]:
    """The ids of other processes on this host with that number in this run; none elsewhere."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it may have ended, or be another user's
            pid = int(path.name)
            if pid != os.getpid() and _parent(path) == os.getppid() and _is(path, number):
                yield pid


def _parent(path: Path) -> int:
    """The parent's id, which comes after the state; a name may contain anything."""
    return int((path / "stat").read_bytes().rpartition(b")")[2].split()[1])


def _is(path: Path, number: int) -> bool:
    """True if a process began with the variables of this run, and that number."""
    wanted = {name: os.environ.get(name) for name in RUN} | {"RANK": str(number)}
    words = (os.fsdecode(word) for word in (path / "environ").read_bytes().split(b"\0"))
    its = {name: value for name, _, value in (word.partition("=") for word in words)}
    return all(its.get(name) == value for name, value in wanted.items())
