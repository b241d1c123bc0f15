"""Figure 1: training time and memory of a 52 B model on 4096 V100 GPUs."""

from __future__ import annotations

from bfpp.paper.best import PANELS
from bfpp.paper.figure_8 import trainings
from bfpp.paper.item import Folder, Made, PaperTable
from bfpp.traces.bar_chart import Bars, svg_bars

SIZE = 4096


def make(folder: Folder) -> Made:
    """Pick the size from the trade-off of figure 8."""
    found = {
        name: next(each for each in candidates if each.gpus == SIZE)
        for name, candidates in trainings(PANELS[0]).items()
        if candidates
    }
    rows = [
        [
            name,
            f"{each.days:.1f}",
            f"{each.gpu_days:,.0f}",
            f"{each.batch:,.0f}",
            f"{each.outcome.memory_min_gb:.1f}",
        ]
        for name, each in found.items()
    ]
    columns = ["method", "days", "GPU-days", "batch", "memory (GB)"]
    table = PaperTable(f"The 52 B model on {SIZE:,} V100 GPUs", columns, rows)
    path, figure = folder / "figure-1.md", folder / "figure-1.svg"
    table.write(path)
    days = Bars("(a) training time (days)", {name: each.days for name, each in found.items()})
    memory = {name: each.outcome.memory_min_gb for name, each in found.items()}
    panels = [days, Bars("(b) memory per GPU (GB)", memory)]
    figure.write_text(svg_bars(panels, table.title, folder.points), encoding="utf-8")
    fastest = min(found, key=lambda name: found[name].days)
    baseline = min(each.days for name, each in found.items() if name != fastest)
    sentence = (
        f"{fastest} is fastest, and the next best method takes "
        f"{baseline / found[fastest].days - 1:.0%} longer; the paper prints no numbers."
    )
    record = {
        name: {"days": each.days, "gpu_days": each.gpu_days, "batch": each.batch,
               "memory_gb": each.outcome.memory_min_gb}
        for name, each in found.items()
    }  # fmt: skip
    return Made([figure, path], {"trainings": record}, table, sentence)
