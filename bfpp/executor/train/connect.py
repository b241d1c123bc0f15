"""The backend that a job asks for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from bfpp.executor.devices.lanes import DeviceRuntime, Streams, Threads
from bfpp.executor.dispatch.backend import Backend, MakeWorker
from bfpp.executor.dispatch.backends.distributed import DistributedBackend
from bfpp.executor.dispatch.backends.local import LocalBackend
from bfpp.executor.dispatch.mock_worker import MockWorker
from bfpp.executor.dispatch.worker import Worker
from bfpp.executor.plan.plan import Plan
from bfpp.executor.processes import ProcessContext, cores, join, measure_offset, use_cores
from bfpp.executor.settings import BackendName
from bfpp.executor.train.job import Job


def init_process_group(context: ProcessContext, job: Job) -> float:
    """Join the other processes, if there can be any.

    Returns the offset of this clock from the first process's, in seconds.
    """
    if job.backend is BackendName.LOCAL:
        return 0.0
    join(context)
    return measure_offset().nanoseconds / 1e9


def make_backend(plan: Plan, job: Job, context: ProcessContext) -> Backend:
    """A plan's workers in this process, as a job runs them; a collective call."""
    return BACKENDS[job.backend](plan, job, context)


def _maker(job: Job) -> MakeWorker:
    return partial(MockWorker, sleeps=job.sleeps) if job.sleeps else Worker


def _local(plan: Plan, job: Job, context: ProcessContext) -> Backend:
    del context
    use_cores(job.workers)
    # Nothing blocks there but the cores, unless passes sleep, or wait for others of theirs. And
    # torch's flag that it compiles is one for all threads: others would take it for theirs.
    threads = None if job.sleeps or job.tp > 1 else 1 if job.compile else cores()
    device: DeviceRuntime = Streams(job.local_device()) if job.uses_gpu else Threads(threads)
    return LocalBackend(plan, device, _maker(job))


def _cpu(plan: Plan, job: Job, context: ProcessContext) -> Backend:
    return _distributed(plan, job, context, Threads(), "gloo")


def _cuda(plan: Plan, job: Job, context: ProcessContext) -> Backend:
    device = Streams(torch.device("cuda", context.local))
    return _distributed(plan, job, context, device, "nccl")


def _torch_pipelining(plan: Plan, job: Job, context: ProcessContext) -> Backend:
    from bfpp.executor.dispatch.backends.torch_pipelining import TorchPipeliningBackend

    return TorchPipeliningBackend(plan, Threads(), "gloo", context.timeout, job.sleeps)


def _distributed(
    plan: Plan, job: Job, context: ProcessContext, device: DeviceRuntime, kind: str
) -> Backend:
    checks = job.checks_messages
    return DistributedBackend(plan, device, kind, _maker(job), checks, context.timeout)


BACKENDS: dict[BackendName, Callable[[Plan, Job, ProcessContext], Backend]] = {
    BackendName.LOCAL: _local,
    BackendName.CPU: _cpu,
    BackendName.CUDA: _cuda,
    BackendName.TORCH_PIPELINING: _torch_pipelining,
}
