"""`bfpp tradeoff`: training time against cost, over sizes of the cluster."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from bfpp.api.searching import chosen_configurations, search
from bfpp.api.workers import Workers
from bfpp.options import shared
from bfpp.options.launch_notes import report_left_out
from bfpp.options.model import assumptions, with_assumptions
from bfpp.options.search import add_problem_arguments, problem_of
from bfpp.options.search_file import add_search_file
from bfpp.reports.pictures import add_figure, write_figure
from bfpp.schedules import InvalidConfiguration
from bfpp.sim.search.outcomes import Outcome
from bfpp.sim.search.problem import Problem
from bfpp.sim.search.tradeoff import TrainingCost, tradeoff
from bfpp.sim.theory.batch import BASE_STEPS
from bfpp.terminal.number_types import not_negative, whole_number
from bfpp.terminal.outputs import add_force_argument
from bfpp.terminal.parser import Parser
from bfpp.terminal.printing import print_json, print_table
from bfpp.traces.figures.svg.line_chart import Chart, Series, svg_charts

SIZES = (256, 512, 1024, 2048, 4096, 8192, 16384)


def add_arguments(parser: Parser) -> None:
    """The options of `bfpp tradeoff`."""
    add_search_file(parser)
    add_problem_arguments(parser)
    parser.add_argument(
        "--critical-batch",
        required=True,
        type=whole_number,
        metavar="B",
        help="critical batch size, in samples: there, training needs twice as many samples",
    )
    parser.add_argument(
        "--sizes",
        nargs="+",
        type=whole_number,
        default=SIZES,
        metavar="N",
        help=f"sizes of the cluster, in GPUs (default: {' '.join(map(str, SIZES))})",
    )
    parser.add_argument(
        "--price",
        type=not_negative,
        metavar="P",
        help="price of a GPU-hour, in any currency",
    )
    add_figure(parser, "--svg", "cost against time")
    add_force_argument(parser)
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Search, extrapolate, and lay out by schedule."""
    report_left_out(options.command, options.file, options.said)
    problem = problem_of(options)
    chosen_configurations(problem)
    assumed = assumptions(options)
    outcomes: dict[str, list[Outcome]] = {each.reference: [] for each in problem.rules}
    with Workers(options.executor, options.workers) as workers:
        for part in search(problem, workers):
            for outcome in part.outcomes:
                outcomes[outcome.configuration.schedule.reference].append(outcome)
    by_schedule = {
        name: tradeoff(every, options.sizes, options.critical_batch)
        for name, every in outcomes.items()
    }
    if not any(outcome.fits for every in outcomes.values() for outcome in every):
        raise InvalidConfiguration(
            "model", "nothing fits in memory; `bfpp search` shows what is missing"
        )
    extrapolated = {each.gpus for trainings in by_schedule.values() for each in trainings}
    if missing := [f"{gpus:,}" for gpus in options.sizes if gpus not in extrapolated]:
        searched = ", ".join(map(str, problem.gpus))
        reason = f"replicas of what fits on {searched} GPUs do not fill {', '.join(missing)}"
        raise InvalidConfiguration("sizes", reason)
    if options.json:
        sizes = {
            name: [_record(each, options) for each in every] for name, every in by_schedule.items()
        }
        record = {**sizes, "schedules": sizes, "implementation": problem.implementation.name}
        print_json(with_assumptions(record, assumed))
    else:
        _print(by_schedule, options, problem)
    if options.svg:
        write_figure(options.svg, svg_charts([_chart(by_schedule, problem.model.name)]))
    return 0


def _chart(by_schedule: dict[str, list[TrainingCost]], model: str) -> Chart:
    series = [
        Series(name, [each.days for each in trainings], [each.gpu_days / 1e3 for each in trainings])
        for name, trainings in by_schedule.items()
    ]
    return Chart(
        model,
        "training time (days)",
        "cost (1,000 GPU-days)",
        series,
        logarithmic_x=True,
        logarithmic_y=True,
    )


def _record(each: TrainingCost, options: argparse.Namespace) -> dict[str, object]:
    record = {**asdict(each), "outcome": each.outcome.record}
    return record if options.price is None else {**record, "price": each.price(options.price)}


def _print(
    by_schedule: dict[str, list[TrainingCost]], options: argparse.Namespace, problem: Problem
) -> None:
    rows = []
    for gpus in dict.fromkeys(options.sizes):
        for name, trainings in by_schedule.items():
            for each in [each for each in trainings if each.gpus == gpus]:
                price = () if options.price is None else (f"{each.price(options.price):,.0f}",)
                degrees = each.outcome.configuration.degrees
                cells = (
                    name,
                    f"{each.days:,.1f}",
                    f"{each.gpu_days:,.0f}",
                    *price,
                    f"{each.batch:,.0f}",
                    f"{degrees.pp} x {degrees.tp} x {degrees.dp * gpus // degrees.devices}",
                    f"{each.outcome.model_tflops_per_gpu:.1f}",
                )
                rows.append((f"{gpus:,}", *cells))
    priced = () if options.price is None else ("price",)
    columns = ("GPUs", "schedule", "days", "GPU-days", *priced, "batch", "pp x tp x dp", "TFLOP/s")
    samples = BASE_STEPS * options.critical_batch
    title = (
        f"Training {problem.model.name} on {problem.cluster.name}, implementation "
        f"{problem.implementation.name}, with a critical batch size of "
        f"{options.critical_batch:,}: on {samples:,} samples with small batches, on more with "
        "large ones"
    )
    print_table(title, columns, rows)
