"""Figure 2: efficiency against batch size per GPU, with and without network overlap.

The paper draws it for beta_net = 6 and N_TP = 1, and gives no other numbers.
Here it is replayed: 32 layers on 8 devices (or on one, without a pipeline), a
layer's forward pass takes 1 and its backward pass 2, so the reduction of a layer
takes 6 x 3 = 18: as long as the compute of six samples. A transfer takes a fifth
of a layer's forward pass: it makes the jump just above one sample for each GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

from bfpp.paper.charts import draw_charts
from bfpp.paper.item import Folder, Made, graph_of
from bfpp.schedules import Communication
from bfpp.sim.abstract import AbstractCosts
from bfpp.sim.compiled_engine import simulate
from bfpp.traces.chart import Chart, Series
from bfpp.traces.metrics import compute_time

LAYERS, RANKS, NETWORK_BATCH = 32, 8, 6
COSTS = AbstractCosts(forward=1, backward=2, transfer=0.2, reduce=3 * NETWORK_BATCH)
FLEXIBLE = (8, 9, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128)
MULTIPLES = (8, 16, 24, 32, 48, 64, 96, 128)
METHODS = {
    "Looped, breadth-first": ("breadth-first", RANKS, FLEXIBLE),
    "Looped, depth-first": ("depth-first", RANKS, MULTIPLES),
    "Non-looped": ("gpipe", RANKS, FLEXIBLE),
    "No pipeline": ("breadth-first", 1, (1, 2, 3, 4, 6, 8, 12, 16)),
}
"""For each method its schedule, its ranks, and numbers of micro-batches of one sample."""


def make(folder: Folder) -> Made:
    """Replay every method at every batch size, overlapped and not."""
    charts = []
    for overlap, title in ((True, "(a) Theoretical efficiency"), (False, "(b) Without overlap")):
        series = [Series(name, *_curve(*method, overlap)) for name, method in METHODS.items()]
        charts.append(
            Chart(title, "batch size per GPU", "efficiency (%)", series, logarithmic_x=True)
        )
    return draw_charts(
        charts,
        folder,
        "figure-2",
        "As in the paper: looping helps small batches, breadth-first most; efficiency jumps just "
        "above one sample per GPU, where transfers can be hidden; without overlap much of the "
        "benefit of looping is lost.",
    )


def _curve(
    name: str, ranks: int, microbatches: Sequence[int], overlap: bool
) -> tuple[list[float], list[float]]:
    """Batch sizes per GPU, and the share of the step that a rank computes, in per cent."""
    batches, efficiencies = [], []
    communication = Communication(pp_overlap=overlap, dp_overlap=overlap)
    for count in microbatches:
        graph = graph_of(name, ranks, count, LAYERS // ranks, communication)
        timeline = simulate(graph, COSTS.costs(graph))
        batches.append(count / ranks)
        efficiencies.append(100 * float(compute_time(timeline).mean()) / timeline.step_time)
    return batches, efficiencies
