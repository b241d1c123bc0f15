"""Uneven steps predicted and run: a slow device, documents of unequal length, and remedies.

Eight processes, four pipeline ranks of two replicas, sleep for as long as their passes are to take;
all else is real. Runs take turns in processes that stay, so that each remedy's gain is measured
beside the step that it is to help.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from benchmarks.executor.prediction import WARM_UP
from benchmarks.helpers.measure import Results
from bfpp.api.predictions import predict
from bfpp.api.running.jobs import factors_of, sleeps_of
from bfpp.executor.measure.passes import QUICK, Bench, measure
from bfpp.executor.model.sources import TransformerSource
from bfpp.executor.model.transformer.transformer import TransformerSizes
from bfpp.executor.processes import ProcessContext, launch
from bfpp.executor.settings import Training
from bfpp.executor.train.connect import init_process_group
from bfpp.executor.train.job import Job
from bfpp.executor.train.measured_timeline import timeline_of
from bfpp.executor.train.watching import connected, watched
from bfpp.schedules import Communication, Layout, find_schedule
from bfpp.schedules.columns import Seconds
from bfpp.sim.costs.measured.profile import ProfiledCosts, read_profile
from bfpp.sim.costs.measured.replay import paces
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.remedies.of_microbatches import rearranged_effects
from bfpp.sim.remedies.remedies import remedies
from bfpp.sim.remedies.uneven_case import UnevenCase
from bfpp.traces.explain.causes import Causes

RANKS, REPLICAS, MICROBATCHES, LAYERS = 4, 2, 8, 8
SLOW_RANK = 2
LENGTHS = "512:600,2048:250,8192:120,16384:20,32768:10"
FORWARD = 0.015
"""Seconds of a layer's forward pass, of a full sequence; its backward pass takes twice that."""

TURNS, STEPS = 3, 3
AS_IT_IS, REPLACED = "as it is", "replace"
OTHER_SCHEDULES = ("gpipe", "zb-h1")
WITHIN = 1 / 3


@dataclass(frozen=True)
class Run:
    """A job to be run, and what it is predicted to take."""

    name: str
    job: Job
    predicted: float


def experiment_of(costs: ProfiledCosts) -> Experiment:
    """The uneven step."""
    return Experiment(
        "1f1b",
        pp=RANKS,
        dp=REPLICAS,
        microbatches=MICROBATCHES,
        profile=costs,
        lengths=LENGTHS,
        attention_share=0.5,
        slow=f"replica=0,rank={SLOW_RANK}:1.4",
        sampled_steps=1,
    )


def job_of(schedule: str = "1f1b") -> Job:
    sizes = TransformerSizes(
        layers=LAYERS, hidden=64, heads=4, kv_heads=4, context=32, vocabulary=257, mlp=256
    )
    job = Job(
        find_schedule(schedule),
        Layout(RANKS, MICROBATCHES),
        Communication(),
        TransformerSource(sizes, None),
        WARM_UP + STEPS,
    )
    return replace(job, **vars(Training(dp=REPLICAS, microbatch_size=1)))


def with_long_passes(profile: Mapping[str, object]) -> ProfiledCosts:
    """A measured profile whose layers take as long as they are to sleep."""
    costs = read_profile("profile", {"about": {}, **profile})
    sleeping = {"forward": FORWARD, "backward": 2 * FORWARD}
    sleeping |= dict.fromkeys(("backward_input", "backward_weight"), FORWARD)
    none = dict.fromkeys(sleeping, 0.0)
    ends = 0, len(costs.layers) - 1
    layers = [
        {**layer, **(none if at in ends else sleeping)} for at, layer in enumerate(costs.layers)
    ]
    passes = dict.fromkeys(costs.passes, 0.0)
    run = {**costs.run, "replicas": REPLICAS}
    return replace(costs, run=run, layers=tuple(layers), passes=passes)


