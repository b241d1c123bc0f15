"""The host's cost of a task: training steps of small stages, all ranks in this process.

`--against DIR` names the root of an older checkout to compare with, in turn.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

from benchmarks.helpers.measure import Results, checkouts

RUNS, STEPS, TURNS = 5, 2, 8

CASES = {
    "breadth-first, 2 loops": ("breadth-first", 2, "none", 1, "keep"),
    "depth-first, 2 loops": ("depth-first", 2, "none", 1, "keep"),
    "1F1B": ("1f1b", 1, "none", 2, "keep"),
    "breadth-first, 2 loops, fully sharded, recomputed": (
        "breadth-first",
        2,
        "full",
        2,
        "recompute",
    ),
}
"""The schedule, loops, sharding, replicas and activation policy."""

MEASURE = f"""
import json, sys, time
from dataclasses import dataclass
from functools import partial
sys.path.insert(0, "")
import torch
from torch import nn
from torch.nn import functional
from bfpp.executor.train.connect import make_backend
from bfpp.executor.train.job import Job
from bfpp.executor.model.model import Model
from bfpp.executor.processes import ProcessContext
from bfpp.executor.settings import Activations, BackendName
from bfpp.executor.train.trainer import Trainer
from bfpp.schedules import Communication, Layout, Sharding, find_schedule

@dataclass(frozen=True)
class Source:
    layers: int
    def load(self, seed):
        layers = [partial(nn.Linear, 4, 4)] * self.layers
        batch = lambda step, samples: (torch.ones(len(samples), 4), torch.ones(len(samples), 4))
        return Model(layers, functional.mse_loss, batch)

found = {{}}
for name, (schedule, loops, sharding, replicas, activations) in {CASES!r}.items():
    job = Job(
        find_schedule(schedule), Layout(4, 8, loops), Communication(Sharding(sharding)),
        Source(4 * loops),
        steps=1, dp=replicas, activations=Activations(activations), backend=BackendName.LOCAL,
    )
    plan = job.plan()
    trainer = Trainer(plan, make_backend(plan, job, None), times=False)
    torch.set_num_threads(1)
    list(trainer.run(range({STEPS})))
    taken = []
    for turn in range(1, 1 + {TURNS}):
        begun = time.process_time()
        list(trainer.run(range({STEPS} * turn, {STEPS} * (turn + 1))))
        taken.append((time.process_time() - begun) / {STEPS} / len(plan.graph) / replicas)
    trainer.close()
    found[name] = min(taken)
print(json.dumps(found))
"""
"""Cases that an older checkout understands as well; seconds of CPU time a task, by case."""


def run() -> Results:
    taken: dict[tuple[str, str], list[float]] = {}
    for _ in range(RUNS):
        for checkout, root in checkouts().items():
            for case, seconds in _measured(root).items():
                taken.setdefault((checkout, case), []).append(seconds)
    rows = []
    for case in CASES:
        this, *before = (median(taken[checkout, case]) for checkout in checkouts())
        rows.append(
            {
                "steps": case,
                "CPU a task (us)": f"{1e6 * this:.0f}",
                "former (us)": f"{1e6 * before[0]:.0f}" if before else "-",
                "this / former": f"{this / before[0]:.2f}" if before else "-",
            }
        )
    return Results(
        "Dispatch: CPU time a task, small stages, all ranks in one process",
        "at most 0.6 of what it was (commit b9517df)",
        rows,
        [
            "4 ranks, 8 micro-batches, a linear layer of 4 x 4 a stage; autograd is in it.",
            f"Medians of {RUNS} processes in turn, of each the fastest of {TURNS} turns.",
        ],
    )


def _measured(root: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], cwd=root, capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout))
