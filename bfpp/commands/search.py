"""`bfpp search`: the best ways to train a model on N GPUs."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple

from rich.text import Text

from bfpp.api.searching import broken_rules, chosen_configurations, search, untried
from bfpp.api.workers import Workers
from bfpp.launchers.limits import ANY, NONE
from bfpp.options import shared
from bfpp.options.experiment_file import experiment_text
from bfpp.options.launch_notes import launch_of, launch_record, report_left_out
from bfpp.options.model import assumptions, with_assumptions
from bfpp.options.search import add_problem_arguments, problem_of
from bfpp.options.search_file import (
    add_search_file,
    search_text,
)
from bfpp.reports.search.costs import cost
from bfpp.reports.search.page import TIMELINES, write_search_page
from bfpp.reports.search.ranking import ALL, Ranking, experiment_of_outcome, ranking_of
from bfpp.reports.search.results import WRITERS, Journal, write_table
from bfpp.reports.search.summary import (
    print_answer,
    print_given,
    record_of_answer,
    record_of_rival,
)
from bfpp.reports.search.table import SHOWN, print_cases, print_outcomes
from bfpp.schedules import InvalidInput
from bfpp.sim.search.defaults import USUAL_RISK
from bfpp.sim.search.objectives import USUAL_JITTER, Jitter, Objective
from bfpp.sim.search.outcomes import Outcomes
from bfpp.sim.search.problem import RANGES, Problem
from bfpp.sim.search.pruning import TOO_LARGE
from bfpp.sim.search.ranking import (
    best_of_cases,
    nearest,
)
from bfpp.terminal.error_lines import blaming
from bfpp.terminal.formats import EXPERIMENT, HTML, JOURNAL, SEARCH
from bfpp.terminal.interrupts import INTERRUPTED
from bfpp.terminal.number_types import not_negative, probability, seconds, seed, whole_number
from bfpp.terminal.outputs import add_force_argument, add_output
from bfpp.terminal.parser import Parser
from bfpp.terminal.printing import counted, output, print_json

NOTHING_FITS = 1

RULES = 3
"""Broken rules that are printed: the most frequent ones."""


class Tried(NamedTuple):
    """Number of configurations, reasons why some were not simulated, and seconds taken.

    `interrupted`: the others are not known to be worse.
    """

    all: int
    excluded: Counter[str]
    seconds: float
    interrupted: bool


def add_arguments(parser: Parser) -> None:
    """The options of `bfpp search`."""
    add_search_file(parser)
    add_problem_arguments(parser)
    results = parser.add_argument_group("results")
    add_output(
        results,
        "--journal",
        [JOURNAL],
        "append every result to FILE; results already in it are not simulated again",
        grows=True,
    )
    parser.add_argument(
        "--top",
        type=_top,
        metavar="K|all",
        help="find the K best and the Pareto front of throughput and memory, and simulate only "
        f"what can be one of them (default: {SHOWN}; with --out or --journal, all that there is)",
    )
    parser.add_argument(
        "--risk",
        type=probability,
        default=USUAL_RISK,
        metavar="X",
        help="probability of running out of memory that the best may have (default: "
        f"{USUAL_RISK:g})",
    )
    parser.add_argument(
        "--objective",
        choices=list(Objective),
        default=Objective.THROUGHPUT,
        help="what to optimise: samples per second, memory, GPU-hours per token, or a quantile of "
        "the step time under jitter (default: throughput)",
    )
    _add_jitter(parser.add_argument_group("robustness"))
    parser.add_argument(
        "--price", type=not_negative, metavar="P", help="price of a GPU-hour, in any currency"
    )
    add_output(results, "--save", [SEARCH], "write this search, every value of it, to take as FILE")
    add_output(results, "--best", [EXPERIMENT], "write the best as an experiment file")
    add_output(
        results, "--html", [HTML], "web page: throughput against memory, and the best timelines"
    )
    add_output(results, "--out", list(WRITERS), "write all results to FILE.csv or FILE.parquet")
    add_force_argument(parser)
    shared.add_json_argument(parser)


def _add_jitter(group: argparse._ArgumentGroup) -> None:
    """The variation of costs, for the objective of robustness."""
    for name, kind, purpose in (
        (
            "deviation",
            seconds,
            "relative standard deviation of the costs of ranks and of tasks",
        ),
        ("quantile", seconds, "quantile of the step time"),
        ("draws", whole_number, "number of draws"),
        ("seed", seed, "random seed"),
    ):
        default = getattr(USUAL_JITTER, name)
        group.add_argument(
            f"--jitter-{name}",
            type=kind,
            default=default,
            metavar="X" if kind is seconds else "N",
            help=f"robustness: {purpose} (default: {default})",
        )


def _top(text: str) -> int | str:
    return text if text == ALL else whole_number(text)


def run(options: argparse.Namespace) -> int:
    """Enumerate, simulate, rank."""
    with Workers(options.executor, options.workers) as workers:
        return _search(options, workers)


def _search(options: argparse.Namespace, workers: Workers) -> int:
    begun = time.monotonic()
    report_left_out(options.command, options.file, options.said)
    problem = replace(
        problem_of(options),
        objective=Objective(options.objective),
        jitter=_jitter(options),
        risk=options.risk,
    )
    chosen = chosen_configurations(problem)
    with blaming("--journal"):
        journal = Journal(options.journal and options.journal.place, problem)
    launch, excluded, interrupted = launch_of(options.file, options.said), Counter[str](), False
    assumed = [*assumptions(options), *(launch.assumed if launch else ())]
    try:
        known = journal.outcomes
        every = _keeps_all(options)
        top = None if every or options.top == ALL else options.top or SHOWN
        for part in search(problem, workers, known or None, top=top, every=every):
            journal.add(part.outcomes)
            excluded += part.excluded
    except KeyboardInterrupt:
        interrupted = True
        workers.end()
    outcomes = journal.outcomes
    outcomes = outcomes.take(outcomes.space.are_in(chosen))
    outcomes = outcomes.take(outcomes.space.places_in_order)  # whoever was ready first
    tried = Tried(len(chosen), excluded, time.monotonic() - begun, interrupted)
    ranking = ranking_of(problem, outcomes, options, workers)
    if options.json:
        record = _record(problem, ranking, tried, options) | launch_record(launch)
        print_json(with_assumptions(record, assumed))
    else:
        _print(problem, ranking, tried, options)
    _write(problem, ranking, options)
    if journal.failure:
        raise journal.failure
    if interrupted:
        return INTERRUPTED
    return 0 if outcomes.fits.any() else NOTHING_FITS


def _keeps_all(options: argparse.Namespace) -> bool:
    """True if a file is to hold all results, not only the best."""
    return options.top in (None, ALL) and bool(options.out or options.journal)


def _record(
    problem: Problem, ranking: Ranking, tried: Tried, options: argparse.Namespace
) -> dict[str, Any]:
    """The search as a JSON object; times in seconds."""
    on_front = ranking.best_first.space.are_in(ranking.front.space)
    record = {
        "configurations": [
            {
                **each.record,
                "pareto": is_in_front,
                "ties": ranking.ties.get(each.configuration),
                **ranking.interval(each),
                **cost(each, options.price),
            }
            for each, is_in_front in zip(ranking.best_first, on_front.tolist(), strict=True)
        ],
        "cases": [
            {**each.record, **cost(each, options.price)}
            for each in best_of_cases(ranking.best_first)
        ],
        "implementation": problem.implementation.name,
        "tried": tried.all,
        "simulated": len(ranking.outcomes),
        "excluded": tried.excluded,
        "merged": ranking.merged,
        "seconds": tried.seconds,
        "untried": untried(problem),
        "invalid": broken_rules(problem),
    }
    if len(ranking.outcomes) and not len(ranking.best_first):
        record["nearest"] = nearest(ranking.outcomes).record
    if ranking.answer:
        record["decision"] = record_of_answer(ranking.answer)
    if ranking.given:
        record["given"] = record_of_rival(ranking.given)
    return record


def _print(problem: Problem, ranking: Ranking, tried: Tried, options: argparse.Namespace) -> None:
    """Print the table, what was not tried, and why the best wins."""
    title = (
        f"{_subject(problem)}: {tried.all:,} configurations, {len(ranking.outcomes):,} simulated "
        f"in {tried.seconds:.1f} s{' until interrupted' if tried.interrupted else ''}, "
        f"{len(ranking.best_first):,} fit in memory"
    )
    if warning := problem.implementation.too_old_for(problem.cluster):
        _print_line(f"This may not be what you want: {warning}.")
    print_outcomes(title, ranking.outcomes, ranking.shown, ranking.decision, problem)
    if len(of_cases := best_of_cases(ranking.best_first)) > 1:
        print_cases(of_cases, options.price)
    if hints := untried(problem):
        _print_line(f"Not tried: {'; '.join(hints)}.")
    if (invalid := broken_rules(problem)) and _asks(options):
        rules = "; ".join(f"{rule} ({count:,})" for rule, count in invalid.most_common(RULES))
        more = f"; and {len(invalid) - RULES:,} more rules" if len(invalid) > RULES else ""
        _print_line(f"Not valid: {rules}{more}.")
    if ranking.answer:
        left_out = {
            **tried.excluded,
            f"{TOO_LARGE}, once simulated": len(ranking.outcomes) - len(ranking.best_first),
            "is a duplicate under another name": ranking.merged,
        }
        costs = cost(ranking.answer.decision.winner, options.price)
        if ranking.given:
            print_given(options.file, ranking.given)
        print_answer(ranking.answer, left_out, costs, problem.jitter)


def _asks(options: argparse.Namespace) -> bool:
    """True if values were asked for, so that it matters which of them are not valid."""
    asked = any(getattr(options, name) for name in ("schedule", "fix", *RANGES))
    return asked or getattr(options, "for") not in (ANY, NONE)


def _print_line(text: str) -> None:
    output().print(Text(f"{text}\n"), soft_wrap=True)


def _write(problem: Problem, ranking: Ranking, options: argparse.Namespace) -> None:
    """Write the files that are asked for."""
    if options.save:
        with options.save.written() as path:
            path.write_text(search_text(options, problem), encoding="utf-8")
    if options.best and len(ranking.best_first):
        text = experiment_text(experiment_of_outcome(ranking.best_first[0], problem, options))
        with options.best.written() as path:
            path.write_text(text, encoding="utf-8")
    if options.html:
        drawn = [experiment_of_outcome(each, problem, options) for each in ranking.once[:TIMELINES]]
        write_search_page(options.html, _subject(problem), ranking.once, ranking.front.space, drawn)
    if options.out:
        too_large = ranking.outcomes.take(~ranking.outcomes.fits)
        kept = Outcomes.joined([ranking.best_first, too_large])
        write_table(options.out, kept, ranking.front.space)


def _subject(problem: Problem) -> str:
    """The model, the GPUs and the software."""
    *fewer, most = problem.gpus
    gpus = "".join(f"{each:,}, " for each in fewer) + counted(most, "GPU")
    where = f"{gpus} of {problem.cluster.name}"
    return f"{problem.model.name} on {where}, implementation {problem.implementation.name}"


def _jitter(options: argparse.Namespace) -> Jitter:
    """The variation of costs, for the objective of robustness."""
    given = Jitter(**{name: getattr(options, f"jitter_{name}") for name in Jitter._fields})
    if not 0 <= given.quantile <= 1:
        raise InvalidInput(f"--jitter-quantile: must be from 0 to 1, not {given.quantile:g}")
    return given
