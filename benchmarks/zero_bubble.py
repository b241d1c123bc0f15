"""Zero-bubble schedules beside 1F1B: predicted and measured step times, with real compute.

Two ranks, a thread each, and stages of four linear layers. As in `benchmarks.prediction`, all
take turns: a turn calibrates and runs a few steps of every schedule, and its steps are compared
with 1F1B's of the same turn.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.measure import Results
from benchmarks.prediction import Group, Turn, take_turns
from bfpp.executor.model import Model
from bfpp.executor.processes import launch
from bfpp.executor.settings import Activations, Training
from bfpp.executor.sources import FunctionSource

LAYERS, WIDTH, ROWS, TURNS = 8, 512, 256, 8
PLAIN = "1f1b"
SCHEDULES = (PLAIN, "zb-h1", "zb-h2")


def layer() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU())


def linear_layers(seed: int) -> Model:
    def batch(step: int, samples: range) -> tuple[Tensor, Tensor]:
        chance = torch.Generator().manual_seed(seed + 1000 * step + samples.start)
        inputs = torch.randn(len(samples), WIDTH, generator=chance)
        return inputs, inputs.flip(1)

    return Model([layer] * LAYERS, functional.mse_loss, batch)


GROUPS = [
    Group(
        2, LAYERS, microbatches, TURNS, schedules=SCHEDULES,
        source=FunctionSource(Path(__file__), linear_layers.__name__),
        training=Training(microbatch_size=ROWS, activations=Activations.KEEP), steps=8,
    )
    for microbatches in (4, 8)
]  # fmt: skip


def row(group: Group, name: str, turns: list[Turn]) -> dict[str, object]:
    """A schedule's times, and what they are of 1F1B's in the same turn."""
    predicted, measured = zip(*(turn[name] for turn in turns), strict=True)
    of_plain = [[turn[name][which] / turn[PLAIN][which] for turn in turns] for which in range(2)]
    fewer = sum(ratio < 1 for ratio in of_plain[1])
    return {
        "micro-batches": group.microbatches,
        "schedule": name,
        "predicted (ms)": f"{1e3 * median(predicted):.1f}",
        "measured (ms)": f"{1e3 * median(measured):.1f}",
        "of 1F1B's, predicted": f"{median(of_plain[0]):.3f}",
        "of 1F1B's, measured": f"{median(of_plain[1]):.3f}",
        "turns below 1F1B": f"{fewer} of {len(turns)}",
    }


def run() -> Results:
    rows = []
    for group in GROUPS:
        turns = launch(take_turns, group, group.ranks) or []
        rows += [row(group, name, turns) for name in SCHEDULES]
    return Results(
        "Zero-bubble schedules with real compute",
        "a measured step shorter than 1F1B's, as predicted",
        rows,
        [
            f"Ranks of {LAYERS // 2} layers of {WIDTH} each, {ROWS} rows a micro-batch, float32.",
            f"Activations are kept. Medians of {TURNS} turns; ratios are within a turn.",
        ],
    )
