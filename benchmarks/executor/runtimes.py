"""Our runtime beside PyTorch's own: the same model, batches and processes, at two sizes.

Next to torch.distributed.pipelining with a pipeline, next to DDP and FSDP2 without one. Both take
turns in the same processes, for a step's time and its CPU time; memory is that of processes that
run one of them: what they allocate, and what the system counts as theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from statistics import median
from time import perf_counter, process_time
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from benchmarks.executor.prediction import WARM_UP
from benchmarks.helpers.measure import Results, allocated_at_most, forget_peak_memory, memory
from bfpp.executor.model.sources import TransformerSource
from bfpp.executor.model.transformer.transformer import TransformerSizes
from bfpp.executor.plan.plan import Plan
from bfpp.executor.processes import ProcessContext, launch
from bfpp.executor.settings import Activations, BackendName
from bfpp.executor.train.connect import init_process_group
from bfpp.executor.train.job import Job
from bfpp.executor.train.watching import connected, watched
from bfpp.schedules import Communication, Layout, Sharding, find_schedule

STEPS, TURNS, LAYERS, MICROBATCHES = 2, 4, 8, 4
WIDTHS = {"small": 128, "large": 512}


class Case(NamedTuple):
    """What runs by both: by ranks of a pipeline, or replicas of the whole model."""

    theirs: str
    schedule: str = "1f1b"
    ranks: int = 1
    replicas: int = 1
    sharding: Sharding = Sharding.NONE

    def job(self, width: int) -> Job:
        schedule = find_schedule(self.schedule)
        loops = LAYERS // self.ranks if schedule.looped else 1
        units = 1 if self.ranks > 1 else LAYERS
        sizes = TransformerSizes(
            layers=LAYERS, hidden=width, heads=4, kv_heads=4, context=128, vocabulary=257,
            mlp=4 * width,
        )  # fmt: skip
        return Job(
            schedule=schedule,
            layout=Layout(self.ranks, MICROBATCHES, loops, units_per_stage=units),
            communication=Communication(self.sharding),
            model=TransformerSource(sizes, None),
            steps=STEPS,
            dp=self.replicas,
            microbatch_size=2,
            activations=Activations.KEEP,
        )


CASES = (
    Case("pipelining, 1F1B", ranks=2),
    Case("pipelining, breadth-first", "breadth-first", ranks=2),
    Case("pipelining, ZB-H1", "zb-h1", ranks=2),
    Case("pipelining, 1F1B, 2 replicas", ranks=2, replicas=2),
    Case("DDP", replicas=2),
    Case("FSDP2", replicas=2, sharding=Sharding.FULL),
    Case("DDP", replicas=4),
    Case("FSDP2", replicas=4, sharding=Sharding.FULL),
)


class Steps(NamedTuple):
    """Of some steps of one process: the losses, the median seconds, and the mean CPU time."""

    losses: list[float]
    seconds: float
    cpu: float


Run = Callable[[ProcessContext, Plan, Job, float], Steps]
"""By ours or by theirs, in one of the processes; with the offset of its clock in seconds."""


def ours(context: ProcessContext, plan: Plan, job: Job, clock_offset: float) -> Steps:
    with connected(context, plan, job, clock_offset) as trainer:
        reports = watched(context, trainer, range(WARM_UP + STEPS))
        return measured(report.loss for report in reports)


def theirs(context: ProcessContext, plan: Plan, job: Job, clock_offset: float) -> Steps:
    if job.layout.pp > 1:
        return ours(context, plan, replace(job, backend=BackendName.TORCH_PIPELINING), clock_offset)
    return measured(plain_steps(plan, context.process))


def measured(losses: Iterator[float]) -> Steps:
    """Times of steps, one by one, after the warm-up."""
    for _ in range(WARM_UP):
        next(losses)
    found, seconds, cpu = [], [], process_time()
    for _ in range(STEPS):
        begun = perf_counter()
        found.append(next(losses))
        seconds.append(perf_counter() - begun)
    cpu = process_time() - cpu
    for _ in losses:
        pass
    return Steps(found, median(seconds), cpu / STEPS)


def plain_steps(plan: Plan, replica: int) -> Iterator[float]:
    """The loss of each step by DDP or FSDP2, as their documentation has it."""
    model = wrapped(plan)
    options = plan.optimization
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay
    )
    for step in range(WARM_UP + STEPS):
        total = torch.zeros(())
        for number in range(MICROBATCHES):
            inputs, targets = plan.batch(step, replica, number)
            with accumulating(model, is_last=number == MICROBATCHES - 1):
                loss = plan.model.loss(model(inputs), targets) / MICROBATCHES
                loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        yield total.item() / plan.dp


def wrapped(plan: Plan) -> DistributedDataParallel | FSDPModule:
    """The model in DDP; in FSDP2, layer by layer, where it is sharded."""
    model = nn.Sequential(*plan.build(range(len(plan.model.layers))).values())
    if not plan.is_sharded:
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    mesh = init_device_mesh("cpu", (plan.dp,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def accumulating(
    model: DistributedDataParallel | FSDPModule, *, is_last: bool
) -> AbstractContextManager[None]:
    """Gradients are reduced with those of the last micro-batch."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(is_last)
    elif not is_last:
        return model.no_sync()
    return nullcontext()


