"""Cells of a study in panels: those that differ in what a figure's axis and curves show alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from bfpp.api.study.study import BACKEND
from bfpp.api.study.table import TableRow, varied
from bfpp.executor.settings import BackendName
from bfpp.traces.figures.svg.line_chart import Chart, Series

MICROBATCHES = "microbatches"
RATE = "samples/s per rank"
"""Throughput: of one model on one machine, it is proportional to the paper's utilization."""

Curve = Mapping[int, TableRow]
"""Cells by their place on the axis."""

Rates = Mapping[str, Mapping[int, float]]
"""Throughputs by the name of a curve and the place on the axis."""


@dataclass(frozen=True)
class CellPanel:
    """Curves by name, under a title that says what all of their cells have.

    `case` says that, too, but for the number of micro-batches: what claims are judged for.
    """

    title: str
    case: str
    curves: Mapping[str, Curve]

    @property
    def measured(self) -> Rates:
        """The throughput of each cell, of its mean step time."""
        return self._rates(lambda row: row.measured.mean)

    @property
    def predicted(self) -> Rates:
        """The throughput that was predicted."""
        return self._rates(lambda row: row.predicted)

    @property
    def cells(self) -> list[TableRow]:
        """All cells, curve by curve."""
        return [row for curve in self.curves.values() for row in curve.values()]

    @property
    def axis(self) -> list[int]:
        """The places at which there are cells."""
        return sorted({place for curve in self.curves.values() for place in curve})

    def only(self, names: Collection[str], title: str = "") -> CellPanel:
        """The panel with these of its curves, in this order."""
        kept = {name: self.curves[name] for name in names if name in self.curves}
        return CellPanel(title or self.title, self.case, kept)

    def _rates(self, seconds: Callable[[TableRow], float]) -> Rates:
        return {
            name: {place: rate(row, seconds(row)) for place, row in curve.items()}
            for name, curve in self.curves.items()
        }


def rate(row: TableRow, seconds: float) -> float:
    """Samples a second and rank."""
    own = row.experiment.configuration
    return own.batch / own.degrees.devices / seconds


WORDS = {
    ("pp_overlap", "True"): "transfers that overlap",
    ("pp_overlap", "False"): "transfers that do not overlap",
    (BACKEND, BackendName.CPU.value): "our runtime",
    (BACKEND, BackendName.TORCH_PIPELINING.value): "PyTorch's runtime",
}
"""Values as titles say them."""


def _said(name: str, value: str) -> str:
    if name == MICROBATCHES:
        return f"{value} micro-batches"
    return WORDS.get((name, value), f"{name} {value}")


def _ends(row: TableRow) -> tuple[float, float]:
    """The interval of a rate; its upper end is cut at twice the rate: few steps may say nothing."""
    mean, low, high = row.measured
    return rate(row, high), rate(row, max(low, mean / 2))


def panels(
    rows: Sequence[TableRow],
    inside: Collection[str],
    curve: Callable[[TableRow], str | None],
    place: Callable[[TableRow], int],
) -> list[CellPanel]:
    """The cells by network and by all values but those `inside` a panel and a schedule's own.

    They are in the table's order. A row whose `curve` is None is left out. Of several at one place
    the fastest is kept: of measured ones, the one that was measured to be.
    """
    names = [name for name in varied(rows) if name not in inside]
    found: dict[tuple[str, str], dict[str, dict[int, TableRow]]] = {}
    for row in rows:
        if (name := curve(row)) is None:
            continue
        devices = row.experiment.configuration.degrees.devices
        own = row.experiment.rule.parameters
        said = [each for each in names if each in row.values and each not in own]
        others = {each: _said(each, row.values[each]) for each in said}
        case = [row.network, *(others[each] for each in said if each != MICROBATCHES)]
        ranks = [f"{devices} ranks"] if {"pp", "dp"} & {*varied(rows)} & {*inside} else []
        titles = [row.network, *others.values(), *ranks], case
        words, about = map(", ".join, titles)
        points = found.setdefault((words, about), {}).setdefault(name, {})
        before = points.get(at := place(row))
        if before is None or rate(row, row.measured.mean) > rate(before, before.measured.mean):
            points[at] = row
    return [
        CellPanel(*titles, {name: dict(sorted(curve.items())) for name, curve in curves.items()})
        for titles, curves in found.items()
    ]


def charts(drawn: Sequence[CellPanel], x_title: str) -> list[Chart]:
    """Panels drawn, all with the same vertical axis."""
    every = [_chart(panel, x_title) for panel in drawn]
    most = max(max(*each.y, *(high for _, high in each.intervals))
               for chart in every for each in chart.series)  # fmt: skip
    return [replace(chart, most_y=most) for chart in every]


def _chart(panel: CellPanel, x_title: str) -> Chart:
    """Lines through what was predicted, dots with intervals where it was measured."""
    series = []
    for name, curve in panel.curves.items():
        predicted, measured = panel.predicted[name], panel.measured[name]
        ends = [_ends(row) for row in curve.values()]
        series.append(Series(name, [*predicted], [*predicted.values()], dotted=False))
        series.append(Series(name, [*measured], [*measured.values()], joined=False, intervals=ends))
    return Chart(
        panel.title, x_title, RATE, series, logarithmic_x=True, lines="predicted", dots="measured"
    )
