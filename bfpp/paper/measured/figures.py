"""Figures 5 to 7 of the paper from a study: measured and predicted throughput."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

from bfpp.api.study.study import SCHEDULE, schedule_of
from bfpp.api.study.table import TableRow
from bfpp.paper.charts import draw_charts
from bfpp.paper.figures.figure_6 import LOOPS, WITHOUT_LOOPS
from bfpp.paper.figures.figure_7_claims import ALONE
from bfpp.paper.item import Claim, Folder, ItemOutput
from bfpp.paper.measured.claims import (
    BREADTH,
    METHODS,
    claims_of_5,
    claims_of_6,
    claims_of_7,
    claims_of_hybrid,
)
from bfpp.paper.measured.panels import MICROBATCHES, CellPanel, charts, panels

MOST_COLUMNS = 4


class MeasuredPanels(NamedTuple):
    """A figure's panels, in rows of `columns`, the claims on them, and a sentence."""

    panels: Sequence[CellPanel]
    x_title: str
    columns: int
    claims: Sequence[Claim]
    sentence: str


class MeasuredFigure(NamedTuple):
    """A figure of a study: the function that makes its panels, and the cells that it needs."""

    make: Callable[[Sequence[TableRow]], MeasuredPanels]
    needs: str


def _figure_5(rows: Sequence[TableRow]) -> MeasuredPanels:
    """The paper's four schedules, and in a second row those that came after them."""
    found = _drawable(panels(rows, (SCHEDULE, MICROBATCHES), _schedule, _microbatches))
    known = _drawable([panel.only(METHODS) for panel in found])
    later = [
        panel.only([BREADTH, *names], f"{panel.title}: other schedules")
        for panel in found
        if (names := [name for name in panel.curves if name not in METHODS])
    ]
    claims = [*claims_of_5(_whole(known, METHODS)), *claims_of_hybrid(found)]
    sentence = (
        "Other schedules are not in the paper; breadth-first is beside them." if later else ""
    )
    x_title = "sequential micro-batches"
    return MeasuredPanels([*known, *later], x_title, _columns(known or later), claims, sentence)


def _figure_6(rows: Sequence[TableRow]) -> MeasuredPanels:
    """The looped schedules by loops; with one, they are those that do not loop."""
    found = _drawable(panels(rows, (SCHEDULE, "loops", "units_per_stage"), _looped, _loops))
    cases = [*dict.fromkeys(panel.case for panel in found)]
    found.sort(key=lambda panel: (cases.index(panel.case), _batch(panel.cells[0])))
    whole = [panel for panel in _whole(found, WITHOUT_LOOPS) if panel.axis[0] == 1]
    missing = [each for each in LOOPS if each not in {at for panel in found for at in panel.axis}]
    sentence = "With one loop, breadth-first is GPipe, and depth-first 1F1B."
    if missing:
        sentence += f" Not in the study: {' and '.join(map(str, missing))} loops."
    columns = _columns([panel for panel in found if panel.case == found[0].case])
    return MeasuredPanels(found, "loops (stages per device)", columns, claims_of_6(whole), sentence)


def _figure_7(rows: Sequence[TableRow]) -> MeasuredPanels:
    """The fastest of each method by batch size."""
    every = {name for row in rows for name in row.values}
    found = _drawable([
        panel.only([*dict.fromkeys(METHODS.values()), ALONE])
        for panel in panels(rows, every, _method, _batch)
    ])  # fmt: skip
    sentence = "The fastest measured cell of each method."
    if not any(ALONE in panel.curves for panel in found):
        sentence += " Not in the study: training without a pipeline."
    claims = claims_of_7(_whole(found, METHODS.values()))
    return MeasuredPanels(found, "batch size", _columns(found), claims, sentence)


FIGURES = {
    "figure-5": MeasuredFigure(
        _figure_5, "several numbers of micro-batches of the paper's schedules"
    ),
    "figure-6": MeasuredFigure(
        _figure_6, "several numbers of loops, of which one may be GPipe or 1F1B"
    ),
    "figure-7": MeasuredFigure(_figure_7, "several batch sizes of the paper's schedules"),
}
"""The figures that a study may hold."""


def measured_figure(name: str, rows: Sequence[TableRow]) -> Callable[[Folder], ItemOutput] | None:
    """Draws a figure of a study into a folder; None where the study has not the cells for it."""
    made = FIGURES[name].make(rows)
    return partial(_drawn, name, made) if made.panels else None


def _drawn(name: str, made: MeasuredPanels, folder: Folder) -> ItemOutput:
    sentence = f"Means with 95 % intervals, beside predictions. {made.sentence}".strip()
    drawn = charts(made.panels, made.x_title)
    return draw_charts(drawn, folder, f"{name}-measured", sentence, made.columns, made.claims)


def _columns(row: Sequence[CellPanel]) -> int:
    """Charts in a row, if they belong side by side."""
    return len(row) if 0 < len(row) <= MOST_COLUMNS else MOST_COLUMNS - 1


def _drawable(found: Sequence[CellPanel]) -> list[CellPanel]:
    """Panels with a curve at several places."""
    return [panel for panel in found if len(panel.axis) > 1]


def _whole(found: Sequence[CellPanel], names: Collection[str]) -> list[CellPanel]:
    """Panels with all of these curves, at each place of the axis."""
    return [
        panel
        for panel in found
        if {*names} <= {*panel.curves}
        and all([*panel.curves[name]] == panel.axis for name in names)
    ]


def _schedule(row: TableRow) -> str:
    return schedule_of(row.values, row.experiment)


def _microbatches(row: TableRow) -> int:
    return row.experiment.microbatches


def _looped(row: TableRow) -> str | None:
    """The looped schedule that a cell belongs to."""
    names = {at_one: looped for looped, at_one in WITHOUT_LOOPS.items()}
    name = _schedule(row)
    return names.get(name, name if name in WITHOUT_LOOPS else None)


def _batch(row: TableRow) -> int:
    return row.experiment.configuration.batch


def _loops(row: TableRow) -> int:
    return row.experiment.loops or 1


def _method(row: TableRow) -> str | None:
    alone = row.experiment.configuration.degrees.pp == 1
    return ALONE if alone else METHODS.get(_schedule(row))
