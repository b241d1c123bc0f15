"""Predicted and measured step times of the four schedules, on this machine.

Two ranks that compute, by our runtime and by torch.distributed.pipelining, then eight that sleep as
long as they would compute. The speed of a shared machine changes from minute to minute, so all take
turns, in processes that stay: each turn runs a few steps of every schedule between two
calibrations, and the mean of their predictions is compared with what was measured in the turn.
PyTorch's runtime is predicted from passes that it ran itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import mean, median

import torch.distributed as dist

from benchmarks.helpers.measure import Results
from bfpp.api.running.jobs import sleeps_of
from bfpp.executor.measure.passes import QUICK, Bench, measure
from bfpp.executor.model.sources import ModelSource, TransformerSource
from bfpp.executor.model.transformer.transformer import TransformerSizes
from bfpp.executor.plan.plan import Plan
from bfpp.executor.processes import ProcessContext, launch
from bfpp.executor.settings import Activations, BackendName, Training
from bfpp.executor.train.connect import init_process_group
from bfpp.executor.train.job import Job
from bfpp.executor.train.trainer import Report
from bfpp.executor.train.watching import connected, watched
from bfpp.schedules import P2P, Communication, Layout, TaskGraph, build_graph, find_schedule
from bfpp.sim.costs.measured.profile import ProfiledCosts, read_profile
from bfpp.sim.engines.engines import simulate

WARM_UP = 2
FOUR_SAMPLES = Training(microbatch_size=4)
KEPT = replace(FOUR_SAMPLES, activations=Activations.KEEP)
"""As PyTorch's runtime trains: it keeps the record of each forward pass."""

TIE = 0.05
"""Predictions nearer to each other than this share are no ranking."""

SCHEDULES = ("breadth-first", "depth-first", "1f1b", "gpipe")


@dataclass(frozen=True)
class Group:
    """Schedules on one layout; looped ones have a stage for each layer."""

    ranks: int
    layers: int
    microbatches: int
    turns: int
    sleeps: bool = False
    schedules: tuple[str, ...] = SCHEDULES
    source: ModelSource | None = None
    training: Training = FOUR_SAMPLES
    steps: int = 3
    backend: BackendName = BackendName.CPU

    @property
    def title(self) -> str:
        how = "sleeping" if self.sleeps else "computing"
        by = ", by PyTorch's pipelining" if self.backend is BackendName.TORCH_PIPELINING else ""
        return f"{self.ranks} ranks, {self.microbatches} micro-batches, {how}{by}"

    def jobs(self) -> dict[str, Job]:
        source, found = self.source or self.transformer(), {}
        for name in self.schedules:
            schedule = find_schedule(name)
            loops = self.layers // self.ranks if schedule.looped else 1
            layout = Layout(self.ranks, self.microbatches, loops)
            job = Job(schedule, layout, Communication(), source, 1)
            found[name] = replace(job, **vars(self.training), backend=self.backend)
        return found

    def transformer(self) -> ModelSource:
        sizes = TransformerSizes(
            layers=self.layers, hidden=128, heads=4, kv_heads=4, context=128, vocabulary=257,
            mlp=512,
        )  # fmt: skip
        return TransformerSource(sizes, None)


GROUPS = (
    Group(2, 8, 2, 8),
    Group(2, 8, 8, 8),
    Group(2, 8, 8, 8, training=KEPT, backend=BackendName.TORCH_PIPELINING),
    Group(8, 16, 8, 2, sleeps=True),
)

Turn = dict[str, tuple[float, list[float]]]
"""Of each schedule, the predicted seconds of a step, and those of each measured one."""


def steps_of(
    context: ProcessContext, plan: Plan, job: Job, clock_offset: float, steps: int
) -> list[Report]:
    """Some steps of a job, in processes that have met, after those that do not count."""
    with connected(context, plan, job, clock_offset) as trainer:
        return list(watched(context, trainer, range(WARM_UP + steps)))[WARM_UP:]


def take_turns(context: ProcessContext, group: Group) -> list[Turn]:
    """Calibrate and run in turn, in each of a group's processes; the first one's count."""
    jobs = group.jobs()
    plans = {name: job.plan() for name, job in jobs.items()}
    first = next(iter(jobs.values()))
    bench = Bench(context, first, QUICK, init_process_group(context, first))
    before, found = calibrated(bench), []
    for _ in range(group.turns):
        measured = {}
        for name, plan in plans.items():
            sleeps = sleeps_of(before, plan) if group.sleeps else None
            job = replace(jobs[name], sleeps=sleeps)
            reports = steps_of(context, plan, job, bench.clock_offset, group.steps)
            measured[name] = [report.seconds for report in reports]
        after = calibrated(bench)
        used = [before] if group.sleeps else [before, after]  # what sleeps takes what it should
        predicted = {
            name: mean(simulate(as_posted(jobs[name], plan), costs).step_time for costs in used)
            for name, plan in plans.items()
        }
        found.append({name: (predicted[name], measured[name]) for name in plans})
        before = after
    return found


def calibrated(bench: Bench) -> ProfiledCosts:
    """The profile that all processes measure together, in each of them."""
    profile = [measure(bench)]
    dist.broadcast_object_list(profile)
    return read_profile("profile", {"about": {}, **(profile[0] or {})})


def as_posted(job: Job, plan: Plan) -> TaskGraph:
    """The graph, with its transfers posted as the runtime does it."""
    if job.backend is not BackendName.TORCH_PIPELINING:
        return plan.graph
    return build_graph(job.schedule, job.layout, replace(job.communication, p2p=P2P.POSTED))


def reversed_pairs(times: dict[str, tuple[float, float]]) -> Iterable[str]:
    """Pairs of which the one that was predicted to be faster, by more than a tie, was not."""
    for (one, (predicted, measured)), (other, (also_predicted, also_measured)) in combinations(
        times.items(), 2
    ):
        differs = abs(predicted / also_predicted - 1) > TIE
        if differs and (predicted < also_predicted) != (measured < also_measured):
            yield f"{one} and {other}"


def run() -> Results:
    rows, remarks = [], []
    for group in GROUPS:
        turns = launch(take_turns, group, group.ranks) or []
        times = {}
        for name in SCHEDULES:
            predicted, steps = zip(*(turn[name] for turn in turns), strict=True)
            measured = [median(each) for each in steps]
            errors = sorted(100 * (p / m - 1) for p, m in zip(predicted, measured, strict=True))
            times[name] = median(predicted), median(measured)
            rows.append(
                {
                    "how": group.title,
                    "schedule": name,
                    "turns": len(turns),
                    "predicted (ms)": f"{1e3 * times[name][0]:.1f}",
                    "measured (ms)": f"{1e3 * times[name][1]:.1f}",
                    "error (%)": f"{median(errors):+.1f}",
                    "of the turns (%)": f"{errors[0]:+.1f} to {errors[-1]:+.1f}",
                }
            )
        wrong = ", ".join(reversed_pairs(times)) or "none"
        remarks.append(f"{group.title}: pairs the wrong way round: {wrong}.")
    return Results(
        "Predicted and measured step times: medians over turns",
        f"errors below 10 %, and the ranking of all that differ by more than {TIE:.0%}",
        rows,
        remarks,
    )
