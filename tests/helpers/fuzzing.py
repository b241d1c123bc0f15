"""Readers of foreign bytes, given damaged ones: how each ends, in what time and memory.

An input may be read or refused in one line; all else is a fault: another exception, more than
`SECONDS` of processor time, more than `BYTES` of memory. A call of C that never returns ends
the process, with where it is.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from traceback import extract_tb

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import bfpp
from bfpp.schedules import InvalidInput
from bfpp.terminal.error_lines import LONGEST, blaming, explain
from tests.helpers.damaged_forms import Damage

SECONDS = 2.0
"""Of processor time that no input takes, however it ends."""

BYTES = 64 * 2**20
"""Of memory that no input takes at its peak, beyond what there was before."""

ROOM = 2**30
"""Of addresses that an input may take: what asks for more fails there, and is known for it."""

STUCK = 60
"""Seconds of processor time after which the process ends: no signal interrupts C code."""


PACKAGE = Path(bfpp.__file__).parent


@dataclass(frozen=True)
class Reader:
    """Something that reads: what whole inputs it has, how they are damaged, and how it is called.

    `begin` makes what is read over and over, imports included, in a folder of its own.
    """

    whole: Callable[[], Sequence[bytes]]
    read: Callable[[bytes], object]
    damages: Damage


class Overdue(BaseException):
    """More time than any input may take; no reader catches it."""


@dataclass
class Tally:
    """Results of a reader's inputs; of each fault, its smallest input."""

    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    slowest: float = 0.0
    largest: int = 0
    faults: dict[str, bytes] = field(default_factory=dict)

    def add(self, contents: bytes, fault: str) -> None:
        """A fault; it is kept if none like it has a smaller input."""
        if len(self.faults.get(fault, contents)) >= len(contents):
            self.faults[fault] = contents


def fuzzed(reader: Reader, inputs: int) -> Tally:
    """Gives a reader so many inputs, the same ones each time unless examples are drawn anew."""
    tally = Tally()
    before = Path.cwd()
    with TemporaryDirectory(prefix="fuzzing-") as folder:
        os.chdir(folder)
        try:
            wholes = reader.whole()
            for whole in wholes:
                reader.read(whole)  # which also imports and compiles what reading needs
            _draw(reader, wholes, inputs, tally)
        finally:
            os.chdir(before)
    return tally


def _draw(reader: Reader, wholes: Sequence[bytes], inputs: int, tally: Tally) -> None:
    @seed(1)
    @settings(
        max_examples=inputs,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(wholes).flatmap(reader.damages))
    def each(contents: bytes) -> None:
        give(reader, contents, tally)

    each()


def give(reader: Reader, contents: bytes, tally: Tally) -> None:
    """One input, and what comes of it."""
    _forget_peak()
    before, begun, fault = _kilobytes("VmRSS"), time.process_time(), ""
    try:
        with _limited(), blaming("FILE"):
            reader.read(contents)
        tally.accepted += 1
    except InvalidInput as error:
        tally.refused += 1
        if not (line := explain(error)) or len(line) > LONGEST or not line.isprintable():
            fault = "a refusal that is no line"
    except Overdue as error:
        fault = f"more than {SECONDS:g} s, in {_place(error)}"
    except Exception as error:
        fault = f"{type(error).__name__} in {_place(error)}"
    taken = time.process_time() - begun
    size = (_kilobytes("VmHWM") - before) * 1024
    if not fault and size > BYTES:
        fault = f"more than {BYTES // 2**20} MiB"
    if fault:
        tally.add(contents, fault)
    tally.inputs += 1
    tally.slowest = max(tally.slowest, taken)
    tally.largest = max(tally.largest, size)


def _place(error: BaseException) -> str:
    """The line of ours that was running."""
    frames = extract_tb(error.__traceback__)
    own = [each for each in frames if PACKAGE in Path(each.filename).parents] or frames
    return f"{own[-1].filename.removeprefix(str(PACKAGE.parent))}:{own[-1].lineno}"


# Limits


@contextmanager
def _limited() -> Iterator[None]:
    def late(*_: object) -> None:
        raise Overdue

    addresses, seconds = (
        resource.getrlimit(each) for each in (resource.RLIMIT_AS, resource.RLIMIT_CPU)
    )
    handler = signal.signal(signal.SIGPROF, late)
    resource.setrlimit(resource.RLIMIT_AS, (_kilobytes("VmSize") * 1024 + ROOM, addresses[1]))
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + STUCK), seconds[1]))
    signal.setitimer(signal.ITIMER_PROF, SECONDS, SECONDS)  # again, where it is swallowed
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_CPU, seconds)
        resource.setrlimit(resource.RLIMIT_AS, addresses)
        signal.signal(signal.SIGPROF, handler)


def _forget_peak() -> None:
    """The peak of memory counts from now on, as Linux has it."""
    Path("/proc/self/clear_refs").write_text("5")


def _kilobytes(name: str) -> int:
    status = Path("/proc/self/status").read_bytes()
    return int(status.partition(b"%b:" % name.encode())[2].split(None, 1)[0])
