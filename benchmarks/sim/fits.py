"""Probabilities to fit in memory, beside published runs that fitted or ran out of it.

`hagemann-2023.csv` has runs of both kinds: Hagemann et al., 2023, arXiv 2311.05610, all runs with
FlashAttention-2 and a fused RMSNorm on A100 of 80 GB, as in the folder `data` of
Aleph-Alpha/NeurIPS-WANT-submission-efficient-parallelization-layouts (e13c2cb). Their software is
their own: it is predicted as torchtitan is, with gradients in half precision and ZeRO-1. Runs of
all other sources have fitted.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.helpers.measure import Results
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.measurements.measured_tables import read_measurements
from bfpp.sim.measurements.published import sources
from bfpp.sim.measurements.recipes import recipes
from bfpp.sim.memory.device_memory import memories_of
from bfpp.sim.memory.peak_memory import DEVIATION, fits_probability
from bfpp.sim.models.model import Transformer

TABLE = Path(__file__).parent / "hagemann-2023.csv"
TITLE = "Hagemann et al., A100"

SIZES = {
    "llama-13b": (40, 5120, 40, 13824),
    "llama-30b": (60, 6656, 52, 17920),
    "llama-65b": (80, 8192, 64, 22016),
}
"""Layers, width, heads and width of the MLP."""

VOCABULARY = 128_000
BATCHES = {2048: 2048, 8192: 512}
"""Samples of a step, by the length of sequences."""

ENDS = (0.0, 0.1, 0.5, 0.9, 0.99, 1.0)
"""Ends of the ranges of probabilities."""


REMARKS = """\
Runs by the probability that they fit, and the share of them that did (%).
Hagemann et al. have runs of both kinds; all others are published because they fitted.
Of Hagemann's 13 B with sequences of 8,192, all with micro-batches of two and more on 64 GPUs ran \
out of memory, those of 32 GiB as predicted, too: not understood.
"""


class Run(NamedTuple):
    """A published run: bytes reserved as predicted, those of a device, and whether it fitted."""

    source: str
    reserved: float
    usable: float
    fitted: bool


def run() -> Results:
    runs = [*_of_both_kinds(), *_of_tables(), *_of_recipes()]
    return Results(
        "Memory that fits",
        "of runs that fit with at least 90 %, 90 % have fitted",
        [*_rows(runs)],
        [
            f"{DEVIATION:g} is the deviation of the logarithm of reserved memory.",
            f"The most likely one, if each source weighs the same, is {_most_likely(runs):.2f}.",
            *REMARKS.splitlines(),
        ],
    )


def _rows(runs: list[Run]) -> Iterator[dict[str, Any]]:
    for name in ("all", *dict.fromkeys(each.source for each in runs)):
        some = [each for each in runs if name in ("all", each.source)]
        sure = np.array([_sure(each, DEVIATION) for each in some])
        fitted = np.array([each.fitted for each in some])
        row: dict[str, Any] = {"source": name, "runs": len(some), "fitted": int(fitted.sum())}
        for low, high in pairwise(ENDS):
            inside = (sure >= low) & ((sure < high) | (high == 1.0))
            share = f": {100 * fitted[inside].mean():.0f}" if inside.any() else ""
            row[f"{low:.0%} to {high:.0%}"] = f"{int(inside.sum())}{share}"
        yield row


def _sure(run: Run, deviation: float) -> float:
    """The probability to fit by another deviation: of a memory that is as far away by it."""
    distance = np.log(run.usable / run.reserved) * DEVIATION / deviation
    return float(fits_probability(np.array([run.usable / np.exp(distance)]), run.usable)[0])


def _most_likely(runs: list[Run]) -> float:
    """The deviation that makes what has become of the runs most likely."""
    count = {name: sum(each.source == name for each in runs) for name in {r.source for r in runs}}

    def likelihood(deviation: float) -> float:
        total = 0.0
        for each in runs:
            sure = min(max(_sure(each, deviation), LEAST), 1 - LEAST)
            total += np.log(sure if each.fitted else 1 - sure) / count[each.source]
        return float(total)

    return max(np.arange(0.04, 0.5, 0.01).tolist(), key=likelihood)


LEAST = 0.02
"""Share of runs that fit, or run out of memory, for reasons that no prediction knows."""


def _of_both_kinds() -> Iterator[Run]:
    with TABLE.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            experiment = _experiment(row)
            yield _run(TITLE, experiment, fitted=row["fits"] == "true")


def _experiment(row: dict[str, str]) -> Experiment:
    layers, hidden, heads, mlp = SIZES[row["model"]]
    sequence, size = int(row["seq_length"]), int(row["microbatch_size"])
    tp, pp = int(row["tp"]), int(row["pp"])
    dp = int(row["gpus"]) // tp // pp
    model = Transformer(
        row["model"], layers, hidden, heads, sequence, VOCABULARY, mlp=mlp, gated=True,
        tied_embeddings=False, norm="rms", positions="rotary",
    )  # fmt: skip
    return Experiment(
        "1f1b",
        model=model,
        cluster="dgx-a100",
        implementation="torchtitan",
        main_gradients="bf16",
        pp=pp,
        tp=tp,
        dp=dp,
        microbatches=min(BATCHES[sequence] // dp // size, 4 * pp),  # no more are alive at once
        microbatch_size=size,
        sharding="zero1" if dp > 1 else "none",
        recompute=row["recompute"],
        sequence_parallel=row["sequence_parallel"] == "true",
        cut="even" if layers % pp else None,
    )


def _of_tables() -> Iterator[Run]:
    for source in sources().values():
        for each in read_measurements(source.path):
            yield _run(source.title, each.experiment, fitted=True)


def _of_recipes() -> Iterator[Run]:
    for each in recipes():
        if each.refusal is None:
            yield _run("NVIDIA's recipes", each.experiment, fitted=True)


def _run(source: str, experiment: Experiment, *, fitted: bool) -> Run:
    physical = experiment.require_physical()
    reserved = memories_of(experiment.graph(), physical).fullest.reserved
    return Run(source, reserved, physical.cluster.device.usable_memory, fitted)
