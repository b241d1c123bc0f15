"""`bfpp compare`: several schedules side by side."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from bfpp.api.predictions import Prediction, predict
from bfpp.api.results import NOISE, Result, fastest, verdict
from bfpp.options import shared
from bfpp.options.model import assumptions, with_assumptions
from bfpp.options.named_experiments import compared, require_model, require_same_unit
from bfpp.reports.pictures import (
    add_picture_arguments,
    check_picture_arguments,
    print_text,
    write_pictures,
)
from bfpp.reports.prediction_notes import print_cautions
from bfpp.schedules import InvalidConfiguration, Layout
from bfpp.schedules.families.registry import DEFAULT_SCHEDULES
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.experiment.side_by_side import side_by_side
from bfpp.terminal.outputs import add_force_argument
from bfpp.terminal.parser import Parser
from bfpp.terminal.printing import print_json, print_table


def add_arguments(parser: Parser) -> None:
    """The options of `bfpp compare`."""
    parser.add_argument(
        "schedules",
        nargs="*",
        metavar="SCHEDULE",
        help="schedules to compare, by name or from files as bfpp simulate takes them; next to a "
        "file, a schedule by name has the file's values (default: "
        f"{', '.join(DEFAULT_SCHEDULES)})",
    )
    shared.add_experiment_arguments(parser)
    shared.add_engine_argument(parser)
    add_picture_arguments(parser)
    add_force_argument(parser)
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Simulate each schedule on the same model, cut into the same stages."""
    check_picture_arguments(options)
    names = options.schedules or DEFAULT_SCHEDULES
    known = compared(names, trust=options.trust)
    experiments = side_by_side(known, shared.given(options))
    for name, each in zip(names, experiments, strict=True):
        require_model(name, each)
    require_same_unit(experiments)
    _require_same_model(experiments)
    assumed = assumptions(options)
    results = _told_apart(names, [predict(each, options.engine) for each in experiments])
    if options.json:
        record = {"schedules": [result.record for result in results]}
        print_json(with_assumptions(record, assumed))
    else:
        print_text(options, results)
        _print(results)
    write_pictures(options, results, "Schedules compared", verdict(results))
    return 0


def _require_same_model(experiments: Sequence[Experiment]) -> None:
    """Refuse abstract costs of stages that are not the same share of the model."""
    units = {each.configuration.layout.units for each in experiments if not each.physical}
    if len(units) > 1:
        raise InvalidConfiguration(
            "units_per_stage",
            f"schedules of {' and '.join(map(str, sorted(units)))} units do not compare; "
            "with seconds per unit, --loops divides all of them alike",
        )


def _told_apart(names: Sequence[str], results: Sequence[Prediction]) -> list[Prediction]:
    """The results, those of schedules of one name called what each was named by."""
    times = Counter(result.name for result in results)
    return [
        replace(result, label=name) if times[result.name] > 1 else result
        for name, result in zip(names, results, strict=True)
    ]


def _print(results: Sequence[Prediction]) -> None:
    """A column for each schedule, a row for each number."""
    first = fastest(results)
    least = first.timeline.step_time if first else 0.0

    def beside_the_fastest(result: Result) -> str:
        if result.shortage:
            return "does not fit"
        slower = result.timeline.step_time / least - 1 if least else 0.0
        return f"+{slower:.1%}" if slower > NOISE else "fastest"

    rows = [
        ("", *(beside_the_fastest(result) for result in results)),
        (
            "stages, units per rank",
            *(_division(each.timeline.graph.layout) for each in results),
        ),
    ]
    highlights = [dict(result.highlights()) for result in results]
    titles = dict.fromkeys(chain(*sorted(highlights, key=len, reverse=True)))
    rows.extend((title, *(lines.get(title, "-") for lines in highlights)) for title in titles)
    names = [result.name for result in results]
    print_table(results[-1].size, ("", *names), rows)
    print_cautions(results)


def _division(layout: Layout) -> str:
    return f"{layout.stages / layout.pp:g}, {layout.units / layout.pp:g}"