def take_turns(context: ProcessContext, job: Job) -> list[tuple[Steps, Steps]]:
    """Turn by turn, some steps by each; they begin in alternation."""
    clock_offset, plan = init_process_group(context, job), job.plan()
    found = []
    for turn in range(TURNS):
        begins, follows = (ours, theirs) if turn % 2 else (theirs, ours)
        both = {run: run(context, plan, job, clock_offset) for run in (begins, follows)}
        found.append((both[ours], both[theirs]))
    return found


class Memory(NamedTuple):
    """By how many MB the memory of a process that does nothing else rises at its peak."""

    allocated: float
    resident: float


def peak(context: ProcessContext, work: tuple[Run, Job]) -> Memory:
    """Of each kind, that of the process with the most."""
    run, job = work
    clock_offset, plan = init_process_group(context, job), job.plan()
    forget_peak_memory()
    before = memory("VmRSS")
    with allocated_at_most() as allocated:
        run(context, plan, job, clock_offset)
    own = Memory(allocated.bytes / 1e6, (memory("VmHWM") - before) / 1e6)
    every: list[Memory] = [own] * dist.get_world_size()
    dist.all_gather_object(every, own)
    return Memory(*map(max, zip(*every, strict=True)))


def row(case: Case, size: str) -> dict[str, object]:
    job = case.job(WIDTHS[size])
    processes = case.ranks * case.replicas
    turns = launch(take_turns, job, processes) or []
    peaks = [launch(peak, (run, job), processes) or Memory(0, 0) for run in (ours, theirs)]
    apart = max(
        abs(one / other - 1)
        for turn in turns
        for one, other in zip(turn[0].losses, turn[1].losses, strict=True)
    )

    def ratio(name: str) -> str:
        return f"{median(getattr(own, name) / getattr(other, name) for own, other in turns):.2f}"

    def shown(kind: str) -> str:
        return " and ".join(f"{getattr(each, kind):.0f}" for each in peaks)

    return {
        "size": size,
        "theirs": case.theirs,
        "processes": processes,
        "losses differ by": f"{apart:.0e}",
        "ours (ms)": f"{1e3 * median(own.seconds for own, _ in turns):.0f}",
        "theirs (ms)": f"{1e3 * median(other.seconds for _, other in turns):.0f}",
        "ours / theirs": ratio("seconds"),
        "CPU, ours / theirs": ratio("cpu"),
        "allocated, ours and theirs (MB)": shown("allocated"),
        "resident, ours and theirs (MB)": shown("resident"),
    }


def run() -> Results:
    return Results(
        "Our runtime and PyTorch's pipelining, DDP and FSDP2",
        "equal losses, and at most the same time, CPU time and memory",
        [row(case, size) for size in WIDTHS for case in CASES],
        [
            f"{TURNS} turns of {STEPS} steps with batches and updates; medians of the turns.",
            f"{LAYERS} layers of {' and '.join(map(str, WIDTHS.values()))}.",
            f"{MICROBATCHES} micro-batches a step of 2 x 128 tokens.",
            "Times are the first process's, memory is that of the process with the most.",
            "Memory is by how much it rises where nothing else was done.",
        ],
    )
