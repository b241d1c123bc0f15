"""`bfpp search`: the best ways to train a model on so many GPUs."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from bfpp import options as shared
from bfpp.found import Journal, write_table
from bfpp.predictions import shortage
from bfpp.results import announce, print_json, print_table
from bfpp.searching import add_problem_arguments, chosen_configurations, problem_of, search
from sim.search import Configuration, Outcome, Problem, nearest, pareto, ranked

SHOWN = 15
INTERRUPTED = 130
NOTHING_FITS = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp search`."""
    add_problem_arguments(parser)
    parser.add_argument(
        "--journal",
        type=Path,
        metavar="FILE",
        help="keep every result in FILE as it comes; what FILE has already is not simulated again",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write all results to FILE.csv or FILE.parquet"
    )
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Enumerate, simulate, rank."""
    begun = time.monotonic()
    problem = problem_of(options)
    chosen = set(chosen_configurations(problem))
    journal = Journal(options.journal, problem)
    interrupted = False
    try:
        for outcomes in search(problem, options, (each.configuration for each in journal.outcomes)):
            journal.add(outcomes)
    except KeyboardInterrupt:
        interrupted = True
    found = [outcome for outcome in journal.outcomes if outcome.configuration in chosen]
    _report(problem, found, len(chosen), time.monotonic() - begun, options)
    if interrupted:
        return INTERRUPTED
    return 0 if any(outcome.fits for outcome in found) else NOTHING_FITS


def _report(
    problem: Problem,
    outcomes: Sequence[Outcome],
    tried: int,
    seconds: float,
    options: argparse.Namespace,
) -> None:
    best_first = ranked(outcomes)
    front = {outcome.configuration for outcome in pareto(best_first)}
    if options.out:
        write_table(
            options.out, [*best_first, *(each for each in outcomes if not each.fits)], front
        )
        announce(options.out)
    if options.json:
        rows = [{**each.record, "pareto": each.configuration in front} for each in best_first]
        missed = {"nearest": nearest(outcomes).record} if outcomes and not rows else {}
        print_json({"configurations": rows, "tried": tried, "seconds": seconds, **missed})
        return
    title = (
        f"{problem.model.name} on {problem.gpus} GPUs of {problem.cluster.name}: "
        f"{len(best_first):,} of {tried:,} configurations fit ({seconds:.1f} s). "
        "Tflop/s per GPU; GB on the largest rank; * none is faster with less memory"
    )
    shown = best_first[:SHOWN]
    shown += [each for each in pareto(best_first) if each not in shown]
    print_table(title, COLUMNS, [_row(outcome, front) for outcome in shown])
    if not best_first and outcomes:
        closest = nearest(outcomes)
        print_table(
            f"Nothing fits; what comes nearest needs {closest.missing_gb:.1f} GB more than a "
            f"device has: {shortage(closest.record)}",
            COLUMNS,
            [_row(closest, set())],
        )


COLUMNS = (
    "schedule", "batch", "pp x tp x dp", "loops", "micro-batches", "sharding", "Tflop/s", "GB", "",
)  # fmt: skip


def _row(outcome: Outcome, front: set[Configuration]) -> tuple[str, ...]:
    row = outcome.record
    sequence = row["sequence"]
    longer = f" ({sequence})" if sequence and sequence > row["pp"] else ""
    return (
        row["schedule"] + longer,
        str(row["batch"]),
        f"{row['pp']} x {row['tp']} x {row['dp']}",
        str(row["loops"]),
        f"{row['microbatches']} of {row['microbatch_size']}",
        row["sharding"],
        f"{row['tflops_per_gpu']:.2f}",
        f"{row['memory_largest_gb']:.1f}",
        "*" if outcome.configuration in front else "",
    )
