"""Figure 7: the highest utilization of each method against the batch size, on 64 GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bfpp.paper.best import METHOD_OF_SCHEDULE, METHODS, PANELS, Panel, best_outcomes, printed
from bfpp.paper.charts import UTILIZATION, draw_charts
from bfpp.paper.item import Made, PaperTable
from sim.cluster import load_cluster
from sim.search import Outcome
from sim.validation import compare
from traces.chart import Chart, Series

NEAR = 0.05
"""How much slower than the best a printed optimum may be predicted and still count as near."""


def make(directory: Path) -> Made:
    """Search every panel, and lay the printed optima over ours."""
    charts = [_chart(panel) for panel in PANELS]
    agree = [_same_winner(panel) for panel in PANELS]
    right, total = (sum(counts) for counts in zip(*agree, strict=True))
    gaps = [gap for panel in PANELS for gap in _gaps(panel)]
    near = sum(gap.share < NEAR for gap in gaps)
    sentence = (
        f"Lines: the best that the search finds; dots: the optima that tables E.1 to E.3 print. "
        f"Of the batch sizes at which the tables have several methods, the same one wins in "
        f"{right} of {total}; elsewhere the methods are close, or a measured run was much slower "
        f"than predicted (see tables E.1 to E.3). Of the {len(gaps)} printed optima, {near} are "
        f"predicted within {NEAR:.0%} of the best of their method that the search finds; it also "
        "tries what the paper left out as inferior or likely not to fit."
    )
    made = draw_charts(charts, directory, "figure-7", sentence)
    record = {**made.record, "same_winner": right, "compared": total, "near_best": near}
    return replace(made, record=record, table=_table(gaps))


class Gap(NamedTuple):
    """A printed optimum, what is predicted for it, and the best of its method found."""

    table: str
    method: str
    batch: int
    printed: float
    predicted: float
    best: Outcome

    @property
    def share(self) -> float:
        """By how much the best found is predicted to be faster."""
        return self.best.tflops_per_gpu / self.predicted - 1


def _gaps(panel: Panel) -> list[Gap]:
    best, gaps = best_outcomes(panel), []
    for row in printed(panel.table):
        method = METHOD_OF_SCHEDULE[row.schedule]
        if found := best[method].get(row.batch):
            predicted = compare(row).predicted["tflops_per_gpu"]
            gaps.append(Gap(panel.table, method, row.batch, row.tflops_per_gpu, predicted, found))
    return gaps


def _table(gaps: Sequence[Gap]) -> PaperTable:
    columns = (
        "table", "method", "batch", "printed (Tflop/s)", "predicted", "best found", "faster by",
        "pp x tp x dp", "micro-batches", "stages of a rank", "sharding",
    )  # fmt: skip
    rows = []
    for gap in gaps:
        best = gap.best.configuration
        rows.append(
            [
                gap.table,
                gap.method,
                str(gap.batch),
                f"{gap.printed:.2f}",
                f"{gap.predicted:.2f}",
                f"{gap.best.tflops_per_gpu:.2f}",
                f"{max(gap.share, 0.0):.1%}",
                f"{best.pp} x {best.tp} x {best.dp}",
                f"{best.microbatches} of {best.microbatch_size}",
                str(best.stages_per_rank),
                best.sharding,
            ]
        )
    title = "The printed optima, and the best configuration of the same method that is found"
    return PaperTable(title, columns, rows)


def _chart(panel: Panel) -> Chart:
    peak = load_cluster(panel.cluster).device.peak / 1e12
    best = best_outcomes(panel)
    series = []
    for method in METHODS:
        found = best[method.name]
        values = [100 * outcome.tflops_per_gpu / peak for outcome in found.values()]
        series.append(Series(method.name, list(found), values, dotted=False))
        rows = [
            row for row in printed(panel.table) if METHOD_OF_SCHEDULE[row.schedule] == method.name
        ]
        measured = [100 * row.tflops_per_gpu / peak for row in rows]
        series.append(Series(method.name, [row.batch for row in rows], measured, joined=False))
    return Chart(
        f"({panel.letter}) {panel.title}", "batch size", UTILIZATION, series, logarithmic_x=True
    )


def _same_winner(panel: Panel) -> tuple[int, int]:
    """At how many batch sizes the search's winner is the printed one, and of how many."""
    best = best_outcomes(panel)
    measured: dict[int, dict[str, float]] = {}
    for row in printed(panel.table):
        method = METHOD_OF_SCHEDULE[row.schedule]
        measured.setdefault(row.batch, {})[method] = row.tflops_per_gpu
    agreeing = total = 0
    for batch, of_method in measured.items():
        if len(of_method) > 1 and batch in panel.batches:
            predicted = {
                name: best[name][batch].tflops_per_gpu for name in of_method if batch in best[name]
            }
            total += 1
            agreeing += max(of_method, key=of_method.__getitem__) == max(
                predicted, key=predicted.__getitem__
            )
    return agreeing, total
