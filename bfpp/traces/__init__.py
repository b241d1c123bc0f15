"""Timelines: their metrics, explanations, figures and file formats.

Figures know timelines, not the other way round: a timeline finds its figures for notebooks by
name, in the registry that is filled here. They are loaded when one is drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bfpp.traces.timeline.renderers import FIGURE, NOTEBOOK, RENDERERS

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from bfpp.traces.timeline.timeline import Timeline


def _svg(timeline: Timeline) -> str:
    from bfpp.traces.figures.panel import Panel
    from bfpp.traces.figures.svg.schedule import svg

    return svg([Panel(timeline.graph.schedule, timeline)])


def _figure(timeline: Timeline) -> Figure:
    from bfpp.traces.figures.plotly_figure import figure

    return figure(timeline)


RENDERERS.update({NOTEBOOK: _svg, FIGURE: _figure})
