"""Figure 4: the four schedules, times to scale, in the presence of data parallelism.

16 layers on 4 devices, 8 micro-batches. The caption gives no costs: here a
backward pass takes twice a forward pass, and the reduction of a layer as long
as six backward passes, so that half the step's compute could hide all of them.
"""

from __future__ import annotations

from bfpp.paper.item import Folder, Made, captioned, draw, graph_of
from bfpp.schedules import Communication
from bfpp.sim.abstract import AbstractCosts

RANKS, LAYERS, MICROBATCHES = 4, 16, 8
COSTS = AbstractCosts(forward=1, backward=2, reduce=12)
CAPTIONS = {
    "gpipe": "(a) GPipe (non-looped)",
    "1f1b": "(b) 1F1B (non-looped)",
    "depth-first": "(c) Depth-first (looped)",
    "breadth-first": "(d) Breadth-first (looped)",
}


def make(folder: Folder) -> Made:
    """Simulate and draw the four schedules."""
    panels = [
        captioned(
            caption, graph_of(name, RANKS, MICROBATCHES, LAYERS // RANKS, Communication()), COSTS
        )
        for name, caption in CAPTIONS.items()
    ]
    title = f"The four schedules: {LAYERS} layers, {RANKS} devices, {MICROBATCHES} micro-batches"
    times = [f"{panel.timeline.step_time:g} s" for panel in panels]
    sentence = (
        f"A step takes {times[0]} with GPipe, {times[1]} with 1F1B, {times[2]} depth-first and "
        f"{times[3]} breadth-first. The paper says that the looped schedules run significantly "
        "faster than the non-looped ones, with breadth-first the fastest."
    )
    return draw(panels, folder, "figure-4", title, sentence)
