"""`bfpp search`: the best ways to train a model on so many GPUs."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bfpp import options as shared
from bfpp.found import Journal, write_table
from bfpp.results import announce, print_json, print_table
from schedules import schedules
from sim.cluster import load_cluster
from sim.executors import EXECUTORS, as_completed, executor
from sim.implementation import IMPLEMENTATIONS
from sim.model import load_model
from sim.search import (
    Configuration,
    Outcome,
    Problem,
    configurations,
    evaluate,
    nearest,
    pareto,
    ranked,
)

AT_ONCE = 64
"""Configurations that one piece of work simulates."""

SHOWN = 15
INTERRUPTED = 130
NOTHING_FITS = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp search`."""
    parser.add_argument("--model", required=True, metavar="NAME|FILE", help="a preset, or a file")
    parser.add_argument("--cluster", required=True, metavar="NAME|FILE", help="a preset, or a file")
    parser.add_argument(
        "--gpus", required=True, type=shared.whole_number, metavar="N", help="GPUs to use"
    )
    parser.add_argument(
        "--batch",
        required=True,
        nargs="+",
        type=shared.whole_number,
        metavar="B",
        help="samples of a step; several are searched together",
    )
    parser.add_argument(
        "--schedule",
        action="append",
        metavar="SCHEDULE",
        help=f"search this schedule (may be given again; default: {', '.join(schedules())})",
    )
    parser.add_argument(
        "--implementation",
        choices=list(IMPLEMENTATIONS),
        default="paper",
        help="whose software runs (default: paper)",
    )
    parser.add_argument(
        "--executor",
        choices=list(EXECUTORS),
        default="local",
        help="where to simulate: this machine's cores, SLURM by submitit, or Dask (default: local)",
    )
    parser.add_argument(
        "--workers", type=shared.whole_number, metavar="N", help="processes (default: all cores)"
    )
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
    problem = Problem(
        load_model(options.model),
        load_cluster(options.cluster),
        options.gpus,
        tuple(options.batch),
        tuple(options.schedule or schedules()),
        options.implementation,
    )
    chosen = configurations(problem)
    if not chosen:
        raise ValueError(
            f"--gpus, --batch: {problem.model.name} cannot be divided over {options.gpus} GPUs "
            f"with a batch of {', '.join(map(str, options.batch))}"
        )
    journal = Journal(options.journal, problem)
    interrupted = _simulate(problem, chosen, journal, options)
    outcomes = [outcome for outcome in journal.outcomes if outcome.configuration in set(chosen)]
    _report(problem, outcomes, len(chosen), time.monotonic() - begun, options)
    if interrupted:
        return INTERRUPTED
    return 0 if any(outcome.fits for outcome in outcomes) else NOTHING_FITS


def _simulate(
    problem: Problem,
    chosen: Sequence[Configuration],
    journal: Journal,
    options: argparse.Namespace,
) -> bool:
    """Simulate what the journal lacks; whether it was interrupted."""
    known = {outcome.configuration for outcome in journal.outcomes}
    missing = [configuration for configuration in chosen if configuration not in known]
    parts = [missing[at : at + AT_ONCE] for at in range(0, len(missing), AT_ONCE)]
    columns = (
        TextColumn("searching"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as bar:
        job = bar.add_task("", total=len(chosen), completed=len(known))
        try:
            with executor(options.executor, options.workers) as workers:
                work = [workers.submit(evaluate, problem, part) for part in parts]
                for promise in as_completed(work):
                    outcomes = promise.result()
                    journal.add(outcomes)
                    bar.advance(job, len(outcomes))
        except KeyboardInterrupt:
            return True
    return False


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
        print_json({"configurations": rows, "tried": tried, "seconds": seconds})
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
        missing = closest.memory_largest_gb - closest.device_memory_gb
        print_table(
            f"Nothing fits; what comes nearest needs {missing:.1f} GB more than a device has",
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
