"""Figure 7: the highest utilization of each method against the batch size, on 64 GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bfpp.paper.best import METHOD_OF_SCHEDULE, METHODS, PANELS, PaperPanel, best_outcomes, printed
from bfpp.paper.charts import UTILIZATION, draw_charts
from bfpp.paper.figures.figure_7_claims import LEAST, ONE_MORE, Gap, claims_of, of_the_power_limit
from bfpp.paper.item import Folder, ItemOutput, PaperTable
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.measurements.validation import compare
from bfpp.traces.figures.svg.line_chart import Chart, Series

TIE = 0.02
"""Largest measured lead of one method over another that counts as a tie."""

NEAR = 0.05
"""Largest predicted gap of a printed optimum to the best that counts as near."""


def make(folder: Folder) -> ItemOutput:
    """Search every panel, and lay the printed optima over ours."""
    charts = [_chart(panel) for panel in PANELS]
    ahead = _ahead_at_the_least_batch(PANELS[0])
    margins = [margin for panel in PANELS for margin in _margins(panel)]
    right = sum(margin == 0 for margin in margins)
    close = sum(0 < margin < TIE for margin in margins)
    gaps = [gap for panel in PANELS for gap in _gaps(panel)]
    near = sum(gap.share < NEAR for gap in gaps)
    sentence = (
        f"Lines: the best that the search finds; dots: the optima that tables E.1 to E.3 print. "
        f"Of the batch sizes at which the tables have several methods, the same one wins in "
        f"{right} of {len(margins)}, and in {close} more the winner here was measured within "
        f"{TIE:.0%} of the printed one. Of the {len(gaps)} printed optima, {near} are "
        f"predicted within {NEAR:.0%} of the best of their method that the search finds; it also "
        "tries what the paper left out as inferior."
    )
    claims = [*claims_of(PANELS, ahead), *of_the_power_limit(PANELS, gaps)]
    made = draw_charts(charts, folder, "figure-7", sentence, claims=claims)
    counts = {"same_winner": right, "close": close, "compared": len(margins), "near_best": near}
    record = {**made.record, **counts, "breadth_first_ahead": ahead}
    return replace(made, record=record, table=_table(gaps))


def _ahead_at_the_least_batch(panel: PaperPanel) -> dict[str, float]:
    """Lead of breadth-first over other methods, with a sample to overlap transfers.

    Against non-looped at the same batch, and depth-first at the least one, as
    its micro-batches are whole multiples of N_PP. Empty without these batches.
    """
    if not {LEAST, ONE_MORE} <= set(panel.batches):
        return {}
    best = best_outcomes(panel)
    ours = best["Breadth-first"][ONE_MORE].tflops_per_gpu
    return {
        method: ours / best[method][batch].tflops_per_gpu - 1
        for method, batch in (("Non-looped", ONE_MORE), ("Depth-first", LEAST))
    }


def _gaps(panel: PaperPanel) -> list[Gap]:
    best, gaps = best_outcomes(panel), []
    for row in printed(panel.table):
        method = METHOD_OF_SCHEDULE[row.schedule]
        if outcome := best[method].get(row.batch):
            predicted = compare(row).predicted["tflops_per_gpu"]
            gaps.append(Gap(panel.table, method, row.batch, row.tflops_per_gpu, predicted, outcome))
    return gaps


def _table(gaps: Sequence[Gap]) -> PaperTable:
    columns = (
        "table", "method", "batch", "printed (TFLOP/s)", "predicted", "best", "faster by",
        "pp x tp x dp", "micro-batches", "stages of a rank", "sharding",
    )  # fmt: skip
    rows = []
    for gap in gaps:
        best = gap.best.configuration
        degrees = best.degrees
        rows.append(
            [
                gap.table,
                gap.method,
                str(gap.batch),
                f"{gap.printed:.2f}",
                f"{gap.predicted:.2f}",
                f"{gap.best.tflops_per_gpu:.2f}",
                f"{max(gap.share, 0.0):.1%}",
                f"{degrees.pp} x {degrees.tp} x {degrees.dp}",
                f"{best.microbatches} of {best.microbatch_size}",
                str(best.layout.units // degrees.pp),
                str(best.communication.sharding),
            ]
        )
    title = "The printed optima, and the best configuration of the same method"
    return PaperTable(title, columns, rows)


def _chart(panel: PaperPanel) -> Chart:
    peak = load_cluster(panel.cluster).device.peak / 1e12
    best = best_outcomes(panel)
    series = []
    for method in METHODS:
        outcomes = best[method.name]
        values = [100 * outcome.tflops_per_gpu / peak for outcome in outcomes.values()]
        series.append(Series(method.name, list(outcomes), values, dotted=False))
        rows = [
            row for row in printed(panel.table) if METHOD_OF_SCHEDULE[row.schedule] == method.name
        ]
        measured = [100 * row.tflops_per_gpu / peak for row in rows]
        series.append(Series(method.name, [row.batch for row in rows], measured, joined=False))
    return Chart(
        f"({panel.letter}) {panel.title}", "batch size", UTILIZATION, series, logarithmic_x=True
    )


def _margins(panel: PaperPanel) -> list[float]:
    """At each batch size with several methods, how the printed winner compares to ours.

    By how much it was measured to be faster: 0 where both are the same method.
    """
    best, margins = best_outcomes(panel), []
    measured: dict[int, dict[str, float]] = {}
    for row in printed(panel.table):
        if row.batch in panel.batches:
            method = METHOD_OF_SCHEDULE[row.schedule]
            measured.setdefault(row.batch, {})[method] = row.tflops_per_gpu
    for batch, of_method in measured.items():
        if len(of_method) > 1:
            predicted = {
                name: best[name][batch].tflops_per_gpu for name in of_method if batch in best[name]
            }
            ours = max(predicted, key=predicted.__getitem__)
            margins.append(max(of_method.values()) / of_method[ours] - 1)
    return margins
