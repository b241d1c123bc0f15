"""On one GPU: our runtime next to plain loops of PyTorch, with the same layers, loss and batches.

A plain loop runs micro-batches one by one: BF16 layers whose gradients are added up in float32, and
AdamW on weights in float32; uncompiled, with compiled layers, and in FSDP2 with one process. Ours
runs one rank with one or more stages, compiled, as a CUDA graph, and several ranks as streams of
one GPU.

`BFPP_GPU_SECONDS` limits about how long all of it takes.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import median
from time import perf_counter, process_time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from benchmarks.helpers.measure import Results
from bfpp.executor.devices.compiled import compile_layers, compiled_loss
from bfpp.executor.devices.lanes import Mark, Streams
from bfpp.executor.dispatch.backends.local import LocalBackend
from bfpp.executor.model.sources import TransformerSource
from bfpp.executor.model.transformer.transformer import TransformerSizes
from bfpp.executor.plan.plan import Plan
from bfpp.executor.processes.environment import STREAMS
from bfpp.executor.settings import Activations, BackendName, DType, Optimization
from bfpp.executor.train.job import Job
from bfpp.executor.train.trainer import QUEUED, Trainer
from bfpp.schedules import Communication, Layout, Sharding, find_schedule

SECONDS = float(os.environ.get("BFPP_GPU_SECONDS", "150"))
DEVICE = torch.device("cuda", 0)
WARM_UP, LEAST, MOST = 3, 3, 20
"""Steps that do not count, and at least and at most how many do."""

MFU = "six operations a token and weight but the embedding's, and attention to earlier tokens"
H100 = 989.4e12
"""Dense BF16 operations a second of an H100 SXM, by NVIDIA's data sheet."""


@dataclass(frozen=True)
class Size:
    """A model as Llama is, and its batch."""

    name: str
    sizes: TransformerSizes
    microbatches: int
    samples: int

    @property
    def tokens(self) -> int:
        """Of a step."""
        return self.microbatches * self.samples * self.sizes.context

    @property
    def operations(self) -> float:
        """Of a step's products with weights, and of attention to earlier tokens."""
        sizes = self.sizes
        attention = 2 * (1 + sizes.kv_heads / sizes.heads) * sizes.hidden**2
        block = attention + 3 * sizes.hidden * sizes.mlp
        weights = sizes.layers * block + sizes.hidden * sizes.vocabulary
        return self.tokens * 6 * (weights + sizes.layers * sizes.hidden * sizes.context)


def llama(vocabulary: int = 32_000, **sizes: int) -> TransformerSizes:
    return TransformerSizes(
        **sizes,
        vocabulary=vocabulary,
        gated=True,
        norm="rms",
        positions="rotary",
        biases=False,
        query_biases=False,
    )


SIZES = [
    Size(
        "20 M, 16 micro-batches of 4 x 256 tokens",
        llama(layers=8, hidden=256, heads=4, kv_heads=4, mlp=1024, context=256),
        microbatches=16,
        samples=4,
    ),
    Size(
        "1.1 B, 4 micro-batches of 2 x 2,048 tokens",
        llama(layers=16, hidden=2048, heads=16, kv_heads=8, mlp=8192, context=2048),
        microbatches=4,
        samples=2,
    ),
]


def job_of(
    size: Size,
    schedule: str = "1f1b",
    ranks: int = 1,
    loops: int = 1,
    sharding: Sharding = Sharding.NONE,
    compiled: bool = False,
    cuda_graphs: bool = False,
) -> Job:
    return Job(
        schedule=find_schedule(schedule),
        layout=Layout(ranks, size.microbatches, loops),
        communication=Communication(sharding),
        model=TransformerSource(size.sizes),
        steps=0,
        backend=BackendName.LOCAL,
        device="cuda",
        microbatch_size=size.samples,
        precision=DType.BFLOAT16,
        activations=Activations.KEEP,
        optimization=Optimization(arguments=(("fused", True),)),
        compile=compiled,
        cuda_graphs=cuda_graphs,
    )


Steps = Iterator[float]
"""The loss of each step, once the host knows it: it may be `QUEUED` steps ahead."""


