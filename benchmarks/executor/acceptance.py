"""Losses of small language models in every precision, against those of a plain loop.

A pipeline of two ranks trains Llama-style models on the demonstration's text, all in this process.
The plain loop computes in the same precision, on the same batches; curves in 16 bits are compared
with the one in float32, too. Training amplifies rounding, whoever rounds: single losses are
compared over the first steps, and later their means over some steps.

And how far the gradients of many micro-batches in BF16 are from those in FP64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean
from time import perf_counter

import torch
from torch import Tensor, nn

from benchmarks.executor.gpu import llama
from benchmarks.helpers.measure import Results
from bfpp.executor.devices.lanes import Threads
from bfpp.executor.dispatch.backends.local import LocalBackend
from bfpp.executor.model.model import Layer, Model, make
from bfpp.executor.model.transformer.corpus import Text, default_text
from bfpp.executor.model.transformer.transformer import TransformerSizes, transformer
from bfpp.executor.plan.plan import Plan
from bfpp.executor.run.state import pieces_of
from bfpp.executor.settings import DType, LearningRates, Optimization
from bfpp.executor.train.reference import train_plainly
from bfpp.executor.train.trainer import Report, Trainer
from bfpp.schedules import Communication, Layout, Sharding, build_graph

CONTEXT = 64
LARGE = llama(vocabulary=257, layers=9, hidden=320, heads=8, kv_heads=4, mlp=864, context=CONTEXT)
SMALL = replace(LARGE, layers=5, hidden=128, mlp=344)
RUNS = (
    ("10 M", LARGE, 200, 2, 1, (DType.FLOAT32, DType.BFLOAT16)),
    ("1 M", SMALL, 50, 4, 2, (DType.FLOAT32, DType.FLOAT16)),
)
"""Models, their steps, micro-batches, samples in one, and precisions."""

FIRST, WINDOW = 50, 20
"""Steps whose losses are compared one by one; and as a mean, anywhere in the run."""

PLAIN, OTHER = 0.02, 0.05
"""The most that a loss or a mean may differ from the plain loop's, and a mean from float32's.

A step that float16 leaves out puts its curve a step behind: 0.03 where the loss falls fastest.
"""

MANY, GRADIENT = 256, 0.005
"""Micro-batches, and the error that their gradient may have in BF16, as a share of its norm."""


def plan_of(
    sizes: TransformerSizes, steps: int, microbatches: int, samples: int, precision: DType
) -> Plan:
    optimization = Optimization(
        1e-3, 0.1, clip=1.0, no_decay=("vectors",), rates=LearningRates("cosine", 10, steps, 0.1)
    )
    communication = Communication(Sharding.NONE, clipping=True)
    return Plan(
        build_graph("1f1b", Layout(2, microbatches), communication),
        transformer(sizes, Text(default_text(), CONTEXT, 0)),
        microbatch_size=samples,
        precision=precision,
        optimization=optimization.for_precision(precision),
    )


def trained(plan: Plan, steps: int) -> tuple[list[Report], LocalBackend]:
    backend = LocalBackend(plan, Threads())
    trainer = Trainer(plan, backend)
    reports = list(trainer.run(range(steps)))
    trainer.close()
    return reports, backend


def means(losses: Sequence[float]) -> list[float]:
    """Of every window of a curve."""
    return [mean(losses[first : first + WINDOW]) for first in range(len(losses) - WINDOW + 1)]


def apart(ones: Sequence[float], others: Sequence[float]) -> float:
    """The largest difference of two curves."""
    return max(abs(one - other) for one, other in zip(ones, others, strict=True))


def curves() -> Results:
    rows = []
    for name, sizes, steps, microbatches, samples, precisions in RUNS:
        exact: list[float] = []
        for precision in precisions:
            plan = plan_of(sizes, steps, microbatches, samples, precision)
            begin = perf_counter()
            reports, backend = trained(plan, steps)
            taken = perf_counter() - begin
            losses = [report.loss for report in reports]
            plain = train_plainly(plan, range(steps)).losses
            exact = exact or losses
            first = apart(losses[:FIRST], plain[:FIRST])
            throughout = apart(means(losses), means(plain))
            other = apart(means(losses), means(exact))
            parameters = sum(unit.flat.size for w in backend.workers for unit in w.units.values())
            rows.append(
                {
                    "model": f"{name} ({parameters:,} parameters)",
                    "precision": str(precision),
                    "steps": steps,
                    "tokens a step": microbatches * samples * CONTEXT,
                    "first loss": f"{losses[0]:.3f}",
                    f"mean of the last {WINDOW}": f"{means(losses)[-1]:.4f}",
                    f"first {FIRST} losses, from a plain loop's": f"{first:.1e}",
                    f"means of {WINDOW}, from a plain loop's": f"{throughout:.1e}",
                    f"means of {WINDOW}, from float32's": f"{other:.1e}",
                    "skipped steps": sum(bool(report.skipped) for report in reports),
                    "seconds a step": f"{taken / steps:.2f}",
                    "met": "yes" if max(first, throughout) < PLAIN and other < OTHER else "NO",
                }
            )
    return Results(
        "Small language models in several precisions",
        f"within {PLAIN} of a plain loop's curve, and {OTHER} of float32's, anywhere in the run",
        rows,
    )


# The gradient of many micro-batches


def rounded(layer: Layer, number: int) -> nn.Module:
    """A layer whose weights BF16 has, so that both precisions begin alike."""
    module = make(layer, number)
    for parameter in module.parameters():
        parameter.data = parameter.data.bfloat16().float()
    return module


def gradient(model: Model, precision: DType, microbatches: int) -> Tensor:
    """Gradient of the first step: ten times the optimizer's first moments after it."""
    graph = build_graph("gpipe", Layout(1, microbatches), Communication(Sharding.NONE))
    _, backend = trained(Plan(graph, model, precision=precision), 1)
    held = pieces_of(backend.workers)
    return torch.cat(
        [
            10 * piece.double()
            for name in sorted(held)
            if name.endswith("first moment")
            for _, piece in held[name].pieces
        ]
    )


def gradients(counts: Sequence[int] = (16, MANY)) -> Results:
    torch.manual_seed(0)
    given = transformer(SMALL, Text(default_text(), CONTEXT, 0))
    layers = [rounded(layer, number) for number, layer in enumerate(given.layers)]
    model = replace(given, layers=layers)
    rows = []
    for count in counts:
        exact = gradient(model, DType.FLOAT64, count)
        error = float((gradient(model, DType.BFLOAT16, count) - exact).norm() / exact.norm())
        met = "yes" if error < GRADIENT else "NO"
        rows.append({"micro-batches": count, "error": f"{100 * error:.2f} %", "met": met})
    return Results(
        "The gradient in BF16: its error against FP64, as a share of its norm",
        f"below {100 * GRADIENT} %",
        rows,
        ["The 1 M model, one sequence a micro-batch; its first weights rounded to BF16."],
    )


def run() -> list[Results]:
    return [curves(), gradients()]
