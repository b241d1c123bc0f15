"""Figure 5: utilization of the four schedules against the number of micro-batches.

Points whose fullest rank takes more than a V100 has for tensors are crosses: the paper leaves
configurations out that run out of memory. It prints no numbers for this figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bfpp.paper.best import USABLE_GB
from bfpp.paper.charts import SOFTWARE, TITLES, UTILIZATION, Reached, draw_charts, reached
from bfpp.paper.item import Claim, Folder, ItemOutput
from bfpp.schedules import find_schedule
from bfpp.traces.figures.svg.line_chart import Chart, Series

LOOPS = 4
CLEAR = 1.1
"""Least speed-up over the next one of the most efficient "by far"."""


class FixedPanel(NamedTuple):
    """A panel: a model on (pp, tp, dp) groups."""

    title: str
    model: str
    groups: tuple[int, int, int]
    microbatches: tuple[int, ...]


PANELS = (
    FixedPanel("(a) 52 B model", "bert-52b", (8, 8, 1), (8, 16, 24, 32, 48, 64, 96, 128)),
    FixedPanel("(b) 6.6 B model", "bert-6.6b", (4, 2, 8), (4, 8, 12, 16, 24, 32, 48, 64)),
)
Curves = Mapping[str, Sequence[Reached]]


def make(folder: Folder) -> ItemOutput:
    """Simulate the two fixed configurations."""
    curves = [_curves(panel) for panel in PANELS]
    charts = [_chart(*each) for each in zip(PANELS, curves, strict=True)]
    sentence = f"Crosses: more than the {USABLE_GB:g} GB that tensors can take of 32."
    return draw_charts(charts, folder, "figure-5", sentence, claims=_claims(curves))


def _curves(panel: FixedPanel) -> dict[str, list[Reached]]:
    return {
        name: [
            reached(name, panel.model, panel.groups, each, LOOPS if looped else 1)
            for each in panel.microbatches
        ]
        for name in SOFTWARE
        for looped in [find_schedule(name).looped]
    }


def _fits(point: Reached) -> bool:
    return point.memory_largest_gb <= USABLE_GB


def _chart(panel: FixedPanel, curves: Curves) -> Chart:
    series = []
    for name, points in curves.items():
        both = zip(panel.microbatches, points, strict=True)
        crossed = [count for count, each in both if not _fits(each)]
        values = [each.utilization for each in points]
        series.append(Series(TITLES[name], panel.microbatches, values, crossed=crossed))
    return Chart(
        panel.title, "sequential micro-batches", UTILIZATION, series,
        logarithmic_x=True, crosses="out of memory",
    )  # fmt: skip


def _claims(panels: Sequence[Curves]) -> list[Claim]:
    """Claims of the paper on this figure, in its section on fixed configurations."""
    return [_few(panels), _network(panels), _many(panels), _gpipe(panels), _alike(panels)]


def _at(curves: Curves, place: int) -> dict[str, float]:
    """By schedule, the utilization at a number of micro-batches, of those that fit."""
    return {
        name: points[place].utilization for name, points in curves.items() if _fits(points[place])
    }


def _lead(values: Mapping[str, float]) -> tuple[str, float]:
    """The fastest, and how many times as fast it is as the next."""
    (name, most), (_, next_best), *_ = sorted(values.items(), key=lambda each: -each[1])
    return name, most / next_best


def _few(panels: Sequence[Curves]) -> Claim:
    leads = [_lead(_at(curves, 0)) for curves in panels]
    shown = " and ".join(f"{name} by {ratio - 1:.0%}" for name, ratio in leads)
    holds = all(name == "breadth-first" and ratio > CLEAR for name, ratio in leads)
    return Claim("breadth-first is by far the most efficient at small batches", shown, holds)


def _network(panels: Sequence[Curves]) -> Claim:
    slower = [
        looped.utilization < min(gpipe.utilization, non_looped.utilization)
        for curves in panels
        for looped, gpipe, non_looped in zip(
            curves["depth-first"], curves["gpipe"], curves["1f1b"], strict=True
        )
    ]
    return Claim(
        "its network overhead makes depth-first slower than the non-looped schedules in most cases",
        f"slower than both at {sum(slower)} of {len(slower)} points",
        sum(slower) > len(slower) / 2,
    )


def _many(panels: Sequence[Curves]) -> Claim:
    parts = []
    for panel, curves in zip(PANELS, panels, strict=True):
        inside = _at(curves, -1)
        out = [TITLES[name] for name in curves if name not in inside]
        left = f" ({' and '.join(out)} out of memory)" if out else ""
        values = ", ".join(f"{TITLES[name]} {value:.1f} %" for name, value in inside.items())
        parts.append(f"at {panel.microbatches[-1]} micro-batches {values}{left}")
    fastest = [max(inside, key=inside.__getitem__) for inside in (_at(each, -1) for each in panels)]
    return Claim(
        "1F1B is the fastest at large batches, for its lower network overhead and memory",
        "; ".join(parts),
        all(name == "1f1b" for name in fastest),
        "By memory alone: of what fits, 1F1B is the fastest where the others do not fit. That its "
        "network costs less than overlapped transfers do is not reproduced, nor known why, as the "
        "figure has no numbers. Where table E.1 has 1F1B as the best non-looped run (batch 128 and "
        "512), its micro-batches have 2 and 4 samples, here one.",
    )


def _gpipe(panels: Sequence[Curves]) -> Claim:
    ratios = [
        gpipe.utilization / other.utilization - 1
        for curves in panels
        for gpipe, other in zip(curves["gpipe"], curves["1f1b"], strict=True)
    ]
    missing = [
        f"from {panel.microbatches[len(fitting)]} micro-batches on in {panel.title[:3]}"
        for panel, curves in zip(PANELS, panels, strict=True)
        for fitting in [[each for each in curves["gpipe"] if _fits(each)]]
        if len(fitting) < len(panel.microbatches)
    ]
    return Claim(
        "GPipe and 1F1B differ by their implementations alone, until GPipe runs out of memory at "
        "large batches",
        f"GPipe is {min(ratios):.0%} to {max(ratios):.0%} faster, by its overlap, and out of "
        f"memory {' and '.join(missing) or 'nowhere'}",
        bool(missing),
    )


def _alike(panels: Sequence[Curves]) -> Claim:
    ends = [
        (max(few, key=few.__getitem__), min(many, key=many.__getitem__))
        for curves in panels
        for few, many in [(_at(curves, 0), _at(curves, -1))]
    ]
    return Claim(
        "the curves are like those of figure 2, depth-first and 1F1B without overlap",
        "fastest at the least batch, slowest at the largest: "
        + "; ".join(f"{TITLES[most]}, {TITLES[least]}" for most, least in ends),
        all(each == ("breadth-first", "depth-first") for each in ends),
    )