class Host:
    """The CPU time of this process, without waiting for the GPU, which would count as busy."""

    def __init__(self) -> None:
        self.waited = 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        begun = process_time()
        yield
        self.waited += process_time() - begun

    def seconds(self) -> float:
        return process_time() - self.waited


HOST = Host()


class AwaitedStreams(Streams):
    """Streams whose waits do not count as CPU time of the host."""

    def finish(self, marks: list[Mark]) -> None:
        with HOST.waiting():
            super().finish(marks)


@contextmanager
def drawn_there(plan: Plan) -> Iterator[None]:
    """Initial weights are drawn on the GPU: for a large model the host would take long."""
    _ = plan.traced
    with DEVICE:
        yield


@contextmanager
def ours(size: Size, **how: object) -> Iterator[Steps]:
    job = job_of(size, **how)  # type: ignore[arg-type]
    plan = job.plan()
    with drawn_there(plan):
        backend = LocalBackend(plan, AwaitedStreams(DEVICE))
    trainer = Trainer(plan, backend, times=False, cuda_graphs=job.cuda_graphs)
    try:
        yield (report.loss for report in trainer.run(range(10**6)))
    finally:
        trainer.close()


@contextmanager
def plain(size: Size, compiled: bool = False) -> Iterator[Steps]:
    plan = job_of(size).plan()
    model = built(plan)
    masters = [parameter.detach().clone() for parameter in model.parameters()]
    sums = [torch.zeros_like(master) for master in masters]
    for master, total in zip(masters, sums, strict=True):
        master.grad = total
    model.to(torch.bfloat16)
    used = [parameter.detach() for parameter in model.parameters()]
    optimizer = adamw(plan, masters)

    def accumulate() -> None:
        torch._foreach_add_(sums, [each.grad for each in model.parameters()])
        model.zero_grad()

    def update() -> None:
        optimizer.step()
        torch._foreach_zero_(sums)
        torch._foreach_copy_(used, masters)

    yield looped(plan, model, compiled, accumulate=accumulate, update=update)


@contextmanager
def fsdp(size: Size, compiled: bool = False) -> Iterator[Steps]:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531"}
    dist.init_process_group("nccl", rank=0, world_size=1)
    try:
        yield sharded(job_of(size).plan(), compiled)
    finally:
        dist.destroy_process_group()


