"""Our runtime beside PyTorch's: the same orders, model and processes, in turn."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from benchmarks.executor.prediction import Group, steps_of
from benchmarks.executor.zero_bubble import LAYERS, LINEAR, TRAINING
from benchmarks.helpers.measure import Results
from bfpp.executor.processes import ProcessContext, launch
from bfpp.executor.settings import BackendName
from bfpp.executor.train.connect import init_process_group
from bfpp.executor.train.job import Job

STEPS, TURNS = 5, 4
SCHEDULES = ("1f1b", "breadth-first", "zb-h1", "zb1p")
OURS, THEIRS = BackendName.CPU, BackendName.TORCH_PIPELINING
GROUP = Group(2, LAYERS, 4, TURNS, schedules=SCHEDULES, source=LINEAR, training=TRAINING)

Steps = dict[BackendName, list[tuple[float, float]]]
"""Of each runtime, the loss and the seconds of each step."""


def take_turns(context: ProcessContext, jobs: dict[str, Job]) -> list[dict[str, Steps]]:
    """Turn by turn, each schedule by both runtimes, in each of the processes."""
    clock_offset = init_process_group(context, next(iter(jobs.values())))
    turns = []
    for _ in range(TURNS):
        turn: dict[str, Steps] = {}
        for name, job in jobs.items():
            for backend in (OURS, THEIRS):
                chosen = replace(job, backend=backend)
                reports = steps_of(context, chosen.plan(), chosen, clock_offset, STEPS)
                measured = [(report.loss, report.elapsed) for report in reports]
                turn.setdefault(name, {})[backend] = measured
        turns.append(turn)
    return turns


def row(replicas: int, name: str, turns: list[Steps]) -> dict[str, object]:
    seconds = {
        backend: [[step[1] for step in turn[backend]] for turn in turns]
        for backend in (OURS, THEIRS)
    }
    ratios = [
        median(ours) / median(theirs)
        for ours, theirs in zip(seconds[OURS], seconds[THEIRS], strict=True)
    ]
    ours, theirs = (min(map(min, seconds[backend])) for backend in (OURS, THEIRS))
    apart = max(
        abs(one[0] - other[0])
        for turn in turns
        for one, other in zip(turn[OURS], turn[THEIRS], strict=True)
    )
    return {
        "ranks x replicas": f"{GROUP.ranks} x {replicas}",
        "schedule": name,
        "losses differ by": f"{apart:.0e}",
        "ours, fastest (ms)": f"{1e3 * ours:.0f}",
        "theirs, fastest (ms)": f"{1e3 * theirs:.0f}",
        "ours / theirs, fastest": f"{ours / theirs:.2f}",
        "ours / theirs, median": f"{median(ratios):.2f}",
    }


def run() -> Results:
    rows = []
    for replicas in (1, 2):
        jobs = {name: replace(job, dp=replicas) for name, job in GROUP.jobs().items()}
        turns = launch(take_turns, jobs, GROUP.ranks * replicas) or []
        rows += [row(replicas, name, [turn[name] for turn in turns]) for name in SCHEDULES]
    return Results(
        "Our runtime beside torch.distributed.pipelining",
        "equal losses, and at most the same time",
        rows,
        [
            f"{TURNS} turns of {STEPS} steps, from step to step, batches and updates included.",
            "The median is of the turns' ratios of median steps.",
        ],
    )
