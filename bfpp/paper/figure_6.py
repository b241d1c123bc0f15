"""Figure 6: utilization of the looped schedules against the number of loops."""

from __future__ import annotations

from bfpp.paper.charts import TITLES, UTILIZATION, draw_charts, utilization
from bfpp.paper.item import Folder, Made
from bfpp.traces.chart import Chart, Series

LOOPS = (1, 2, 4, 8)
WITHOUT_LOOPS = {"breadth-first": "gpipe", "depth-first": "1f1b"}
"""What each looped schedule is called at one loop."""


def make(folder: Folder) -> Made:
    """Simulate the 52 B model on 8 x 8 devices, at two batch sizes."""
    charts, curves = [], {}
    for letter, batch in (("a", 16), ("b", 64)):
        series = []
        for schedule, at_one in WITHOUT_LOOPS.items():
            names = [at_one if loops == 1 else schedule for loops in LOOPS]
            values = [
                utilization(name, "bert-52b", (8, 8, 1), batch, loops)
                for name, loops in zip(names, LOOPS, strict=True)
            ]
            curves[schedule] = dict(zip(LOOPS, values, strict=True))
            series.append(Series(TITLES[schedule], LOOPS, values))
        title = f"({letter}) Batch size {batch}"
        charts.append(
            Chart(title, "loops (stages per device)", UTILIZATION, series, logarithmic_x=True)
        )
    breadth, depth = curves["breadth-first"], curves["depth-first"]
    return draw_charts(
        charts,
        folder,
        "figure-6",
        f"At batch 64 the paper finds breadth-first best at 4 loops (here at "
        f"{max(breadth, key=breadth.__getitem__)}), and depth-first at 30 % with 8 loops against "
        f"43 % with one (here {depth[8]:.0f} % against {depth[1]:.0f} %; the best non-looped run "
        "that table E.1 prints at this batch has 37 %).",
    )
