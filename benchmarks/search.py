"""The search of the paper's model on its cluster: predictions alone, the whole command, pruning.

`BFPP_FORMER` names the root of an older checkout to compare with, in turn.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import process_time

from benchmarks.measure import ROOT, Results, command_seconds

SCHEDULES = ("gpipe", "1f1b", "depth-first", "breadth-first")
MODEL, CLUSTER, GPUS, BATCH, TOP = "bert-52b", "dgx1-v100", 64, 64, 15
COMMAND = (
    "search", "--model", MODEL, "--cluster", CLUSTER, "--gpus", str(GPUS), "--batch", str(BATCH),
    "--json",
)  # fmt: skip
RUNS = 3

EVALUATE = f"""
import json, sys, time
from importlib import import_module
from pathlib import Path
sys.path.insert(0, "")
house = "bfpp." if Path("bfpp", "sim").is_dir() else ""
search, model, cluster = (
    import_module(house + "sim." + name) for name in ("search", "model", "cluster")
)
apart = Path("sim", "evaluation.py").exists()
evaluate = (import_module(house + "sim.evaluation") if apart else search).evaluate
def problem_of(gpus):
    trained, machine = model.load_model("{MODEL}"), cluster.load_cluster("{CLUSTER}")
    return search.Problem(trained, machine, gpus, ({BATCH},), {SCHEDULES})
smaller = problem_of({GPUS} // 2)
evaluate(smaller, search.configurations(smaller)[::10])  # loads the compiled loops
problem = problem_of({GPUS})
chosen = search.configurations(problem)
begun = time.process_time()
outcomes = evaluate(problem, chosen)
print(json.dumps([len(outcomes), time.process_time() - begun]))
"""
"""What an older checkout understands as well."""


def run() -> Results:
    former = os.environ.get("BFPP_FORMER")
    checkouts = {"this": ROOT} | ({"former": Path(former)} if former else {})
    taken: dict[tuple[str, str], list[float]] = {}
    for _ in range(RUNS):
        for name, root in checkouts.items():
            tried, seconds = json.loads(_output(root, "-c", EVALUATE))
            taken.setdefault((name, "predictions, one core (CPU)"), []).append(seconds)
            _command(taken, name, root, "whole command")
        _command(taken, "this", ROOT, f"whole command, --top {TOP}", "--top", str(TOP))
        taken.setdefault(("this", f"pruned to {TOP}, one core (CPU)"), []).append(_pruned())
    rows = []
    for (name, what), seconds in taken.items():
        before = taken.get(("former", what.replace(f", --top {TOP}", "")), [])
        rows.append(
            {
                "checkout": name,
                "what": what,
                "seconds": f"{median(seconds):.2f}",
                "configurations a second": f"{tried / median(seconds):,.0f}",
                "former / this": f"{median(before) / median(seconds):.1f}" if before else "-",
            }
        )
    return Results(
        f"Search: {MODEL} on {GPUS} GPUs, {tried:,} configurations",
        "5,000 configurations a second on two cores, without start-up",
        rows,
        [f"Medians of {RUNS}, in turn; predictions with the compiled loops loaded."],
    )


def _output(root: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=root, capture_output=True, text=True, check=True
    )
    return done.stdout


def _command(
    taken: dict[tuple[str, str], list[float]], name: str, root: Path, what: str, *further: str
) -> None:
    """Run the command, and keep what it took."""
    wall, cpu = command_seconds(root, *COMMAND, *further)
    taken.setdefault((name, what), []).append(wall)
    taken.setdefault((name, f"{what} (CPU of all processes)"), []).append(cpu)


def _pruned() -> float:
    """CPU seconds to find the best alone, in this process."""
    from bfpp.sim.cluster import load_cluster
    from bfpp.sim.evaluation import evaluate, evaluation_of
    from bfpp.sim.model import load_model
    from bfpp.sim.pruning import evaluate_best, most_promising_first
    from bfpp.sim.search import Problem, configurations

    problem = Problem(load_model(MODEL), load_cluster(CLUSTER), GPUS, (BATCH,), SCHEDULES)
    chosen = configurations(problem)
    evaluate(problem, chosen[::10])
    evaluation_of.cache_clear()
    begun = process_time()
    evaluate_best(problem, most_promising_first(problem, chosen), TOP)
    return process_time() - begun
