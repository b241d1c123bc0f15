"""A rank's passes and transfers by PyTorch's own runtime, torch.distributed.pipelining.

The order is handed over as its file of actions; stages are our layers, with their parameters and
gradients in our buffers. All else (batches, reductions over replicas, norms, the optimizer,
checkpoints) is as with other backends. The runtime does a whole step at once: the first pass of a
rank runs it, and the tasks of the other passes and of transfers find nothing left to do. So
reductions wait for all passes. Stages report when their passes began and ended; transfers have no
times of their own.

`torch.distributed.pipelining` is not stable: what is used of it is that of torch 2.13.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from bfpp.executor.devices.lanes import DeviceRuntime
from bfpp.executor.devices.messages import Cell, Form
from bfpp.executor.dispatch.backends.distributed import DistributedBackend
from bfpp.executor.dispatch.mock_worker import Sleeper
from bfpp.executor.dispatch.worker import Taken, Worker
from bfpp.executor.plan.plan import Plan
from bfpp.executor.plan.process_groups import Purpose
from bfpp.executor.settings import Activations, Sleeps
from bfpp.schedules import P2P, InvalidConfiguration, Operation, Sharding, Task, TaskGraph
from bfpp.schedules.columns import NONE
from bfpp.schedules.formats.torch_csv import write_orders
from bfpp.schedules.orders.steps import STEP, Order

OWN_POSTS = (P2P.CHANNELS, P2P.POSTED)
"""What may be asked for: nothing of its own, or what it does."""


def require_runnable(plan: Plan) -> None:
    """Raise `InvalidConfiguration` for plans that PyTorch's runtime cannot run, or not exactly."""
    layout, communication = plan.graph.layout, plan.graph.communication
    forward = (plan.graph.operation == Operation.FORWARD) & (plan.graph.unit == layout.units - 1)
    order = plan.graph.microbatch[forward]
    reasons = {
        "activations": ("keeps activations", plan.activations is not Activations.KEEP),
        "evaluation": ("trains alone here", plan.forward_graph is not None),
        "tied_embeddings": ("adds up no gradients of two stages", bool(plan.tied)),
        "p2p": ("posts transfers in its own way", communication.p2p not in OWN_POSTS),
        "sharding": (
            "shards with FSDP's modules alone",
            communication.sharding is not Sharding.NONE,
        ),
        "tp": ("runs whole layers", plan.tp > 1),
        "pp_overlap": ("overlaps transfers", not communication.pp_overlap),
        "copies": ("has one copy of a stage", bool(layout.copies)),
        "offload": ("offloads nothing", communication.offload > 0),
        "compile": ("runs layers uncompiled here", plan.compile),
        "precision": (
            "adds gradients up in the precision of the weights",
            plan.gradient_dtype is not plan.dtype,
        ),
        "model": (
            "draws other random numbers, and sends a single tensor between stages",
            bool(plan.traced.random) or not all(map(_is_tensor, _outputs(plan))),
        ),
        # It looks a loss up by the micro-batch's number, in the order of the forward passes.
        "schedule": ("takes the last stage's micro-batches in order", any(np.diff(order) < 0)),
    }
    for field, (reason, is_refused) in reasons.items():
        if is_refused:
            raise InvalidConfiguration(field, f"PyTorch's runtime {reason}")


def _outputs(plan: Plan) -> list[Form]:
    return [plan.traced.inputs, *plan.forms]


def _is_tensor(form: Form) -> bool:
    return form.tree.is_leaf()


