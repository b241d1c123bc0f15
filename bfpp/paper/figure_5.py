"""Figure 5: utilization of the four schedules against the number of micro-batches."""

from __future__ import annotations

from bfpp.paper.charts import SOFTWARE, TITLES, UTILIZATION, draw_charts, utilization
from bfpp.paper.item import Folder, Made
from bfpp.schedules import find_schedule
from bfpp.traces.chart import Chart, Series

LOOPS = 4
CONFIGURATIONS = (
    ("(a) 52 B model", "bert-52b", (8, 8, 1), (8, 16, 24, 32, 48, 64, 96, 128)),
    ("(b) 6.6 B model", "bert-6.6b", (4, 2, 8), (4, 8, 12, 16, 24, 32, 48, 64)),
)


def make(folder: Folder) -> Made:
    """Simulate the two fixed configurations."""
    charts = []
    for title, model, groups, microbatches in CONFIGURATIONS:
        series = []
        for schedule in SOFTWARE:
            loops = LOOPS if find_schedule(schedule).looped else 1
            values = [utilization(schedule, model, groups, each, loops) for each in microbatches]
            series.append(Series(TITLES[schedule], microbatches, values))
        charts.append(
            Chart(title, "sequential micro-batches", UTILIZATION, series, logarithmic_x=True)
        )
    return draw_charts(
        charts,
        folder,
        "figure-5",
        "The paper prints no numbers here; it says that breadth-first is by far the most "
        "efficient for few micro-batches, and that depth-first's network overhead makes it worse "
        "than the non-looped schedules in most cases.",
    )
