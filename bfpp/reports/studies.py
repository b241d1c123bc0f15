"""A study printed, as a page, and as a table."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from statistics import median
from typing import Any

from rich.text import Text

from bfpp.api.study.clocks import PPM
from bfpp.api.study.intervals import CONFIDENCE
from bfpp.api.study.results import NETWORK, SHARE, CellResult, StudyResult
from bfpp.api.study.study import Study
from bfpp.api.study.table import NUMBERS
from bfpp.terminal.outputs import Output
from bfpp.terminal.printing import counted, output, print_table
from bfpp.traces.figures.svg.scatter import Point, scatter
from bfpp.traces.page.static_page import Section, static_page
from bfpp.traces.timeline.units import in_words

INTERVAL = f"± {CONFIDENCE:.0%}"
"""Half of the interval of a mean, as a share of it."""

CELL_COLUMNS = ("repetitions", "measured", INTERVAL, "predicted", "error", "predicted worst")
GROUP_COLUMNS = ("cells", "Kendall's tau", "best", "predicted best", "slower than the best")

CLOCKS = "Clocks of hosts, beside the first one's"
CLOCK_COLUMNS = ("session", "host", "offset at the start", "offset at the end", "drift", "over")

ROUGHLY_EQUAL = 0.01
"""The error below which nothing is to be explained."""


def print_study(result: StudyResult) -> None:
    """The cells, the rankings, and a sentence on the whole."""
    names = result.study.varied
    print_table(result.study.title, (NETWORK, *names, *CELL_COLUMNS), list(_cells(result)))
    others = _others(result.study)
    print_table("Rankings of schedules", (NETWORK, *others, *GROUP_COLUMNS), list(_groups(result)))
    if result.clocks:
        print_table(CLOCKS, CLOCK_COLUMNS, list(_clocks(result)))
    for line in sentences(result):
        output().print(Text(line))


def sentences(result: StudyResult) -> list[str]:
    """The study in a few sentences."""
    if not result.results:
        return ["Nothing is measured yet."]
    summary = result.summary
    errors = (
        f"{summary['measured']} of {summary['all_cells']} cells are measured: the error of their "
        f"predictions is {median(result.errors):.1%} in the median and {max(result.errors):.1%} "
        f"at most; {summary[SHARE]:.0%} are within 10 %."
    )
    said = [errors]
    if groups := result.groups:
        right = sum(group.best is group.predicted_best for group in groups)
        loss = max(group.loss for group in groups)
        of_all = f"In {right} of {counted(len(groups), 'group')}"
        best = f"{of_all}, the schedule predicted best is the best"
        said.append(f"{best}; elsewhere it is up to {loss:.1%} slower." if loss else f"{best}.")
        if (tau := summary["mean_kendall_tau"]) is not None:
            said.append(f"Kendall's tau of rankings is {tau:.2f} in the mean.")
    return said


def _cells(result: StudyResult) -> Iterator[tuple[str, ...]]:
    for each in result.results:
        values = (_shown(each.cell.values.get(name)) for name in result.study.varied)
        measured = each.measured
        yield (
            each.cell.network,
            *values,
            str(each.repetitions),
            in_words(measured.mean),
            f"{(measured.high - measured.low) / 2 / measured.mean:.1%}",
            in_words(each.predicted),
            f"{each.error:+.1%}",
            _why(each),
        )


def _why(each: CellResult) -> str:
    """The part that is predicted worst, where there is something to explain."""
    if abs(each.error) < ROUGHLY_EQUAL or each.why is None:
        return ""
    part, seconds = each.why
    return f"{part}, by {in_words(seconds)}"


def _others(study: Study) -> list[str]:
    """The values other than the schedule's own that differ."""
    return [name for name in study.varied if any(name in cell.others for cell in study.cells)]


def _groups(result: StudyResult) -> Iterator[tuple[str, ...]]:
    for group in result.groups:
        tau = group.tau
        yield (
            group.network,
            *(_shown(group.values.get(name)) for name in _others(result.study)),
            str(len(group.results)),
            "" if tau is None else f"{tau:.2f}",
            str(group.best.cell.schedule),
            str(group.predicted_best.cell.schedule),
            f"{group.loss:.1%}",
        )


def _clocks(result: StudyResult) -> Iterator[tuple[str, ...]]:
    for each in result.clocks:
        drift = ""
        if each.drift is not None and each.drift_error is not None:
            drift = f"{PPM * each.drift:+.2f} ± {PPM * each.drift_error:.2f} ppm"
        yield (
            each.session,
            str(each.host),
            *(
                f"{in_words(offset)} ± {in_words(error)}"
                for offset, error in (
                    (each.start, each.start_error),
                    (each.end, each.end_error),
                )
            ),
            drift,
            in_words(each.seconds),
        )


def _shown(value: Any) -> str:
    return "" if value is None else str(value)


def drawn(result: StudyResult) -> str:
    """Step times, predicted and measured, as a figure."""
    points = [
        Point(each.cell.network, each.measured.mean, each.predicted) for each in result.results
    ]
    return scatter(points, f"Step time of {counted(len(points), 'cell')}", "s")


def write_study_page(file: Output, result: StudyResult) -> None:
    """Write the page of a study: measured beside predicted, rankings, and what was refused."""
    about = ", ".join(f"{name} {value}" for name, value in result.about.items())
    sections = []
    if result.results:
        names = (NETWORK, *result.study.varied, *CELL_COLUMNS)
        others = (NETWORK, *_others(result.study), *GROUP_COLUMNS)
        sections = [
            Section("Step time, predicted and measured", svg=drawn(result)),
            Section("Rankings of schedules", columns=others, rows=list(_groups(result))),
            Section("Cells", columns=names, rows=list(_cells(result))),
        ]
    if result.clocks:
        sections.append(Section(CLOCKS, columns=CLOCK_COLUMNS, rows=list(_clocks(result))))
    if refused := result.study.refused:
        rows = [
            (", ".join(f"{name} {value}" for name, value in values.items()), reason)
            for values, reason in refused
        ]
        sections.append(Section("Not run", columns=("values", "reason"), rows=rows))
    with file.written() as path:
        lead = [*sentences(result), about]
        path.write_text(static_page(result.study.title, lead, sections), encoding="utf-8")


def write_study_table(file: Output, result: StudyResult) -> None:
    """Write a row for each cell; times in seconds."""
    names = list(dict.fromkeys(name for each in result.results for name in each.cell.values))
    with file.written() as path, path.open("w", encoding="utf-8", newline="") as table:
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow([NETWORK, *names, *NUMBERS])
        for each in result.results:
            record = each.record
            values = [each.cell.values.get(name) for name in names]
            row = [record[name] for name in NUMBERS]
            shown = [f"{value:.6f}" if isinstance(value, float) else value for value in row]
            writer.writerow([each.cell.network, *values, *shown])