class RuntimeWorker(Worker):
    """A rank whose passes are PyTorch's: all of a step's at the first of them."""

    run_step: Callable[..., object]
    is_over = False
    latest = NONE
    worked = 0.0
    """CPU time of the thread at the end of the pass before."""

    @cached_property
    def number_of(self) -> dict[tuple[Operation, int, int], int]:
        """The task of a stage's pass: of several, one for each unit, the first."""
        own = [self.plan.graph.task(each) for each in self.plan.graph.compute_tasks.of(self.rank)]
        return {(each.operation, each.stage, each.microbatch): each.number for each in own[::-1]}

    def begin(self, step: int, plan: Plan) -> None:
        """Load the step's batch."""
        super().begin(step, plan)
        self.is_over = False
        self.own_times = {}

    @contextmanager
    def taking(self, operation: Operation, stage: int, microbatch: int) -> Iterator[None]:
        """Report when a stage's pass began and ended, and the work of the runtime before it."""
        begin, work = time.perf_counter(), time.thread_time() - self.worked
        yield
        self.latest = self.number_of[operation, stage, microbatch]
        self.own_times[self.latest] = Taken(begin - work, begin, time.perf_counter())
        self.worked = time.thread_time()

    def go_on(self) -> None:
        """Let the pass that was reported last end now."""
        taken = self.own_times[self.latest]
        self.own_times[self.latest] = taken._replace(end=time.perf_counter())
        self.worked = time.thread_time()

    def forward(self, task: Task) -> None:
        """Run all passes of the step, and the transfers between them, unless they were run."""
        del task
        if self.is_over:
            return
        self.is_over = True
        microbatches = range(self.plan.graph.layout.microbatches)
        inputs = [
            self.inputs.pop(Cell(0, each)).tensors[0] for each in microbatches if 0 in self.units
        ]
        targets = [self.targets[each] for each in microbatches if each in self.targets]
        losses: list[Tensor] = []
        self.worked = time.thread_time()
        self.run_step(
            *([torch.cat(inputs)] if inputs else []),
            target=torch.cat(targets) if targets else None,
            losses=losses,
            return_outputs=False,
        )
        for microbatch, loss in enumerate(losses):
            self.losses[microbatch] = loss.detach()
            self._mark_bad_loss(Cell(self.plan.graph.layout.units - 1, microbatch))

    backward = backward_input = backward_weight = forward


class TimedStage(PipelineStage):
    """A stage that reports when its passes begin and end."""

    worker: RuntimeWorker

    def forward_one_chunk(self, fwd_chunk_id: int, *rest: Any, **more: Any) -> Any:
        """A micro-batch's forward pass, without its loss."""
        with self.worker.taking(Operation.FORWARD, self.stage_index, fwd_chunk_id):
            return super().forward_one_chunk(fwd_chunk_id, *rest, **more)

    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: Any = None,
        full_backward: bool = True,
        *rest: Any,
        **more: Any,
    ) -> None:
        """A micro-batch's backward pass, or its input half."""
        operation = Operation.BACKWARD if full_backward else Operation.BACKWARD_INPUT
        with self.worker.taking(operation, self.stage_index, bwd_chunk_id):
            super().backward_one_chunk(bwd_chunk_id, loss, full_backward, *rest, **more)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *rest: Any, **more: Any) -> None:
        """A micro-batch's weight half."""
        with self.worker.taking(Operation.BACKWARD_WEIGHT, self.stage_index, bwd_chunk_id):
            super().backward_weight_one_chunk(bwd_chunk_id, *rest, **more)


