"""Zero-bubble schedules beside 1F1B: predicted and measured step times, with real compute.

Two ranks, a thread each, and stages of four linear layers. As in `prediction.py`, all
take turns: a turn calibrates and runs a few steps of every schedule, and its steps are compared
with 1F1B's of the same turn.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.executor.prediction import Group, Turn, take_turns
from benchmarks.helpers.measure import Results
from bfpp.executor.model.model import Model
from bfpp.executor.model.sources import FunctionSource
from bfpp.executor.processes import launch
from bfpp.executor.settings import Activations, Training

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


LINEAR = FunctionSource(Path(__file__), linear_layers.__name__)
TRAINING = Training(microbatch_size=ROWS, activations=Activations.KEEP)
GROUPS = [
    Group(
        2, LAYERS, microbatches, TURNS, schedules=SCHEDULES, source=LINEAR, training=TRAINING,
        steps=8,
    )
    for microbatches in (4, 8)
]  # fmt: skip


def row(group: Group, name: str, turns: list[Turn]) -> dict[str, object]:
    """A schedule's times, and what they are of 1F1B's: in the same turn, and at their best."""

    def of_plain(measure: Callable[[tuple[float, list[float]]], float]) -> float:
        return median(measure(turn[name]) / measure(turn[PLAIN]) for turn in turns)

    def fastest(which: str) -> float:
        return min(step for turn in turns for step in turn[which][1])

    return {
        "micro-batches": group.microbatches,
        "schedule": name,
        "predicted (ms)": f"{1e3 * median(turn[name][0] for turn in turns):.0f}",
        "median step (ms)": f"{1e3 * median(median(turn[name][1]) for turn in turns):.0f}",
        "fastest (ms)": f"{1e3 * fastest(name):.0f}",
        "predicted / 1F1B": f"{of_plain(lambda times: times[0]):.2f}",
        "median / 1F1B": f"{of_plain(lambda times: median(times[1])):.2f}",
        "fastest / 1F1B": f"{fastest(name) / fastest(PLAIN):.2f}",
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
            f"Activations are kept. Medians of {TURNS} turns, whose ratios are within a turn.",
        ],
    )
