"""Figure 8: training time against cost, extrapolated from figure 7 to clusters of many sizes."""

from __future__ import annotations

from bfpp.paper.best import METHODS, PANELS, PaperPanel, best_outcomes
from bfpp.paper.charts import draw_charts
from bfpp.paper.item import Claim, Folder, ItemOutput
from bfpp.sim.search.tradeoff import TrainingCost, tradeoff
from bfpp.traces.figures.svg.line_chart import Chart, Series

SIZES = (256, 512, 1024, 2048, 4096, 8192, 16384)

OURS, SIX_MONTHS = "Breadth-first", 183.0
EQUAL_AT_THE_LIMIT = (
    "Methods that reach the power limit come out equally fast in figure 7, and so with larger "
    "batches."
)


def trainings(panel: PaperPanel) -> dict[str, list[TrainingCost]]:
    """By method, the training that ends first on each size of the cluster."""
    best = best_outcomes(panel)
    return {
        method.name: tradeoff(best[method.name].values(), SIZES, panel.critical_batch)
        for method in METHODS
    }


def make(folder: Folder) -> ItemOutput:
    """Extrapolate every panel."""
    costs = {panel.letter: trainings(panel) for panel in PANELS}
    charts = [_chart(panel, costs[panel.letter]) for panel in PANELS]
    sizes = ", ".join(f"{size:,}" for size in SIZES)
    claims = [claim for panel in PANELS for claim in _claims(panel, costs[panel.letter])]
    sentence = f"Points from right to left: {sizes} GPUs."
    return draw_charts(charts, folder, "figure-8", sentence, claims=claims)


def _claims(panel: PaperPanel, costs: dict[str, list[TrainingCost]]) -> list[Claim]:
    """Claims of the paper on the cost of training, by panel; it has no numbers."""
    cheapest = [min(sizes, key=lambda each: each[1].gpu_days) for sizes in _by_size(costs)]
    ours = [at for at, (name, _) in enumerate(cheapest) if name == OURS]
    counted = f"it is the cheapest on {len(ours)} of {len(cheapest)} sizes"
    if panel.letter != "a":
        return [
            Claim(
                f"({panel.letter}) breadth-first improves on others at all sizes",
                counted,
                len(ours) == len(cheapest),
                EQUAL_AT_THE_LIMIT,
            )
        ]
    least = min((each.days for name, each in cheapest if name != OURS), default=None)
    return [
        Claim(
            "(a) breadth-first costs and takes less at nearly all sizes",
            counted,
            len(ours) >= len(cheapest) - 1,
            EQUAL_AT_THE_LIMIT,
        ),
        Claim(
            "(a) no pipeline is more efficient only where training takes more than six months",
            "it never is"
            if least is None
            else f"others are the cheapest where training takes {least:.0f} days and more",
            least is None or least > SIX_MONTHS,
            EQUAL_AT_THE_LIMIT,
        ),
    ]


def _by_size(costs: dict[str, list[TrainingCost]]) -> list[list[tuple[str, TrainingCost]]]:
    """For each size of the cluster, the training of each method."""
    return [[(name, each[at]) for name, each in costs.items() if each] for at in range(len(SIZES))]


def _chart(panel: PaperPanel, costs: dict[str, list[TrainingCost]]) -> Chart:
    return Chart(
        f"({panel.letter}) {panel.title} (B_crit {panel.critical_batch:g})",
        "training time (days, logarithmic)",
        "cost (1,000 GPU-days, logarithmic)",
        [
            Series(name, [one.days for one in each], [one.gpu_days / 1e3 for one in each])
            for name, each in costs.items()
        ],
        logarithmic_x=True,
        logarithmic_y=True,
    )
