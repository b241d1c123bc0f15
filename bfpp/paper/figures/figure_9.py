"""Figure 9: gradient accumulation without a pipeline, depth-first and breadth-first.

Four layers on one device, four micro-batches. Depth-first accumulation is 1F1B
on one rank: each micro-batch runs forward and backward before the next. The
caption gives no costs: here a gather or a reduce-scatter of a layer takes one
and a half forward passes, and an all-reduce, which moves twice as much, three.
"""

from __future__ import annotations

from collections.abc import Sequence

from bfpp.paper.item import Captioned, Claim, Folder, ItemOutput, captioned, draw, graph_of
from bfpp.schedules import Communication, Operation, Sharding
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.traces.timeline.metrics import bubble

LAYERS, MICROBATCHES = 4, 4
COSTS = {
    Sharding.NONE: AbstractCosts(forward=1, backward=2, reduce=3),
    Sharding.FULL: AbstractCosts(forward=1, backward=2, gather=1.5, reduce=1.5),
}
PANELS = (
    ("(a) Depth-first (not sharded)", "1f1b", Sharding.NONE),
    ("(b) Depth-first (fully sharded)", "1f1b", Sharding.FULL),
    ("(c) Breadth-first (not sharded)", "breadth-first", Sharding.NONE),
    ("(d) Breadth-first (fully sharded)", "breadth-first", Sharding.FULL),
)


def make(folder: Folder) -> ItemOutput:
    """Simulate and draw the four ways to accumulate gradients."""
    panels = [
        captioned(
            caption,
            graph_of(name, 1, MICROBATCHES, LAYERS, Communication(sharding)),
            COSTS[sharding],
        )
        for caption, name, sharding in PANELS
    ]
    title = f"Gradient accumulation: {LAYERS} layers, {MICROBATCHES} micro-batches, no pipeline"
    times = [f"{panel.timeline.step_time:g}" for panel in panels]
    sentence = (
        f"A step takes {times[0]} depth-first and {times[2]} breadth-first; fully sharded, "
        f"{times[1]} and {times[3]}."
    )
    return draw(panels, folder, "figure-9", title, sentence, _claims(panels))


def _gathers(panel: Captioned) -> int:
    return int((panel.timeline.graph.operation == Operation.GATHER).sum())


def _claims(panels: Sequence[Captioned]) -> list[Claim]:
    exposed = [bubble(panel.timeline) for panel in panels]
    gathers = [_gathers(panel) for panel in panels]
    return [
        Claim(
            "depth-first accumulation overlaps its network operations poorly",
            f"they add {exposed[0]:.0%} to the compute, breadth-first {exposed[2]:.0%}",
            exposed[0] > exposed[2],
        ),
        Claim(
            "fully sharded, depth-first repeats them for each micro-batch",
            f"{gathers[1]} all-gathers, breadth-first {gathers[3]}",
            gathers[1] == MICROBATCHES * gathers[3],
        ),
        Claim(
            "breadth-first solves both, and trains faster",
            f"by {(1 + exposed[0]) / (1 + exposed[2]) - 1:.0%}, and fully sharded by "
            f"{(1 + exposed[1]) / (1 + exposed[3]) - 1:.0%}",
            exposed[2] < exposed[0] and exposed[3] < exposed[1],
        ),
    ]
