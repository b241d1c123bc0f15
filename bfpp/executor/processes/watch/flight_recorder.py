"""The operations that a process has posted in NCCL's groups, from torch's flight recorder.

Theory of operation. Torch keeps a record of each operation that a process hands to NCCL: its
group, its number within the group, and whether it is done. The record is written to a file when
something arrives in a named pipe (`TORCH_NCCL_DEBUG_INFO_PIPE_FILE`). A process in which nothing
has moved for a while asks for its own, and its heartbeats bring the others what it has posted: for
each group the number of the last operation, and those that are not done. A member whose last number
is below another's has not joined the next operation, and the others wait for it there. Where all
have joined, NCCL does not get done what all of them want: a link is broken, or kernels that
spin fill a GPU.

Numbers count collectives; transfers are counted apart, in the order in which a process posts them.
Both ends of a channel, a group of two, count the same; in larger groups transfers are left out.
"""

from __future__ import annotations

import io
import os
import pickle
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
FILE = "TORCH_FR_DUMP_TEMP_FILE"
ENTRIES = "TORCH_FR_BUFFER_SIZE"
ON_TIMEOUT = "TORCH_NCCL_DUMP_ON_TIMEOUT"
TO_ABORT = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"

LEAST_ENTRIES = 2000
ENDS = ("send", "recv")
MOST_UNFINISHED = 16
"""Operations of a group that a heartbeat names; more may be queued."""


@dataclass(frozen=True)
class NcclOperation:
    """An operation by its number in its group: `all_reduce`, `send`."""

    number: int
    kind: str


@dataclass(frozen=True)
class Posted:
    """The operations that a process has posted in a group: the last, and the first not done."""

    group: str
    title: str
    members: tuple[int, ...]
    last: int
    unfinished: tuple[NcclOperation, ...] = ()


class Stuck(NamedTuple):
    """An operation that members of a group are in, and those that have not joined it."""

    title: str
    members: tuple[int, ...]
    operation: NcclOperation
    missing: tuple[int, ...]


class FlightRecorder:
    """The record of this process: of the last `operations` at least.

    It is made before the first group is, and read once nothing has moved for `stall` seconds.
    Torch's own watch over NCCL, which names no culprit, aborts the process after `abort` seconds.
    Files are in a directory of this process's, and all settings as they are here, unless the user
    has set torch's variables.
    """

    def __init__(self, process: int, operations: int, stall: float, abort: float) -> None:
        self._own, self._stall = Path(tempfile.mkdtemp(prefix="bfpp-nccl-")), stall
        defaults = {
            ENTRIES: str(max(LEAST_ENTRIES, operations)),
            ON_TIMEOUT: "1",
            TO_ABORT: f"{abort:.0f}",
            FILE: str(self._own / "rank-"),
            PIPE: str(self._own / "ask-"),
        }
        for name, value in defaults.items():
            os.environ.setdefault(name, value)
        self._file = Path(f"{os.environ[FILE]}{process}")
        self._pipe = f"{os.environ[PIPE]}{process}.pipe"
        self._was_asked = False
        self._posted: tuple[Posted, ...] = ()

    def posted(self, quiet: float) -> tuple[Posted, ...]:
        """The operations posted by a process that has been `quiet` for long; waits for nothing."""
        if quiet < self._stall:
            self._was_asked, self._posted = False, ()
        elif not self._was_asked:
            self._file.unlink(missing_ok=True)
            self._was_asked = self._ask()
        elif not self._posted:
            with suppress(OSError, ValueError):  # not written yet, or in part
                self._posted = posted_of(self._file.read_bytes())
        return self._posted

    def _ask(self) -> bool:
        try:
            pipe = os.open(self._pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody reads it yet
            return False
        os.write(pipe, b"1")
        os.close(pipe)
        return True

    def close(self) -> None:
        """Remove the files; of a run that fails they stay."""
        shutil.rmtree(self._own, ignore_errors=True)


class _PlainOnly(pickle.Unpickler):
    """A reader of records in which nothing but plain values may be."""

    def find_class(self, module: str, name: str) -> Any:
        """Raise `ValueError` for any class."""
        raise ValueError(f"a flight recorder's file that names {module}.{name}")


def posted_of(dump: bytes) -> tuple[Posted, ...]:
    """The operations in a dump of torch's flight recorder.

    Raises `ValueError` for other content.
    """
    try:
        record = _PlainOnly(io.BytesIO(dump)).load()
        members = {
            name: tuple(map(int, re.findall(r"\d+", each["ranks"])))
            for name, each in record["pg_config"].items()
        }
        entries = defaultdict(list)
        for each in record["entries"]:
            group, title = each["process_group"]
            if not each["is_p2p"] or len(members[group]) == len(ENDS):
                entries[group, title, bool(each["is_p2p"])].append(each)
        return tuple(_posted(key, members[key[0]], own) for key, own in sorted(entries.items()))
    except ValueError:
        raise
    except Exception as error:  # whatever damage makes of it
        raise ValueError(f"no record of torch's flight recorder: {error!r}") from error


def _posted(key: tuple[str, str, bool], members: tuple[int, ...], entries: list[Any]) -> Posted:
    group, title, is_p2p = key
    number = "p2p_seq_id" if is_p2p else "collective_seq_id"
    unfinished = {
        int(each[number]): str(each["profiling_name"]).partition(":")[2].partition(" ")[0]
        for each in entries
        if each["state"] != "completed"
    }
    return Posted(
        f"{group} {'transfers' if is_p2p else 'collectives'}",
        title,
        members,
        max(int(each[number]) for each in entries),
        tuple(NcclOperation(*each) for each in sorted(unfinished.items())[:MOST_UNFINISHED]),
    )


def stuck_operations(posted: Mapping[int, Iterable[Posted]]) -> list[Stuck]:
    """The operations that a run is stuck in.

    In each group, the first operation that some member has not joined. Only the causes are kept: a
    member that waits in another group's operation is no cause. If every operation has been joined
    by all, the first unfinished one of each group.
    """
    groups: dict[str, dict[int, Posted]] = defaultdict(dict)
    for process, own in posted.items():
        for each in own:
            groups[each.group][process] = each
    waited = [own for own in groups.values() if any(each.unfinished for each in own.values())]
    stuck = sorted(map(_stuck, waited), key=lambda each: (len(each.members), each.members))
    lacking = [each for each in stuck if each.missing]
    victims = {process for each in lacking for process in {*each.members} - {*each.missing}}
    culprits = [tuple(at for at in each.missing if at not in victims) for each in lacking]
    causes = [
        each._replace(missing=missing)
        for each, missing in zip(lacking, culprits, strict=True)
        if missing
    ]
    return causes or lacking or stuck


def _stuck(own: Mapping[int, Posted]) -> Stuck:
    waiting = [operation for each in own.values() for operation in each.unfinished]
    any_of = next(iter(own.values()))
    last = {each: own[each].last if each in own else 0 for each in any_of.members}
    missing = tuple(each for each in any_of.members if last[each] < max(last.values()))
    first_missed = min((last[each] for each in missing), default=0) + 1
    # Where more are queued than are named, the last of these stands for the rest.
    operation = min(
        (each for each in waiting if each.number >= first_missed),
        default=max(waiting, key=lambda each: each.number),
        key=lambda each: each.number,
    )
    return Stuck(any_of.title, any_of.members, operation, missing)
