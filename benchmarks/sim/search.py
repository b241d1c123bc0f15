"""Named searches (`examples/searches`): predictions alone, the whole command, pruning.

`--against DIR` names the root of an older checkout to compare with, in turn.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks.helpers.measure import ROOT, Results, checkouts, command_seconds
from bfpp.api.searching import all_bounds, evaluated
from bfpp.api.workers import WORTH, Workers
from bfpp.commands.search import add_arguments
from bfpp.options.search import problem_of
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.models.model import load_model
from bfpp.sim.search.enumeration import configurations
from bfpp.sim.search.evaluation import evaluate
from bfpp.sim.search.problem import Problem
from bfpp.terminal.parser import Parser

SCHEDULES = ("gpipe", "1f1b", "depth-first", "breadth-first")
MODEL, CLUSTER, GPUS, BATCH, TOP = "bert-52b", "dgx1-v100", 64, 64, 15
OTHER = "bert-6.6b"
"""The model of a search that loads the compiled loops and knows nothing of the one measured."""

CORES = 2
COMMAND = (
    "search", "--model", MODEL, "--cluster", CLUSTER, "--gpus", str(GPUS), "--batch", str(BATCH),
    "--top", "1000000", "--json",
)  # fmt: skip
RUNS = 3

LARGE = "llama3-70b-on-256-h100"
"""A search with uneven cuts, recomputation, choices of full sharding, and eleven schedules."""

EVALUATE = f"""
import json, sys, time
from importlib import import_module
sys.path.insert(0, "")
def room(*names):
    for name in names:
        try:
            return import_module(name)
        except ModuleNotFoundError:
            continue
search = room(
    "bfpp.sim.search.enumeration", "bfpp.sim.search.search", "bfpp.sim.search", "sim.search"
)
model = room("bfpp.sim.models.model", "bfpp.sim.model", "sim.model")
cluster = room("bfpp.sim.cluster.cluster", "bfpp.sim.cluster", "sim.cluster")
apart = room("bfpp.sim.search.evaluation", "bfpp.sim.evaluation", "sim.evaluation")
evaluate = (apart or search).evaluate
apart_problem = room("bfpp.sim.search.problem")
def problem_of(name):
    trained, machine = model.load_model(name), cluster.load_cluster("{CLUSTER}")
    if apart_problem:
        return apart_problem.Problem(trained, machine, ({GPUS},), ({BATCH},), {SCHEDULES})
    return search.Problem(trained, machine, {GPUS}, ({BATCH},), {SCHEDULES})
other = problem_of("{OTHER}")
evaluate(other, search.configurations(other)[::10])
problem = problem_of("{MODEL}")
chosen = search.configurations(problem)
begun = time.process_time()
outcomes = evaluate(problem, chosen)
print(json.dumps([len(outcomes), time.process_time() - begun]))
"""
"""Options that an older checkout understands as well."""


def run() -> Results:
    taken: dict[tuple[str, str], list[float]] = {}
    for _ in range(RUNS):
        for name, root in checkouts().items():
            tried, seconds = json.loads(_output(root, "-c", EVALUATE))
            taken.setdefault((name, "predictions, one core (CPU)"), []).append(seconds)
            _command(taken, name, root, "whole command")
        _command(taken, "this", ROOT, f"whole command, --top {TOP}", "--top", str(TOP))
        wall, cpu = command_seconds(ROOT, "search", str(NAMED), "--top", str(TOP), "--json")
        taken.setdefault(("this", LARGE), []).append(wall)
        taken.setdefault(("this", f"{LARGE} (CPU of all processes)"), []).append(cpu)
        for what, seconds in _by_workers():
            taken.setdefault(("this", what), []).append(seconds)
    rows = []
    counts = {True: len(configurations(_named(NAMED))), False: tried}
    for (name, what), seconds in taken.items():
        before = taken.get(("former", what.replace(f", --top {TOP}", "")), [])
        rows.append(
            {
                "checkout": name,
                "what": what,
                "seconds": f"{median(seconds):.2f}",
                "configurations a second": f"{counts[LARGE in what] / median(seconds):,.0f}",
                "former / this": f"{median(before) / median(seconds):.1f}" if before else "-",
            }
        )
    return Results(
        f"Search: {MODEL} on {GPUS} GPUs, {tried:,} configurations",
        "5,000 configurations a second on two cores, without start-up",
        rows,
        [
            f"Medians of {RUNS}, in turn; predictions with the compiled core loaded.",
            f"{LARGE}: {counts[True]:,} configurations, pruned, --top {TOP}.",
        ],
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


def _by_workers() -> Iterator[tuple[str, float]]:
    """Seconds of workers that have begun: for all predictions, and for what the command makes."""
    for what, top, every in (
        ("predictions of all", None, True),
        ("predictions of what fits", None, False),
        (f"predictions for the {TOP} best", TOP, False),
    ):
        for count in (1, CORES):
            yield (
                f"{what}, {count} worker{'s' * (count > 1)} (wall clock)",
                _seconds(count, top, every=every),
            )


def _seconds(count: int, top: int | None, *, every: bool) -> float:
    other, problem = _problem(OTHER), _problem(MODEL)
    chosen = configurations(problem)
    with Workers(count=count) as workers:
        workers.expect(WORTH, 0)
        for begun in [workers.submit(_load, other) for _ in range(4 * count)]:
            begun.result()
        start = perf_counter()
        bounds = None if every else all_bounds(problem, chosen, workers)
        for _ in evaluated(problem, chosen, workers, bounds, top):
            pass
        return perf_counter() - start


def _load(other: Problem) -> None:
    """Load the compiled loops, for as long as other workers need to begin."""
    evaluate(other, configurations(other)[::10])


NAMED = ROOT / "examples" / "searches" / f"{LARGE}.toml"


def _named(path: Path) -> Problem:
    """The problem of a named search."""
    parser = Parser()
    add_arguments(parser)
    return problem_of(parser.parse([str(path)]))


def _problem(model: str) -> Problem:
    return Problem(load_model(model), load_cluster(CLUSTER), (GPUS,), (BATCH,), SCHEDULES)
