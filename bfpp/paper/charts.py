"""Charts of the paper, from simulated points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bfpp.paper.item import Folder, Made
from bfpp.schedules import Schedule
from bfpp.sim.compiled_engine import simulate
from bfpp.sim.experiment import Experiment
from bfpp.sim.prediction import predict
from bfpp.traces.chart import Chart, svg_charts

UTILIZATION = "GPU utilization (%)"
SOFTWARE = {
    "breadth-first": "paper", "gpipe": "paper", "depth-first": "megatron", "1f1b": "megatron",
}  # fmt: skip
"""Whose implementation the paper measured each schedule with."""

TITLES = {
    "breadth-first": "Breadth-first (ours)",
    "depth-first": "Depth-first (Megatron-LM)",
    "gpipe": "GPipe (ours)",
    "1f1b": "1F1B (Megatron-LM)",
}


def draw_charts(
    charts: Sequence[Chart], folder: Folder, name: str, sentence: str, columns: int | None = None
) -> Made:
    """Write the charts, in rows of `columns`, and their points as JSON."""
    path = folder / f"{name}.svg"
    path.write_text(svg_charts(charts, columns, folder.points), encoding="utf-8")
    points: dict[str, Any] = {
        chart.title: {each.name: list(map(list, zip(each.x, each.y, strict=True)))
                      for each in chart.series}
        for chart in charts
    }  # fmt: skip
    return Made([path], {"points": points}, sentence=sentence)


def utilization(
    schedule: str | Schedule,
    model: str,
    groups: tuple[int, int, int],
    microbatches: int,
    loops: int,
    **changes: Any,
) -> float:
    """Per cent of the V100's peak: (pp, tp, dp) groups, micro-batches of one sample."""
    pp, tp, dp = groups
    rest = {"cluster": "dgx1-v100", "implementation": SOFTWARE.get(str(schedule)), **changes}
    experiment = Experiment(
        schedule,
        pp=pp,
        tp=tp,
        dp=dp,
        microbatches=microbatches,
        loops=loops if loops > 1 else None,
        model=model,
        **rest,
    )
    graph, physical = experiment.graph(), experiment.require_physical()
    timeline = simulate(graph, physical.costs(graph))
    peak = physical.cluster.device.peak
    return 100 * predict(timeline, physical)["tflops_per_gpu"] * 1e12 / peak
