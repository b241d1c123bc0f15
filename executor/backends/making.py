"""The backend that a job asks for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from bfpp.executor.backends.distributed import DistributedBackend
from bfpp.executor.backends.local import LocalBackend
from bfpp.executor.backends.protocol import Backend, MakeWorker
from bfpp.executor.job import Job
from bfpp.executor.lanes import DeviceRuntime, Streams, Threads
from bfpp.executor.plan import Plan
from bfpp.executor.processes import Place, cores, join, measure_offset, use_cores
from bfpp.executor.settings import BackendName
from bfpp.executor.sleeping import SleepingWorker
from bfpp.executor.worker import Worker


def meet(place: Place, job: Job) -> float:
    """Join the other processes, if there can be any; by how many seconds this clock is ahead.

    Of the first process's clock, that is.
    """
    if job.backend is BackendName.LOCAL:
        return 0.0
    join(place)
    return measure_offset().nanoseconds / 1e9


def make_backend(plan: Plan, job: Job, place: Place) -> Backend:
    """A plan's workers in this process, as a job runs them; all processes that have met do so."""
    return BACKENDS[job.backend](plan, job, place)


def _maker(job: Job) -> MakeWorker:
    return partial(SleepingWorker, sleeps=job.sleeps) if job.sleeps else Worker


def _local(plan: Plan, job: Job, place: Place) -> Backend:
    del place
    use_cores(job.workers)
    # Nothing blocks there but the cores, unless passes sleep, or wait for others of theirs. And
    # torch's flag that it compiles is one for all threads: others would take it for theirs.
    threads = None if job.sleeps or job.tp > 1 else 1 if job.compile else cores()
    device: DeviceRuntime = Streams(job.local_device()) if job.uses_gpu else Threads(threads)
    return LocalBackend(plan, device, _maker(job))


def _cpu(plan: Plan, job: Job, place: Place) -> Backend:
    return _distributed(plan, job, place, Threads(), "gloo")


def _cuda(plan: Plan, job: Job, place: Place) -> Backend:
    device = Streams(torch.device("cuda", place.local))
    return _distributed(plan, job, place, device, "nccl")


def _torch_pipelining(plan: Plan, job: Job, place: Place) -> Backend:
    del job
    from bfpp.executor.backends.torch_pipelining import TorchPipeliningBackend

    return TorchPipeliningBackend(plan, Threads(), "gloo", place.timeout)


def _distributed(plan: Plan, job: Job, place: Place, device: DeviceRuntime, kind: str) -> Backend:
    checks = job.checks_messages
    return DistributedBackend(plan, device, kind, _maker(job), checks, place.timeout)


BACKENDS: dict[BackendName, Callable[[Plan, Job, Place], Backend]] = {
    BackendName.LOCAL: _local,
    BackendName.CPU: _cpu,
    BackendName.CUDA: _cuda,
    BackendName.TORCH_PIPELINING: _torch_pipelining,
}
