"""Figure 4: the four schedules, times to scale, in the presence of data parallelism.

16 layers on 4 devices, 8 micro-batches. The caption gives no costs: here a
backward pass takes twice a forward pass, and the reduction of a layer as long
as six backward passes, so that half the step's compute could hide all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from bfpp.paper.item import Captioned, Claim, Folder, ItemOutput, captioned, draw, graph_of
from bfpp.schedules import Communication
from bfpp.sim.costs.abstract import AbstractCosts

RANKS, LAYERS, MICROBATCHES = 4, 16, 8
COSTS = AbstractCosts(forward=1, backward=2, reduce=12)
SIGNIFICANT = 0.1
CAPTIONS = {
    "gpipe": "(a) GPipe (non-looped)",
    "1f1b": "(b) 1F1B (non-looped)",
    "depth-first": "(c) Depth-first (looped)",
    "breadth-first": "(d) Breadth-first (looped)",
}


def make(folder: Folder) -> ItemOutput:
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
        f"{times[3]} breadth-first."
    )
    return draw(panels, folder, "figure-4", title, sentence, _claims(panels))


def _claims(panels: Sequence[Captioned]) -> list[Claim]:
    gpipe, non_looped, depth, breadth = (panel.timeline.step_time for panel in panels)
    gain = min(gpipe, non_looped) / max(depth, breadth) - 1
    return [
        Claim(
            "looped schedules are significantly faster than non-looped ones",
            f"by at least {gain:.0%}",
            gain > SIGNIFICANT,
        ),
        Claim(
            "breadth-first is the fastest",
            f"{depth / breadth - 1:.0%} faster than depth-first",
            breadth < min(gpipe, non_looped, depth),
        ),
        Claim(
            "GPipe and 1F1B take as long as one another",
            f"{gpipe:g} s and {non_looped:g} s",
            gpipe == non_looped,
        ),
    ]
