"""`bfpp search`: the best ways to train a model on N GPUs."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bfpp import options as shared
from bfpp.errors import blaming
from bfpp.experiment_file import experiment_text
from bfpp.formats import EXPERIMENT, HTML, JOURNAL
from bfpp.found import WRITERS, Journal, require_package, write_table
from bfpp.found_page import TIMELINES, write_found_page
from bfpp.model_options import assumptions, with_assumptions
from bfpp.outputs import add_force_argument, add_output
from bfpp.predictions import shortage
from bfpp.results import print_json, print_table
from bfpp.schedules import Communication, Configuration
from bfpp.schedules.communication import FULLY_SHARDED
from bfpp.searching import add_problem_arguments, chosen_configurations, problem_of, search
from bfpp.sim.experiment import OPTIONS, Experiment, experiment_of
from bfpp.sim.search import Outcome, Problem, in_order, nearest, pareto, ranked

SHOWN = 15
INTERRUPTED = 130
NOTHING_FITS = 1


class Tried(NamedTuple):
    """How many configurations there were, why some were not simulated, and how long it took."""

    all: int
    excluded: Counter[str]
    seconds: float

    def __str__(self) -> str:
        left_out = "".join(f"; {count:,} {why}" for why, count in self.excluded.items())
        simulated = self.all - self.excluded.total()
        told = f"{simulated:,} simulated of " if left_out else ""
        return f"{told}{self.all:,} configurations fit ({self.seconds:.1f} s){left_out}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp search`."""
    add_problem_arguments(parser)
    add_output(
        parser,
        "--journal",
        [JOURNAL],
        "keep every result in FILE as it comes; what FILE has already is not simulated again",
        grows=True,
    )
    parser.add_argument(
        "--top",
        type=shared.whole_number,
        metavar="K",
        help="find the K best, and those that none faster undercuts in memory; what cannot be one "
        "of them is not simulated (default: simulate all)",
    )
    add_output(parser, "--best", [EXPERIMENT], "write the best as an experiment file")
    add_output(parser, "--html", [HTML], "a page: throughput against memory, the best timelines")
    add_output(parser, "--out", list(WRITERS), "write all results to FILE.csv or FILE.parquet")
    add_force_argument(parser)
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Enumerate, simulate, rank."""
    begun = time.monotonic()
    if options.out:
        require_package(options.out)
    problem = problem_of(options)
    chosen = set(chosen_configurations(problem))
    with blaming("--journal"):
        journal = Journal(options.journal and options.journal.place, problem)
    assumed, excluded, interrupted = assumptions(options), Counter[str](), False
    try:
        for part in search(problem, options, (each.configuration for each in journal.outcomes)):
            journal.add(part.outcomes)
            excluded += part.excluded
    except KeyboardInterrupt:
        interrupted = True
    found = [outcome for outcome in journal.outcomes if outcome.configuration in chosen]
    found.sort(key=lambda outcome: in_order(outcome.configuration))  # whoever was ready first
    tried = Tried(len(chosen), excluded, time.monotonic() - begun)
    _report(problem, found, tried, options, assumed)
    if journal.failure:
        raise journal.failure
    if interrupted:
        return INTERRUPTED
    return 0 if any(outcome.fits for outcome in found) else NOTHING_FITS


def _report(
    problem: Problem,
    outcomes: Sequence[Outcome],
    tried: Tried,
    options: argparse.Namespace,
    assumed: Sequence[str],
) -> None:
    best_first = ranked(outcomes)
    front = {outcome.configuration for outcome in pareto(best_first)}
    if options.json:
        rows = [{**each.record, "pareto": each.configuration in front} for each in best_first]
        missed = {"nearest": nearest(outcomes).record} if outcomes and not rows else {}
        counts = {"tried": tried.all, "simulated": len(outcomes), "excluded": tried.excluded}
        record = {"configurations": rows, **counts, "seconds": tried.seconds, **missed}
        print_json(with_assumptions(record, assumed))
    else:
        _print(problem, outcomes, best_first, front, tried)
    if options.best and best_first:
        best = experiment_text(_experiment(best_first[0], options))
        with options.best.written() as path:
            path.write_text(best, encoding="utf-8")
    if options.html:
        drawn = [_experiment(each, options) for each in best_first[:TIMELINES]]
        title = f"{problem.model.name} on {problem.gpus} GPUs of {problem.cluster.name}"
        write_found_page(options.html, title, best_first, front, drawn)
    if options.out:
        kept = [*best_first, *(each for each in outcomes if not each.fits)]
        write_table(options.out, kept, front)


def _experiment(best: Outcome, options: argparse.Namespace) -> Experiment:
    """The experiment that predicts a configuration as the search did."""
    named = ("model", "seq_length", "cluster", "constants")
    values = best.record | {name: getattr(options, name) for name in named}
    known = ("schedule", *OPTIONS, *best.configuration.schedule.parameters)
    return experiment_of({name: values[name] for name in known if values.get(name) is not None})


def _print(
    problem: Problem,
    outcomes: Sequence[Outcome],
    best_first: Sequence[Outcome],
    front: set[Configuration],
    tried: Tried,
) -> None:
    title = (
        f"{problem.model.name} on {problem.gpus} GPUs of {problem.cluster.name}: "
        f"{len(best_first):,} of {tried}. "
        "Tflop/s per GPU; GB on the largest rank; * none is faster with less memory"
    )
    shown = list(best_first[:SHOWN])
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
    "schedule", "batch", "pp x tp x dp", "loops", "micro-batches", "choices", "MFU",
    "Tflop/s", "GB", "",
)  # fmt: skip


def _groups(row: Mapping[str, Any]) -> str:
    further = "".join(f", {name.upper()} {row[name]}" for name in ("cp", "ep") if row[name] > 1)
    return f"{row['pp']} x {row['tp']} x {row['dp']}{further}"


def _choices(row: Mapping[str, Any]) -> list[str]:
    """The sharding, and what is not the default of it or of the software.

    Of uneven stages the fewest and most layers.
    """
    default = Communication()
    layers = [int(each) for each in row["cut"].split(",")] if row["cut"] else []
    named = [row[name] for name in ("sharding", "precision", "recompute") if row[name]]
    uneven = [f"{min(layers)} to {max(layers)} layers"] if layers else []
    return [
        *named,
        *uneven,
        *(
            f"{name.replace('_', ' ')} {row[name]}"
            for name in FULLY_SHARDED
            if row[name] != getattr(default, name)
        ),
    ]


def _row(outcome: Outcome, front: set[Configuration]) -> tuple[str, ...]:
    row = outcome.record
    sequence = row["sequence"]
    longer = f" ({sequence})" if sequence and sequence > row["pp"] else ""
    return (
        row["schedule"] + longer,
        str(row["batch"]),
        _groups(row),
        str(row["loops"]),
        f"{row['microbatches']} of {row['microbatch_size']}",
        ", ".join(_choices(row)),
        f"{row['mfu']:.1%}",
        f"{row['tflops_per_gpu']:.2f}",
        f"{row['memory_largest_gb']:.1f}",
        "*" if outcome.configuration in front else "",
    )