class SleepingStage(TimedStage):
    """A stage whose passes sleep and return zeros, as those of `MockWorker` do."""

    seconds: Mapping[str, float]
    """By the runtime's names of passes."""

    sleeper: Sleeper
    output: Tensor

    def forward_maybe_with_nosync(self, *_: Tensor, **__: object) -> Tensor:
        """Zeros, after the given time."""
        with self.sleeper.taking(self.seconds["forward"]):
            return torch.zeros_like(self.output)

    def backward_maybe_with_nosync(
        self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> tuple[tuple[Tensor | None, ...], None]:
        """Zeros, after the given time."""
        del last_backward
        with self.sleeper.taking(self.seconds[backward_type]):
            inputs = bwd_kwargs.get("input_values", ())
            return tuple(torch.zeros_like(each) for each in inputs), None


class TorchPipeliningBackend(DistributedBackend):
    """The worker of this process, its process groups, and PyTorch's runtime on them."""

    posts_batches = False
    worker: RuntimeWorker

    def __init__(
        self,
        plan: Plan,
        device: DeviceRuntime,
        kind: str,
        timeout: timedelta,
        sleeps: Sleeps | None = None,
    ) -> None:
        self.sleeps = sleeps
        super().__init__(plan, device, kind, RuntimeWorker, timeout=timeout)
        self.worker.prepare()
        self.worker.run_step = self._runtime().step

    def transfer(self, task: Task, workers: Sequence[Worker]) -> None:
        """The runtime has its own."""

    def _runtime(self) -> Any:
        """PyTorch's runtime, with this rank's stages and the order of all ranks."""
        graph = self.plan.graph
        stages = [self._stage(number) for number in graph.layout.stages_of(self.worker.rank)]
        runtime = _PipelineScheduleRuntime(
            stages, graph.layout.microbatches, loss_fn=self._loss, scale_grads=False
        )
        with TemporaryDirectory() as directory:
            file = Path(directory) / "orders.csv"
            file.write_text(write_orders(orders_of(graph)))
            runtime._load_csv(str(file))
        return runtime

    def _stage(self, number: int) -> PipelineStage:
        """A stage's units, with weights and gradients in the one buffer that each has of them."""
        layout = self.plan.graph.layout
        units = np.flatnonzero(layout.stage_of_unit == number).tolist()
        layers: list[nn.Module] = []
        for unit in units:
            (gradients,) = self.worker.units[unit].gradients
            self.worker.units[unit].add_to(gradients)
            layers += self.worker.units[unit].layers.values()
        given = self.plan.forms[units[0] - 1] if number else self.plan.traced.inputs
        output = self._example(self.plan.forms[units[-1]], has_gradient=True)
        stage = (SleepingStage if self.sleeps else TimedStage)(
            nn.Sequential(*layers),
            number,
            layout.stages,
            self.device.device,
            input_args=self._example(given, has_gradient=number > 0),
            output_args=output,
            group=self.group_of[Purpose.PIPELINE],
        )
        stage.worker = self.worker
        if isinstance(stage, SleepingStage):
            stage.seconds, stage.sleeper, stage.output = self._asleep(units), Sleeper(), output
        return stage

    def _asleep(self, units: Sequence[int]) -> dict[str, float]:
        """Seconds of a stage's passes."""
        assert self.sleeps is not None  # noqa: S101
        passes = {
            "forward": self.sleeps.forward,
            "full": self.sleeps.backward,
            "input": self.sleeps.backward_input,
            "weight": self.sleeps.backward_weight,
        }
        return {name: sum(of_units[unit] for unit in units) for name, of_units in passes.items()}

    def _example(self, form: Form, has_gradient: bool) -> Tensor:
        (shape,) = form.values.parts
        is_number = shape.dtype.is_floating_point
        dtype = self.plan.dtype if is_number else shape.dtype
        return torch.empty(shape.size, dtype=dtype, requires_grad=has_gradient)

    def _loss(self, output: Tensor, targets: Tensor) -> Tensor:
        if self.sleeps:
            return torch.zeros(())
        loss = self.plan.model.loss(output, targets) / self.plan.microbatches
        self.worker.go_on()
        return loss


def orders_of(graph: TaskGraph) -> list[Order]:
    """The steps of each rank, in its order: one for a stage's units, which are run in turn."""
    begins_block = graph.block == np.arange(len(graph))
    columns = (graph.operation, graph.stage, graph.microbatch, begins_block)
    orders = []
    for rank in range(graph.layout.pp):
        chosen = graph.is_compute & (graph.rank == rank)
        fused: dict[tuple[int, ...], bool] = {}
        for *step, begins in zip(*(column[chosen].tolist() for column in columns), strict=True):
            fused[*step] = begins or fused.get((*step,), False)
        orders.append(np.array([(*step, each) for step, each in fused.items()], dtype=STEP))
    return orders
