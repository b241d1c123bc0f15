"""Figure 7: the highest utilization of each method against the batch size, on 64 GPUs."""

from __future__ import annotations

from pathlib import Path

from bfpp.paper.best import METHOD_OF_SCHEDULE, METHODS, PANELS, Panel, best_outcomes, printed
from bfpp.paper.charts import UTILIZATION, draw_charts
from bfpp.paper.item import Made
from sim.cluster import load_cluster
from traces.chart import Chart, Series


def make(directory: Path) -> Made:
    """Search every panel, and lay the printed optima over ours."""
    charts = [_chart(panel) for panel in PANELS]
    agree = [_same_winner(panel) for panel in PANELS]
    right, total = (sum(counts) for counts in zip(*agree, strict=True))
    return draw_charts(
        charts,
        directory,
        "figure-7",
        f"Lines: the best that the search finds; dots: the optima that tables E.1 to E.3 print. "
        f"Of the batch sizes at which the tables have several methods, the same one wins in "
        f"{right} of {total}.",
    )


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
        if len(of_method) > 1:
            predicted = {
                name: best[name][batch].tflops_per_gpu for name in of_method if batch in best[name]
            }
            total += 1
            agreeing += max(of_method, key=of_method.__getitem__) == max(
                predicted, key=predicted.__getitem__
            )
    return agreeing, total
