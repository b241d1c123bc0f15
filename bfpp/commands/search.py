"""`bfpp search`: the best ways to train a model on N GPUs."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from rich.text import Text

from bfpp import options as shared
from bfpp.__main__ import INTERRUPTED
from bfpp.errors import blaming
from bfpp.experiment_file import experiment_text
from bfpp.formats import EXPERIMENT, HTML, JOURNAL
from bfpp.model_options import assumptions, with_assumptions
from bfpp.numbers_given import not_negative
from bfpp.outputs import add_force_argument, add_output
from bfpp.results import counted, output, print_json
from bfpp.schedules import InvalidInput
from bfpp.schedules.offload import OFF
from bfpp.search_fixed import parse_fixed
from bfpp.search_page import TIMELINES, write_found_page
from bfpp.search_results import WRITERS, Journal, write_table
from bfpp.search_summary import cost, print_decision, record_of
from bfpp.search_table import print_found, rows_of
from bfpp.search_untried import untried
from bfpp.searching import (
    add_problem_arguments,
    broken_rules,
    chosen_configurations,
    decided,
    problem_of,
    search,
)
from bfpp.sim.decision import without_duplicates
from bfpp.sim.experiment import OF_OFFLOAD, Experiment, experiment_of
from bfpp.sim.experiment_values import DEFAULTS, OPTIONS
from bfpp.sim.objectives import USUAL_JITTER, Jitter, Objective
from bfpp.sim.outcomes import Outcome, nearest, pareto, ranked
from bfpp.sim.pruning import TOO_LARGE
from bfpp.sim.search import Problem, in_order
from bfpp.workers import Workers

NOTHING_FITS = 1

RULES = 3
"""How many of the broken rules are printed: the most frequent ones."""


class Tried(NamedTuple):
    """How many configurations there were, why some were not simulated, and how long it took.

    `interrupted`: the others are not known to be worse.
    """

    all: int
    excluded: Counter[str]
    seconds: float
    interrupted: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp search`."""
    add_problem_arguments(parser)
    add_output(
        parser,
        "--journal",
        [JOURNAL],
        "append every result to FILE; results already in it are not simulated again",
        grows=True,
    )
    parser.add_argument(
        "--top",
        type=shared.whole_number,
        metavar="K",
        help="find the K best and the Pareto front of throughput and memory, and simulate only "
        "what can be one of them (default: simulate everything)",
    )
    parser.add_argument(
        "--objective",
        choices=list(Objective),
        default=Objective.THROUGHPUT,
        help="what to optimise: samples per second, memory, GPU-hours per token, or a quantile of "
        "the step time under jitter (default: throughput)",
    )
    for name, kind, purpose in (
        (
            "deviation",
            shared.seconds,
            "relative standard deviation of the costs of ranks and of tasks",
        ),
        ("quantile", shared.seconds, "quantile of the step time"),
        ("draws", shared.whole_number, "number of draws"),
        ("seed", shared.whole_number, "random seed"),
    ):
        default = getattr(USUAL_JITTER, name)
        parser.add_argument(
            f"--jitter-{name}",
            type=kind,
            default=default,
            metavar="X" if kind is shared.seconds else "N",
            help=f"robustness: {purpose} (default: {default})",
        )
    parser.add_argument(
        "--price", type=not_negative, metavar="P", help="price of a GPU-hour, in any currency"
    )
    add_output(parser, "--best", [EXPERIMENT], "write the best as an experiment file")
    add_output(
        parser, "--html", [HTML], "web page: throughput against memory, and the best timelines"
    )
    add_output(parser, "--out", list(WRITERS), "write all results to FILE.csv or FILE.parquet")
    add_force_argument(parser)
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Enumerate, simulate, rank."""
    with Workers(options.executor, options.workers) as workers:
        return _search(options, workers)


def _search(options: argparse.Namespace, workers: Workers) -> int:
    begun = time.monotonic()
    problem = replace(
        problem_of(options), objective=Objective(options.objective), jitter=_jitter(options)
    )
    chosen = set(chosen_configurations(problem))
    with blaming("--journal"):
        journal = Journal(options.journal and options.journal.place, problem)
    assumed, excluded, interrupted = assumptions(options), Counter[str](), False
    try:
        for part in search(problem, options, workers, [*journal.outcomes]):
            journal.add(part.outcomes)
            excluded += part.excluded
    except KeyboardInterrupt:
        interrupted = True
        workers.end()
    found = [outcome for outcome in journal.outcomes if outcome.configuration in chosen]
    found.sort(key=lambda outcome: in_order(outcome.configuration))  # whoever was ready first
    tried = Tried(len(chosen), excluded, time.monotonic() - begun, interrupted)
    _report(problem, found, tried, options, assumed, workers)
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
    workers: Workers,
) -> None:
    best_first = ranked(outcomes, problem.objective)
    front = {outcome.configuration for outcome in pareto(ranked(outcomes))}
    once = without_duplicates(best_first)
    shown = rows_of(once, options.top)
    found = decided(problem, once, shown, workers)
    ties = found.ties if found else {}
    merged = len(best_first) - len(once)
    hints, invalid = untried(problem), broken_rules(problem)
    if options.json:
        record = {
            "configurations": [
                {
                    **each.record,
                    "pareto": each.configuration in front,
                    "ties": ties.get(each.configuration),
                    **cost(each, options.price),
                }
                for each in best_first
            ],
            "tried": tried.all,
            "simulated": len(outcomes),
            "excluded": tried.excluded,
            "merged": merged,
            "seconds": tried.seconds,
            "untried": hints,
            "invalid": invalid,
        }
        if outcomes and not best_first:
            record["nearest"] = nearest(outcomes).record
        if found:
            record["decision"] = record_of(found)
        print_json(with_assumptions(record, assumed))
    else:
        title = (
            f"{_subject(problem)}: {tried.all:,} configurations, {len(outcomes):,} simulated in "
            f"{tried.seconds:.1f} s{' until interrupted' if tried.interrupted else ''}, "
            f"{len(best_first):,} fit in memory"
        )
        print_found(title, outcomes, shown, ties, problem.jitter)
        if hints:
            output().print(Text(f"Not tried: {'; '.join(hints)}.\n"), soft_wrap=True)
        if invalid:
            rules = "; ".join(f"{rule} ({count:,})" for rule, count in invalid.most_common(RULES))
            more = f"; and {len(invalid) - RULES:,} more rules" if len(invalid) > RULES else ""
            output().print(Text(f"Not valid: {rules}{more}.\n"), soft_wrap=True)
        if found:
            left_out = {
                **tried.excluded,
                f"{TOO_LARGE}, once simulated": len(outcomes) - len(best_first),
                "is the same as another by another name": merged,
            }
            best = _experiment(found.winner, problem, options)
            costs = cost(found.winner, options.price)
            print_decision(found, left_out, best, costs, problem.jitter)
    if options.best and best_first:
        text = experiment_text(_experiment(best_first[0], problem, options))
        with options.best.written() as path:
            path.write_text(text, encoding="utf-8")
    if options.html:
        drawn = [_experiment(each, problem, options) for each in once[:TIMELINES]]
        write_found_page(options.html, _subject(problem), once, front, drawn)
    if options.out:
        kept = [*best_first, *(each for each in outcomes if not each.fits)]
        write_table(options.out, kept, front)


def _subject(problem: Problem) -> str:
    """What is trained on what, by which software."""
    where = f"{counted(problem.gpus, 'GPU')} of {problem.cluster.name}"
    return f"{problem.model.name} on {where}, implementation {problem.implementation.name}"


def _experiment(best: Outcome, problem: Problem, options: argparse.Namespace) -> Experiment:
    """The experiment that predicts a configuration as the search did."""
    named = ("model", "seq_length", "cluster", "constants")
    values = best.record | {name: getattr(options, name) for name in named}
    values |= dict(problem.fixed) | parse_fixed(options.fix, options.schedule or ()).of_model
    if values["offload"] == OFF:
        values |= dict.fromkeys(OF_OFFLOAD)
    known = ("schedule", *OPTIONS, *best.configuration.schedule.parameters)
    given = {name: values[name] for name in known if values.get(name) is not None}
    return experiment_of({name: each for name, each in given.items() if each != DEFAULTS.get(name)})


def _jitter(options: argparse.Namespace) -> Jitter:
    """How costs vary, where robustness is sought."""
    given = Jitter(**{name: getattr(options, f"jitter_{name}") for name in Jitter._fields})
    if not 0 <= given.quantile <= 1:
        raise InvalidInput(f"--jitter-quantile: must be from 0 to 1, not {given.quantile:g}")
    return given
