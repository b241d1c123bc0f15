"""Figure 8: training time against cost, extrapolated from figure 7 to clusters of many sizes."""

from __future__ import annotations

from pathlib import Path

from bfpp.paper.best import GPUS, METHODS, PANELS, Panel, best_outcomes
from bfpp.paper.charts import draw_charts
from bfpp.paper.item import Made
from sim.model import load_model
from sim.tradeoff import Training, tradeoff
from traces.chart import Chart, Series

SIZES = (256, 512, 1024, 2048, 4096, 8192, 16384)


def trainings(panel: Panel) -> dict[str, list[Training]]:
    """By method, the training that ends first on each size of the cluster."""
    model, best = load_model(panel.model), best_outcomes(panel)
    return {
        method.name: tradeoff(model, best[method.name].values(), GPUS, SIZES, panel.critical_batch)
        for method in METHODS
    }


def make(directory: Path) -> Made:
    """Extrapolate every panel."""
    charts = [
        Chart(
            f"({panel.letter}) {panel.title} (B_crit {panel.critical_batch:g})",
            "training time (days)",
            "cost (1,000 GPU-days)",
            [
                Series(name, [each.days for each in found], [each.gpu_days / 1e3 for each in found])
                for name, found in trainings(panel).items()
            ],
            logarithmic_x=True,
            logarithmic_y=True,
        )
        for panel in PANELS
    ]
    sizes = ", ".join(f"{size:,}" for size in SIZES)
    return draw_charts(
        charts,
        directory,
        "figure-8",
        f"Points from right to left: {sizes} GPUs. As in the paper, breadth-first trains the "
        f"52 B model at least cost for the time at nearly all scales.",
    )
