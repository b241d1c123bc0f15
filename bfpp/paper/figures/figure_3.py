"""Figure 3: standard and looping placement of 16 layers on 4 devices."""

from __future__ import annotations

from bfpp.paper.item import Folder, ItemOutput
from bfpp.schedules import Layout
from bfpp.traces.figures.svg.placement import svg_placements

PLACEMENTS = (
    ("(a) Standard", Layout(4, 1, units_per_stage=4)),
    ("(b) Looping", Layout(4, 1, loops=4)),
)


def make(folder: Folder) -> ItemOutput:
    """Draw the two placements."""
    path = folder / "figure-3.svg"
    path.write_text(svg_placements(PLACEMENTS, folder.points), encoding="utf-8")
    record = {
        caption: [layout.units_of(rank) for rank in range(layout.pp)]
        for caption, layout in PLACEMENTS
    }
    sentence = "The same placements as in the paper, drawn from our layouts."
    return ItemOutput([path], {"layers_of_devices": record}, sentence=sentence)
