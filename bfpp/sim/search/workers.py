"""Executors of a search: this process, this machine's cores, SLURM, or Dask.

All look like `concurrent.futures`: `submit` gives something with `done()` and
`result()`. The functions that are submitted are plain ones of modules, and
their arguments values, so that any of them can carry them elsewhere.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures as standard
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_all_start_methods, get_context, parent_process
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple, Protocol

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.formats.python_file import naming_lines

LOCAL = "local"

SAFE_PATH = "PYTHONSAFEPATH"

SERVER, SHARED = "forkserver", "bfpp.sim.search.evaluation"
"""The server that workers are forked off, and the module it imports once for all of them."""

PROCESS = os.getpid()
"""This process. Its forks cannot wait for its server, so they start new processes."""

LOSSES = 3
"""Times that a job may be lost with its process, as when its node is: as many as Dask allows."""

POLL_SECONDS = 0.02
FIRST_POLL_SECONDS = 0.001
"""The pause between two looks for finished work: doubled, up to the longest, until some is."""


class Future(Protocol):
    """Work under way."""

    def done(self) -> bool:
        """True once the work has ended."""

    def result(self) -> Any:
        """The work's result; raises its error."""


class Executor(Protocol):
    """Something that work can be given to."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future:
        """Begin some work."""


@contextmanager
def _cores(workers: int | None) -> Iterator[Executor]:
    """Processes of this machine; an interruption is for the one that they work for."""
    with _starting():
        pool = ProcessPoolExecutor(workers, _context(), _begin)
    try:
        yield Cores(pool)
    finally:
        pool.shutdown(cancel_futures=True)


def _context() -> BaseContext:
    """The context that starts processes: a fork server, or the default where there is none."""
    if SERVER not in get_all_start_methods():
        return get_context()
    if os.getpid() != PROCESS:
        return get_context("spawn")
    context = get_context(SERVER)
    context.set_forkserver_preload([SHARED])
    return context


class Cores(NamedTuple):
    """An executor whose processes are started as work is submitted."""

    pool: ProcessPoolExecutor

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future:
        """Begin some work."""
        with _starting(), _uninterrupted():
            return self.pool.submit(naming_lines, function, *arguments)


@contextmanager
def _starting() -> Iterator[None]:
    """Start processes, or say why one cannot be: their server, too, may be killed."""
    try:
        with _safe_path():
            yield
    except (EOFError, ConnectionError) as error:
        raise BrokenExecutor from error
    except OSError as error:
        raise InvalidConfiguration(
            "workers",
            f"cannot be started: {error} (their socket is in TMPDIR, their locks in /dev/shm)",
        ) from None


@contextmanager
def _safe_path() -> Iterator[None]:
    """Begin Python processes without the working directory among the places of modules.

    Python puts it first for `python -c` and `python -m`, which is how multiprocessing, Dask and
    submitit start theirs: a file of that directory called `signal.py` would run in each of them.
    Whatever is on this process's own path, a user's PYTHONPATH included, stays on theirs.
    """
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Block interruptions here, and for good in processes that are started meanwhile.

    In their imports they would be interrupted before any code of ours runs in them.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with, args=(parent_process(),), daemon=True).start()


def _end_with(other: BaseProcess) -> None:
    """Exit when another process has: if it was killed, this one would wait for work forever."""
    other.join()
    os._exit(1)


class Deferred(NamedTuple):
    """Work that is done when its result is asked for."""

    result: Callable[[], Any]

    def done(self) -> bool:
        """Always true: the result waits for no other process."""
        return True


class Here:
    """An executor that is this process."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future:
        """Keep some work for when its result is asked for."""
        return Deferred(partial(function, *arguments))


class Elsewhere(NamedTuple):
    """An executor whose processes are not ours to start."""

    executor: Executor

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future:
        """Begin some work."""
        return self.executor.submit(naming_lines, function, *arguments)


class QueuedJob:
    """Work that begins when there is room for it, and again if it was lost with its process."""

    def __init__(self, queue: JobQueue, begin: Callable[[], Future]) -> None:
        self.queue, self.begin = queue, begin
        self.future: Future | None = None
        self.losses = 0

    def done(self) -> bool:
        """True once it has ended, which makes room for another."""
        if self.future is None or not self.future.done():
            return False
        self.queue.leave(self)
        return True

    def result(self) -> Any:
        """Its result, once it has ended."""
        while True:
            try:
                return self._ended().result()
            except self.queue.lost as error:
                self.losses += 1
                if self.losses > LOSSES:
                    raise BrokenExecutor from error
                self.queue.enter(self)

    def _ended(self) -> Future:
        while (future := self.future) is None or not self.done():
            time.sleep(POLL_SECONDS)
            for each in list(self.queue.running):
                each.done()
        return future


