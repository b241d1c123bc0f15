"""Figure 2: efficiency against batch size per GPU, with and without network overlap.

The paper draws it for beta_net = 6 and N_TP = 1, and gives no other numbers.
Here it is replayed: 32 layers on 8 devices (or on one, without a pipeline), a
layer's forward pass takes 1 and its backward pass 2, so the reduction of a layer
takes 6 x 3 = 18: as long as the compute of six samples. A transfer takes a fifth
of a layer's forward pass: it makes the jump just above one sample for each GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bfpp.paper.charts import draw_charts
from bfpp.paper.item import Claim, Folder, ItemOutput, graph_of
from bfpp.schedules import Communication
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.compiled_engine import simulate
from bfpp.traces.figures.svg.line_chart import Chart, Series
from bfpp.traces.timeline.metrics import compute_time

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

Curves = Mapping[str, tuple[Sequence[float], Sequence[float]]]


def make(folder: Folder) -> ItemOutput:
    """Replay every method at every batch size, overlapped and not."""
    panels = [
        {name: _curve(*method, overlap) for name, method in METHODS.items()}
        for overlap in (True, False)
    ]
    titles = "(a) Theoretical efficiency", "(b) Without overlap"
    charts = [
        Chart(
            title,
            "batch size per GPU",
            "efficiency (%)",
            [Series(name, *curve) for name, curve in curves.items()],
            logarithmic_x=True,
        )
        for title, curves in zip(titles, panels, strict=True)
    ]
    return draw_charts(charts, folder, "figure-2", "", claims=_claims(*panels))


def _claims(overlapped: Curves, blocking: Curves) -> list[Claim]:
    """Claims of the paper on batches per GPU of `overlapped` and `blocking` curves."""
    (breadth, depth, non_looped, alone), looped = (
        [dict(zip(*overlapped[name], strict=True)) for name in METHODS],
        "Looped, breadth-first",
    )
    jump = breadth[(RANKS + 1) / RANKS] - breadth[1.0]
    lost = {
        name: 1 - blocking[name][1][0] / overlapped[name][1][0] for name in (looped, "Non-looped")
    }
    return [
        Claim(
            "looping helps at small batches, breadth-first most; at the least batch both alike",
            f"with a sample per GPU {breadth[1.0]:.0f} % and {depth[1.0]:.0f} %, non-looped "
            f"{non_looped[1.0]:.0f} %; with two {breadth[2.0]:.0f} %, {depth[2.0]:.0f} % and "
            f"{non_looped[2.0]:.0f} %",
            min(breadth[1.0], depth[1.0]) > non_looped[1.0]
            and breadth[2.0] > depth[2.0] > non_looped[2.0],
        ),
        Claim(
            "efficiency jumps just above a sample per GPU, where transfers are overlapped",
            f"breadth-first by {jump:.1f} points with one micro-batch more",
            jump > 0,
        ),
        Claim(
            "without a pipeline there is a sharp decline below beta_net = 6",
            f"{alone[6.0]:.0f} % at 6, {alone[4.0]:.0f} % at 4 and {alone[1.0]:.0f} % at 1",
            alone[1.0] < alone[4.0] < alone[6.0],
        ),
        Claim(
            "overlap matters more to looped pipelines",
            "without it, at the least batch, breadth-first loses "
            f"{lost[looped]:.0%} and non-looped {lost['Non-looped']:.0%}",
            lost[looped] > lost["Non-looped"],
        ),
    ]


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
