"""Starts the processes of a run on this machine, or joins those of torchrun.

The parent hosts the store through which the processes find each other, so no
port is chosen before it is taken, and the store outlives any of them. It sees
how a process ends, reads their beats, and raises `RunFailed` once, naming the
culprit; whatever happens, it leaves no process behind.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from torch.distributed import TCPStore

from executor.processes.beats import Limits
from executor.processes.children import HOST, Children
from executor.processes.joined import launch_joined
from executor.processes.member import MESSAGES, OUTCOME, WORK
from executor.processes.observer import Observer
from executor.processes.place import Message
from executor.processes.process import Arguments, Entry, Outcome
from executor.processes.verdict import Scene, Verdict, judge, judge_exit
from schedules import InvalidInput

PERIOD = 0.05  # seconds between two looks at messages and ends
TO_ANSWER = 0.3  # seconds that a process that hangs has to say where
LOG_LINES = 20
TORCHRUN = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}  # what it tells its processes


class RunFailed(Exception):
    """A run ended by one of its processes, in words that name it and its task.

    `details` are for whoever looks for the cause: the traceback or the end of
    the process's log, and where the logs are. There are none where the message
    says it all.
    """

    def __init__(self, process: int, message: str, details: str) -> None:
        super().__init__(message)
        self.process = process
        self.details = details


def launch(
    entry: Entry[Arguments, Outcome],
    arguments: Arguments,
    processes: int,
    limits: Limits | None = None,
    on_message: Callable[[Message], None] = lambda _: None,
) -> Outcome | None:
    """Runs `entry(place, arguments)` in all processes and returns the first one's outcome.

    Under torchrun, the other processes get None; a failure ends each process
    there, after one of them has said why. The messages that the first process
    sends (`place.send`) arrive at `on_message`.

    Raises `RunFailed` where a process failed, died or hung, `ValueError` where
    another process cannot import the entry, and `InvalidInput` where torchrun
    started another number of processes.
    """
    limits = limits or Limits()
    if not os.environ.keys() >= TORCHRUN:
        return _launch_own(entry, arguments, processes, limits, on_message)
    if int(os.environ["WORLD_SIZE"]) != processes:
        started = os.environ["WORLD_SIZE"]
        raise InvalidInput(f"the run needs {processes} processes, and torchrun started {started}")
    return launch_joined(entry, arguments, limits, on_message)


def _launch_own(
    entry: Entry[Arguments, Outcome],
    arguments: Arguments,
    processes: int,
    limits: Limits,
    on_message: Callable[[Message], None],
) -> Outcome:
    if entry.__module__ == "__main__":
        raise ValueError(f"{entry.__qualname__} must be in a module that can be imported")
    work = pickle.dumps((entry, arguments, limits))
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    observer = Observer(store, processes, limits)
    with _directory() as directory:
        (directory / WORK).write_bytes(work)
        with closing(Children(directory, processes, store.port)) as children:
            verdict = _supervise(children, store, observer, on_message)
            if verdict is not None:
                raise _failure(children, verdict, directory)
        outcome: Outcome = pickle.loads((directory / OUTCOME).read_bytes())  # noqa: S301  ours
    return outcome


@contextmanager
def _directory() -> Iterator[Path]:
    """Where the work, the outcome and the logs are; kept for the logs if a process failed."""
    directory = Path(tempfile.mkdtemp(prefix="bfpp-"))
    keep = False
    try:
        yield directory
    except RunFailed as error:
        keep = bool(error.details)
        raise
    finally:
        if not keep:
            shutil.rmtree(directory)


def _supervise(
    children: Children,
    store: TCPStore,
    observer: Observer,
    on_message: Callable[[Message], None],
) -> Verdict | None:
    """Until all processes are done, or one of them ended the run."""
    ended: dict[int, int] = {}
    next_look = 0.0
    while True:
        before, ended = ended, children.ended()
        while store.queue_len(MESSAGES):
            on_message(json.loads(store.queue_pop(MESSAGES)))
        if time.monotonic() > next_look or ended != before:
            scene = observer.look()
            next_look = time.monotonic() + scene.limits.beat
            verdict = _judge_ends(scene, ended) or judge(scene)
            if verdict or len(ended) == len(scene.beats):
                return verdict
        time.sleep(PERIOD)


def _judge_ends(scene: Scene, ended: dict[int, int]) -> Verdict | None:
    """The verdict on the processes that ended before they were done.

    A victim of another's end may abort, so what aborted is named last.
    """
    early = [
        (status == -signal.SIGABRT, process)
        for process, status in ended.items()
        if status or not ((beat := scene.beats[process]) and beat.done)
    ]
    return judge_exit(scene, min(early)[1], ended[min(early)[1]]) if early else None


def _failure(children: Children, verdict: Verdict, directory: Path) -> RunFailed:
    if verdict.foreseen:
        return RunFailed(verdict.process, verdict.message, "")
    if verdict.alive:
        children.ask_where(verdict.process)
        time.sleep(TO_ANSWER)
    log = children.log(verdict.process).splitlines()[-LOG_LINES:]
    details = [verdict.traceback or "\n".join(log), f"The logs of all processes are in {directory}"]
    return RunFailed(verdict.process, verdict.message, "\n".join(filter(None, details)))
