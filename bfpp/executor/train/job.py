"""A training run, in values that can be sent to another process."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace

import torch

from bfpp.executor.devices.compiled import require_compilable, require_compiler
from bfpp.executor.devices.devices import device_named
from bfpp.executor.dispatch.cuda_graphs import require_capturable
from bfpp.executor.model.sources import ModelSource
from bfpp.executor.plan.plan import Plan
from bfpp.executor.settings import BackendName, Saving, Sleeps, Training
from bfpp.schedules import Communication, InvalidConfiguration, Layout, Schedule, build_graph
from bfpp.schedules.settings.offloading import OFF


@dataclass(frozen=True)
class Job(Training):
    """A schedule, a model to train with it, and how it is run."""

    schedule: Schedule
    layout: Layout
    communication: Communication
    model: ModelSource
    steps: int
    backend: BackendName = BackendName.CPU
    device: str = "cpu"
    saving: Saving | None = None
    collects_weights: bool = False
    sleeps: Sleeps | None = None
    checks_messages: bool = False
    times_tasks: bool = True
    cuda_graphs: bool = False

    @property
    def measures_memory(self) -> bool:
        """True if all allocations of its passes are seen: they are our own, and not compiled."""
        is_ours = self.backend is not BackendName.TORCH_PIPELINING
        return is_ours and self.sleeps is None and not self.compile

    @property
    def workers(self) -> int:
        """The number of devices."""
        return self.layout.pp * self.dp * self.tp

    @property
    def processes(self) -> int:
        """The number of processes."""
        return 1 if self.backend is BackendName.LOCAL else self.workers

    @property
    def processes_here(self) -> int:
        """The number of processes on this machine."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", self.processes))

    def ranks_of(self, process: int) -> list[int]:
        """The pipeline ranks of a process's workers, in the order in which it makes them."""
        if self.backend is BackendName.LOCAL:
            return [*range(self.layout.pp)] * (self.dp * self.tp)
        return [process // (self.dp * self.tp)]

    def plan(self) -> Plan:
        """The plan, the same in every process.

        Raises `InvalidConfiguration` for what PyTorch's runtime, its compiler or a CUDA graph
        cannot run, if that is asked for.
        """
        given = self.schedule, self.layout, self.communication
        keeps_all = replace(self.communication, offload=OFF)
        evaluating = self.schedule, self.layout, keeps_all
        forward = build_graph(*evaluating, evaluates=True) if self.evaluation else None
        training = {each.name: getattr(self, each.name) for each in fields(Training)}
        plan = Plan(build_graph(*given), self.model.load(self.seed), forward, **training)
        if self.backend is BackendName.TORCH_PIPELINING:
            from bfpp.executor.dispatch.backends.torch_pipelining import require_runnable

            require_runnable(plan)
        if self.checks_messages and self.communication.in_groups:
            raise InvalidConfiguration(
                "check_messages", "announces messages one by one: not with --p2p batched, coalesced"
            )
        if self.compile:
            is_local = self.backend is BackendName.LOCAL
            require_compilable(plan.graph, waits=is_local and plan.tp > 1)
        if self.cuda_graphs:
            require_capturable(plan, self.uses_gpu, self.checks_messages)
        return plan

    def require_devices(self) -> None:
        """Raise `InvalidConfiguration` unless this machine has the devices that it asks for.

        And what it takes to compile for them.
        """
        gpus = torch.cuda.device_count()
        if self.backend is BackendName.CUDA and gpus < (here := self.processes_here):
            raise InvalidConfiguration(
                "backend", f"cuda takes a GPU for each of {here} ranks on this machine, not {gpus}"
            )
        device = self.local_device()
        if self.backend is BackendName.LOCAL and device.type == "cuda" and self.tp > 1:
            raise InvalidConfiguration(
                "tp", "--backend local runs tensor-parallel ranks on a CPU: --backend cuda, or cpu"
            )
        if self.compile:
            require_compiler(self.uses_gpu)

    @property
    def uses_gpu(self) -> bool:
        """True if it computes on GPUs."""
        is_local = self.backend is BackendName.LOCAL
        return self.local_device().type == "cuda" if is_local else self.backend is BackendName.CUDA

    def local_device(self) -> torch.device:
        """The device of all ranks."""
        return device_named(self.device)
