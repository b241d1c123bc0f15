"""Random configurations, trained over gloo and in a plain loop: are losses and weights the same?

Each has a schedule (of those that are registered, or an order that a search made), a division over
pipeline ranks, replicas and tensor-parallel ranks, up to four processes in all, and settings of a
run: sharding, posting of transfers, offloading, recomputation, precision, clipping. Those that are
refused in one line are drawn again. Processes are kept from one to the next.

`BFPP_CONFIGURATIONS` says how many are drawn, and `BFPP_SEED` with which seed.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from random import Random
from typing import Any

from torch.distributed import PrefixStore

from benchmarks.helpers.measure import Results
from bfpp.api.running.jobs import job_of
from bfpp.executor.model.sources import TransformerSource
from bfpp.executor.model.transformer.transformer import TransformerSizes
from bfpp.executor.processes import Limits, ProcessContext, RunFailed, launch
from bfpp.executor.processes.launcher.process_context import part
from bfpp.executor.run.session import TrainingResult, train
from bfpp.executor.run.verification import Verification, verify
from bfpp.executor.settings import Activations, DType, LossScaling, Optimization
from bfpp.executor.train.job import Job
from bfpp.schedules import InvalidInput, find_schedule, registered_schedules
from bfpp.schedules.settings.recomputation import NO_RECOMPUTATION, parse_recomputation
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.synthesis import PLACEMENTS, synthesize

COUNT = int(os.environ.get("BFPP_CONFIGURATIONS", "200"))
SEED = int(os.environ.get("BFPP_SEED", "1"))
PROCESSES, STEPS, AT_ONCE = 4, 3, 20
SEARCHED = "searched order"
LIMITS = Limits(hang=20.0)
DIVISIONS = [(pp, dp, tp) for pp in (1, 2, 3, 4) for dp in (1, 2, 4) for tp in (1, 2)
             if 1 < pp * dp * tp <= PROCESSES]  # fmt: skip
"""Pipeline ranks, replicas and tensor-parallel ranks."""


@dataclass(frozen=True)
class Drawn:
    """A configuration: the kind of its order, its settings in words, and its job."""

    schedule: str
    words: dict[str, Any]
    job: Job

    def __str__(self) -> str:
        return f"{self.schedule} {self.words}"


def drawn(chance: Random, schedule: str) -> Drawn:
    """A configuration that can be run; draws until one is not refused."""
    while True:
        words = _words(chance)
        try:
            job = _job(chance, schedule, words)
            job.plan().check()
        except InvalidInput:
            continue
        return Drawn(schedule, words, job)


def _words(chance: Random) -> dict[str, Any]:
    pp, dp, tp = chance.choice(DIVISIONS)
    sharding = chance.choice(["none", "partial", "full"])
    modes = ["channels", "channels", "fifo", "deferred", "batched", "coalesced"]
    return {
        "pp": pp,
        "dp": dp,
        "tp": tp,
        "loops": chance.choice([1, 1, 2]),
        "microbatches": chance.randint(1, 4) * chance.choice([1, pp]),
        "microbatch_size": chance.randint(1, 2),
        "sharding": sharding,
        "dp_replicate": chance.choice([1, 2]) if sharding != "none" and dp % 2 == 0 else 1,
        "p2p": chance.choice(modes) if pp > 1 else "channels",
        "pp_overlap": chance.random() < 0.9,
        "dp_overlap": chance.random() < 0.8,
        "gather_per": chance.choice(["run", "step"]) if sharding == "full" else "run",
        "reduce_per": chance.choice(["run", "step"]) if sharding == "full" else "run",
        "offload": chance.choice(["off", "off", "all", "1", "2"]),
        "clip": chance.random() < 0.5,
        "precision": chance.choice([*DType, DType.FLOAT64]),
        "recompute": chance.choice(["none", "full", "selective", "1"]),
        "sequence_parallel": tp > 1 and chance.random() < 0.5,
        "gated": chance.random() < 0.5,
        "tied": chance.random() < 0.25,
        "spare_layers": chance.randint(0, 2),
    }


def _job(chance: Random, schedule: str, words: dict[str, Any]) -> Job:
    named = {each: words[each] for each in EXPERIMENT}
    if schedule == SEARCHED:
        base = "breadth-first" if words["loops"] > 1 else "1f1b"
        placement = chance.choice([*PLACEMENTS])
        plain = {name: words[name] for name in ("pp", "microbatches", "loops")}
        order = synthesize(Experiment(base, **plain), placement=placement, seconds=0.2)
        experiment = order.experiment.changed(
            **{name: named[name] for name in named.keys() - plain}
        )
    else:
        if not find_schedule(schedule).looped:
            named["units_per_stage"] = named.pop("loops")
        experiment = Experiment(schedule, **named)
    layers = experiment.configuration.layout.units + words["spare_layers"]
    sizes = TransformerSizes(
        layers, 16, 4, 8, 257, 16, 2, gated=words["gated"], tied=words["tied"]
    )  # fmt: skip
    precision, full = words["precision"], words["recompute"] == "full"
    optimization = Optimization(
        1e-3,
        clip=0.5 if words["clip"] else None,
        loss_scaling=LossScaling(1024.0) if precision is DType.FLOAT16 else None,
        skip_nonfinite=2 if precision is DType.FLOAT16 else 0,
    )
    return job_of(
        experiment,
        TransformerSource(sizes, None),
        steps=STEPS,
        microbatch_size=words["microbatch_size"],
        precision=precision,
        activations=Activations.RECOMPUTE if full else Activations.KEEP,
        recomputation=NO_RECOMPUTATION if full else parse_recomputation(words["recompute"]),
        optimization=optimization,
        collects_weights=True,
    )


EXPERIMENT = (
    "pp", "dp", "tp", "loops", "microbatches", "microbatch_size", "sharding", "dp_replicate", "p2p",
    "pp_overlap", "dp_overlap", "gather_per", "reduce_per", "offload", "sequence_parallel",
)  # fmt: skip
"""Settings of an experiment."""


def trained(chosen: list[Drawn]) -> Iterator[tuple[Drawn, Verification | str]]:
    """Each configuration with its differences from the plain loop, or why its run failed."""
    jobs = [each.job for each in chosen]
    try:
        outcomes = launch(train_all, jobs, jobs[0].processes, LIMITS) or []
    except RunFailed as error:
        if len(chosen) > 1:
            for each in chosen:
                yield from trained([each])
        else:
            yield chosen[0], str(error)
        return
    for each, outcome in zip(chosen, outcomes, strict=True):
        yield each, verify(each.job.plan(), outcome)


def train_all(context: ProcessContext, jobs: list[Job]) -> list[TrainingResult]:
    """Some jobs in turn, each with groups of its own; the outcomes in the first process."""
    outcomes = []
    for number, job in enumerate(jobs):
        own = replace(context, store=PrefixStore(str(number), context.store))
        outcomes.append(train(own, job))
        part(own)
    return [each for each in outcomes if each is not None]


def _alike(chosen: list[Drawn]) -> Iterator[list[Drawn]]:
    """Those of as many processes, some at a time."""
    by_number = sorted(chosen, key=lambda each: each.job.processes)
    for _, found in groupby(by_number, key=lambda each: each.job.processes):
        own = [*found]
        for first in range(0, len(own), AT_ONCE):
            yield own[first : first + AT_ONCE]


def run() -> Results:
    chance = Random(SEED)
    # Slices of micro-batches (seq1f1b) can be simulated only.
    whole = [name for name in registered_schedules() if name != "seq1f1b"]
    kinds = [SEARCHED, *whole]
    chosen = [drawn(chance, kinds[number % len(kinds)]) for number in range(COUNT)]
    exact: Counter[str] = Counter()
    wrong: list[str] = []
    worst: dict[str, float] = {}
    for alike in _alike(chosen):
        for each, found in trained(alike):
            if isinstance(found, str) or not found.is_exact:
                wrong.append(f"{each}: {found}")
                print(wrong[-1], file=sys.stderr)
                continue
            exact[each.schedule] += 1
            precision = str(each.words["precision"])
            worst[precision] = max(worst.get(precision, 0.0), found.max_loss_error)
    number = Counter(each.schedule for each in chosen)
    rows = [{"schedule": kind, "drawn": number[kind], "exact": exact[kind]} for kind in kinds]
    rows.append({"schedule": "all", "drawn": COUNT, "exact": sum(exact.values())})
    return Results(
        "Random configurations: do they train as a plain loop does?",
        "all, to 1e-10 in double precision, to rounding in others",
        rows,
        [
            f"Not so: {'; '.join(wrong) or 'none'}.",
            f"Seed {SEED}; over gloo, {STEPS} steps, up to {PROCESSES} processes.",
            "Largest difference of a loss: "
            + ", ".join(f"{each} {error:.1e}" for each, error in sorted(worst.items()))
            + ".",
            "Settings drawn: "
            + ", ".join(sorted(each for each in chosen[0].words if each != "spare_layers"))
            + ".",
        ],
    )