class JobQueue:
    """An executor that runs at most `most` jobs at a time.

    Jobs raise `lost` where their process was killed. No threads wait for them: an interruption
    would have to wait for these, too.
    """

    def __init__(
        self, executor: Executor, most: int, lost: type[Exception] | tuple[()] = ()
    ) -> None:
        self.executor, self.most, self.lost = executor, most, lost
        self.waiting: deque[QueuedJob] = deque()
        self.running: list[QueuedJob] = []

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> QueuedJob:
        """Begin some work, or keep it until others have ended."""
        job = QueuedJob(self, partial(self.executor.submit, function, *arguments))
        self.enter(job)
        return job

    def enter(self, job: QueuedJob) -> None:
        """Begin a job, perhaps anew, or keep it until others have ended."""
        job.future = None
        self.waiting.append(job)
        self._fill()

    def leave(self, job: QueuedJob) -> None:
        """Make room for the next job, once, when one has ended."""
        if job in self.running:
            self.running.remove(job)
            self._fill()

    def _fill(self) -> None:
        while self.waiting and len(self.running) < self.most:
            job = self.waiting.popleft()
            job.future = job.begin()
            self.running.append(job)


@contextmanager
def _slurm(workers: int | None) -> Iterator[Executor]:
    """Jobs of SLURM, where there is one, else of this machine; logs go to a folder in out/slurm."""
    import submitit
    from submitit.core.utils import UncompletedJobError

    # What jobs are given, and return, is trusted: a folder that was there may be another's.
    (logs := Path("out") / "slurm").mkdir(parents=True, exist_ok=True)
    executor = submitit.AutoExecutor(folder=tempfile.mkdtemp(dir=logs))
    executor.update_parameters(
        timeout_min=SLURM_MINUTES, name="bfpp", slurm_setup=[f"export {SAFE_PATH}=1"]
    )
    with _safe_path():  # of jobs on this machine
        yield JobQueue(Elsewhere(executor), workers or os.cpu_count() or 1, UncompletedJobError)


@contextmanager
def _dask(workers: int | None) -> Iterator[Executor]:
    """Workers of the scheduler at DASK_SCHEDULER_ADDRESS, or else some that only we can reach."""
    from distributed import Client

    address = os.environ.get("DASK_SCHEDULER_ADDRESS")
    ours = {
        "n_workers": workers,
        "threads_per_worker": 1,
        "host": LOOPBACK,
        "dashboard_address": f"{LOOPBACK}:0",
    }
    with (
        _safe_path(),
        Client(address, **({} if address else ours)) as client,  # type: ignore[no-untyped-call]
    ):
        yield Elsewhere(client.get_executor(pure=False))


EXECUTORS: dict[str, Callable[[int | None], AbstractContextManager[Executor]]] = {
    LOCAL: _cores,
    "slurm": _slurm,
    "dask": _dask,
}
LOOPBACK = "127.0.0.1"
PACKAGES = {"slurm": "submitit", "dask": "distributed"}
SLURM_MINUTES = 60


@contextmanager
def executor(name: str, workers: int | None = None) -> Iterator[Executor]:
    """The executor of that name; `workers` processes, where they are ours to start.

    Raises `InvalidConfiguration` if its package is not installed, or a process of it is killed.
    """
    package = PACKAGES.get(name)
    if package and find_spec(package) is None:
        raise InvalidConfiguration("executor", f"{name} needs the package {package}")
    try:
        with EXECUTORS[name](workers) as chosen:
            yield chosen
    except BrokenExecutor:
        raise InvalidConfiguration(
            "workers",
            "a worker was killed from outside, probably because the system is out of memory; fewer "
            "workers need less",
        ) from None


def as_completed(futures: Iterable[Future]) -> Iterator[Future]:
    """The futures, each when it is done, and kept no longer: with its result, it may be large."""
    every = list(futures)
    telling = [future for future in every if isinstance(future, standard.Future)]
    return standard.as_completed(telling) if len(telling) == len(every) else _polled(every)


def _polled(waiting: list[Future]) -> Iterator[Future]:
    """The same of futures that do not tell when they are done."""
    pause = FIRST_POLL_SECONDS
    while waiting:
        finished = [future for future in waiting if future.done()]
        waiting = [future for future in waiting if future not in finished]
        if finished:
            pause = FIRST_POLL_SECONDS
            while finished:
                yield finished.pop(0)
        elif waiting:
            time.sleep(pause)
            pause = min(2 * pause, POLL_SECONDS)
