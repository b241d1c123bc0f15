"""Figure 8: training time against cost, extrapolated from figure 7 to clusters of many sizes."""

from __future__ import annotations

from bfpp.paper.best import GPUS, METHODS, PANELS, PaperPanel, best_outcomes
from bfpp.paper.charts import draw_charts
from bfpp.paper.item import Folder, Made
from bfpp.sim.tradeoff import TrainingCost, tradeoff
from bfpp.traces.chart import Chart, Series

SIZES = (256, 512, 1024, 2048, 4096, 8192, 16384)


def trainings(panel: PaperPanel) -> dict[str, list[TrainingCost]]:
    """By method, the training that ends first on each size of the cluster."""
    best = best_outcomes(panel)
    return {
        method.name: tradeoff(best[method.name].values(), GPUS, SIZES, panel.critical_batch)
        for method in METHODS
    }


def make(folder: Folder) -> Made:
    """Extrapolate every panel."""
    found = {panel.letter: trainings(panel) for panel in PANELS}
    charts = [_chart(panel, found[panel.letter]) for panel in PANELS]
    large = found[PANELS[0].letter]
    cheapest = [min(sizes, key=lambda each: each[1].gpu_days)[0] for sizes in _by_size(large)]
    ours = cheapest.count("Breadth-first")
    sizes = ", ".join(f"{size:,}" for size in SIZES)
    return draw_charts(
        charts,
        folder,
        "figure-8",
        f"Points from right to left: {sizes} GPUs. The paper finds breadth-first better at nearly "
        f"all scales for the 52 B model; here it is the cheapest on {ours} of {len(cheapest)} "
        "sizes.",
    )


def _by_size(found: dict[str, list[TrainingCost]]) -> list[list[tuple[str, TrainingCost]]]:
    """For each size of the cluster, the training of each method."""
    return [[(name, each[at]) for name, each in found.items() if each] for at in range(len(SIZES))]


def _chart(panel: PaperPanel, found: dict[str, list[TrainingCost]]) -> Chart:
    return Chart(
        f"({panel.letter}) {panel.title} (B_crit {panel.critical_batch:g})",
        "training time (days, logarithmic)",
        "cost (1,000 GPU-days, logarithmic)",
        [
            Series(name, [one.days for one in each], [one.gpu_days / 1e3 for one in each])
            for name, each in found.items()
        ],
        logarithmic_x=True,
        logarithmic_y=True,
    )