def sharded(plan: Plan, compiled: bool) -> Steps:
    """Gradients are reduced with those of the last micro-batch."""
    model = built(plan)
    mesh = init_device_mesh("cuda", (1,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    whole = fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = adamw(plan, [*model.parameters()])

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return looped(plan, model, compiled, begin=whole.set_requires_gradient_sync, update=update)


def built(plan: Plan) -> nn.Sequential:
    with drawn_there(plan):
        return nn.Sequential(*plan.build(range(len(plan.model.layers))).values())


def adamw(plan: Plan, parameters: list[Tensor] | list[nn.Parameter]) -> torch.optim.AdamW:
    options = plan.optimization
    return torch.optim.AdamW(
        parameters, lr=options.learning_rate, weight_decay=options.weight_decay, fused=True
    )


def looped(
    plan: Plan,
    model: nn.Sequential,
    compiled: bool,
    *,
    begin: Callable[[bool], object] = lambda _: None,
    accumulate: Callable[[], object] = lambda: None,
    update: Callable[[], object],
) -> Steps:
    """A plain loop; `begin` is called with whether a micro-batch is the last one of its step."""
    loss_of = plan.model.loss
    if compiled:
        compile_layers(model, varies=False)
        loss_of = compiled_loss(loss_of, varies=False)
    under_way: list[Tensor] = []
    for step in range(10**6):
        total = torch.zeros((), device=DEVICE)
        for number in range(plan.microbatches):
            inputs, targets = (
                each.pin_memory().to(DEVICE, non_blocking=True)
                for each in plan.batch(step, 0, number)
            )
            begin(number == plan.microbatches - 1)
            loss = loss_of(model(inputs), targets) / plan.microbatches
            loss.backward()
            accumulate()
            total += loss.detach()
        update()
        under_way.append(total)
        if len(under_way) > QUEUED:
            with HOST.waiting():
                loss = under_way.pop(0).item()
            yield loss


WAYS: dict[str, Callable[[Size], AbstractContextManager[Steps]]] = {
    "plain loop": plain,
    "ours": ours,
    "ours, CUDA graphs": partial(ours, cuda_graphs=True),
    "plain loop, compiled": partial(plain, compiled=True),
    "ours, compiled": partial(ours, compiled=True),
    "ours, compiled, CUDA graphs": partial(ours, compiled=True, cuda_graphs=True),
    "FSDP2": fsdp,
    "ours, 4 ranks, 1F1B": partial(ours, ranks=4),
    "ours, 4 ranks, 1F1B, CUDA graphs": partial(ours, ranks=4, cuda_graphs=True),
    "ours, 4 stages, sharded": partial(
        ours, schedule="breadth-first", loops=4, sharding=Sharding.FULL
    ),
    "ours, 4 ranks x 2, breadth-first": partial(ours, schedule="breadth-first", ranks=4, loops=2),
    "ours, 4 ranks x 2, breadth-first, CUDA graphs": partial(
        ours, schedule="breadth-first", ranks=4, loops=2, cuda_graphs=True
    ),
    "ours, 2 ranks, 1F1B": partial(ours, ranks=2),
    "ours, 2 ranks, 1F1B, CUDA graphs": partial(ours, ranks=2, cuda_graphs=True),
    "ours, 2 ranks x 2, breadth-first": partial(ours, schedule="breadth-first", ranks=2, loops=2),
    "FSDP2, compiled": partial(fsdp, compiled=True),
    "ours, 4 stages": partial(ours, schedule="breadth-first", loops=4),
}
"""The most important first, in case time runs out."""


def row(name: str, size: Size, seconds: float) -> dict[str, object]:
    """Times of steps, one by one, measured for about `seconds`."""
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    begun, before = perf_counter(), torch.cuda.memory_allocated()
    taken: list[float] = []
    cpu: list[float] = []
    with WAYS[name](size) as steps:
        losses = [next(steps) for _ in range(WARM_UP)]
        ready = perf_counter() - begun
        while len(taken) < LEAST or (len(taken) < MOST and sum(taken) < seconds):
            wall, used = perf_counter(), HOST.seconds()
            losses.append(next(steps))
            taken.append(perf_counter() - wall)
            cpu.append(HOST.seconds() - used)
    step = median(taken)
    return {
        "model and batch": size.name,
        "loop": name,
        "step (ms)": f"{1e3 * step:.1f}",
        "tokens/s": f"{size.tokens / step:,.0f}",
        "MFU (%)": f"{100 * size.operations / step / H100:.1f}",
        "host's CPU (ms)": f"{1e3 * median(cpu):.1f}",
        "peak memory (GiB)": f"{(torch.cuda.max_memory_allocated() - before) / 2**30:.2f}",
        "until warm (s)": f"{ready:.1f}",
        "loss": f"{losses[WARM_UP + LEAST - 1]:.4f}",
    }


def run() -> Results:
    os.environ |= STREAMS
    begun, rows = perf_counter(), []
    row("plain loop", SIZES[0], 0)  # loads libraries and kernels, and does not count
    for name, size in product(WAYS, SIZES):
        if perf_counter() - begun > SECONDS:
            break
        try:
            rows.append(row(name, size, SECONDS / len(WAYS) / 20))
        except torch.OutOfMemoryError as error:
            print(size.name, name, error, sep=" | ", flush=True)
        else:
            print(*rows[-1].values(), sep=" | ", flush=True)
    return Results(
        "Our runtime on one GPU, and plain loops of PyTorch",
        "the time of a plain loop",
        sorted(rows, key=lambda each: str(each["model and batch"]), reverse=True),
        [
            f"{torch.cuda.get_device_name()}, torch {torch.__version__}.",
            f"Medians of {LEAST} to {MOST} steps after {WARM_UP}; the host may be {QUEUED} ahead.",
            f"MFU: {MFU}, of {H100 / 1e12:.0f} T a second.",
        ],
    )