def runs_of(costs: ProfiledCosts) -> list[Run]:
    """The step as it is, and each remedy that can be run."""
    experiment = experiment_of(costs)
    uneven = predict(experiment).uneven
    case = UnevenCase(experiment, uneven)
    predicted = {(each.name, each.change): each.step_time for each in remedies(experiment, uneven)}
    job = job_of()
    sleeps = sleeps_of(costs, job.plan())

    def asleep(effects: list, own: Job = job, of: UnevenCase = case) -> Job:
        return replace(own, sleeps=replace(sleeps, factors=factors_of(of.step, effects)))

    runs = [Run(AS_IT_IS, asleep(case.effects[0]), uneven.mean)]
    [healed] = [time for (name, _), time in predicted.items() if name == REPLACED]
    healthy = UnevenCase(experiment.changed(slow=None), uneven)
    runs.append(Run(REPLACED, asleep(healthy.effects[0]), healed))
    for change, [effects] in rearranged_effects(case):
        time = predicted[change.name, change.words]
        runs.append(Run(change.name, asleep(effects), time))
    for name in OTHER_SCHEDULES:
        other = UnevenCase(experiment.changed(schedule=name), uneven)
        [time] = [time for (_, change), time in predicted.items() if change.startswith(f"{name},")]
        runs.append(Run(name, asleep(other.effects[0], job_of(name), other), time))
    return runs


def calibrated(context: ProcessContext, job: Job) -> Mapping[str, object]:
    """The measurements of a profile, on the ranks of one replica."""
    return measure(Bench(context, job, QUICK, init_process_group(context, job))) or {}


def take_turns(
    context: ProcessContext, costs: ProfiledCosts
) -> list[dict[str, tuple[float, float, int]]]:
    """Of each turn and run: predicted and measured seconds, and the rank that is slowest."""
    clock_offset = init_process_group(context, job_of())
    runs = runs_of(costs)
    return [
        {run.name: (run.predicted, *measured(context, run, clock_offset)) for run in runs}
        for _ in range(TURNS)
    ]


def measured(context: ProcessContext, run: Run, clock_offset: float) -> tuple[float, int]:
    """The median step, and the rank of the first replica whose passes are slowest."""
    plan = run.job.plan()
    with connected(context, plan, run.job, clock_offset) as trainer:
        reports = list(watched(context, trainer, range(WARM_UP + STEPS)))[WARM_UP:]
        columns: list[Seconds] = trainer.columns_of_all()
    slowest = -1
    if columns:
        found = paces(Causes(timeline_of(columns[-1], plan.graph)))
        slowest = max(found, key=lambda pace: pace.gain).rank
    return float(np.median([report.seconds for report in reports])), slowest


def run() -> Results:
    profile = launch(calibrated, replace(job_of(), dp=1), RANKS) or {}
    turns = launch(take_turns, with_long_passes(profile), RANKS * REPLICAS) or []
    rows, remarks = [], []
    base = [turn[AS_IT_IS] for turn in turns]
    wrong = []
    for name in turns[0]:
        predicted, steps, _ = zip(*(turn[name] for turn in turns), strict=True)
        gains = [1 - step / own[1] for step, own in zip(steps, base, strict=True)]
        expected, gain = 1 - predicted[0] / base[0][0], median(gains)
        if abs(gain - expected) > max(WITHIN * abs(expected), 0.01):
            wrong.append(name)
        rows.append(
            {
                "step": name,
                "predicted (ms)": f"{1e3 * predicted[0]:.1f}",
                "measured (ms)": f"{1e3 * median(steps):.1f}",
                "error (%)": f"{100 * (predicted[0] / median(steps) - 1):+.1f}",
                "predicted gain (%)": f"{100 * expected:+.1f}",
                "measured gain (%)": f"{100 * gain:+.1f}",
                "of the turns (%)": f"{100 * min(gains):+.1f} to {100 * max(gains):+.1f}",
            }
        )
    named = sum(own[2] == SLOW_RANK for own in base)
    remarks.append(f"The slow rank is named in {named} of {len(base)} turns.")
    remarks.append(
        f"Gains further than a third (or 1 %) from predicted: {', '.join(wrong) or 'none'}."
    )
    return Results(
        "Uneven steps that sleep on 8 processes, and their remedies: medians over turns",
        "steps within 10 %, gains with the predicted sign and within a third",
        rows,
        remarks,
    )
