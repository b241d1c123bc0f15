"""Charts of the paper, from simulated points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from bfpp.paper.item import Claim, Folder, ItemOutput
from bfpp.schedules import Schedule
from bfpp.sim.engines.compiled_engine import simulate
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.experiment.prediction import predict
from bfpp.traces.figures.svg.line_chart import Chart, Series, svg_charts

UTILIZATION = "GPU utilization (%)"
SOFTWARE = {
    "breadth-first": "paper", "gpipe": "paper", "depth-first": "megatron", "1f1b": "megatron",
}  # fmt: skip
"""The implementation that the paper measured each schedule with."""

TITLES = {
    "breadth-first": "Breadth-first (ours)",
    "depth-first": "Depth-first (Megatron-LM)",
    "gpipe": "GPipe (ours)",
    "1f1b": "1F1B (Megatron-LM)",
}


class Reached(NamedTuple):
    """Result of a configuration: per cent of the peak, and peak memory (max over ranks)."""

    utilization: float
    memory_largest_gb: float


def draw_charts(
    charts: Sequence[Chart],
    folder: Folder,
    name: str,
    sentence: str,
    columns: int | None = None,
    claims: Sequence[Claim] = (),
) -> ItemOutput:
    """Write the charts, in rows of `columns`, and their points as JSON."""
    path = folder / f"{name}.svg"
    path.write_text(svg_charts(charts, columns, folder.points), encoding="utf-8")
    points: dict[str, Any] = {
        chart.title: {_label(chart, each): list(map(list, zip(each.x, each.y, strict=True)))
                      for each in chart.series}
        for chart in charts
    }  # fmt: skip
    crossed = {
        chart.title: {each.name: sorted(each.crossed) for each in chart.series if each.crossed}
        for chart in charts
        if chart.crosses
    }
    record = {"points": points, **({"out_of_memory": crossed} if crossed else {})}
    return ItemOutput([path], record, sentence=sentence, claims=claims)


def _label(chart: Chart, series: Series) -> str:
    """The series' name in the JSON: with what its points are, where there are two of a name."""
    meaning = chart.lines if series.joined else chart.dots
    return f"{series.name}, {meaning}" if meaning else series.name


def utilization(
    schedule: str | Schedule,
    model: str,
    groups: tuple[int, int, int],
    microbatches: int,
    loops: int,
    **changes: Any,
) -> float:
    """Per cent of the V100's peak: (pp, tp, dp) groups, micro-batches of one sample."""
    return reached(schedule, model, groups, microbatches, loops, **changes).utilization


def reached(
    schedule: str | Schedule,
    model: str,
    groups: tuple[int, int, int],
    microbatches: int,
    loops: int,
    **changes: Any,
) -> Reached:
    """The same, and the memory that it takes."""
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
    predicted = predict(timeline, physical)
    return Reached(100 * predicted["tflops_per_gpu"] * 1e12 / peak, predicted["memory_largest_gb"])
