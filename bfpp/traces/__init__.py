"""Timelines: their metrics, explanations, figures and file formats.

Figures know timelines, not the other way round: a timeline looks up its figures for notebooks by
name, in the registry that is filled here. They are imported when one is drawn, as figures and
plotly would take longer to load than a command that draws none.
"""

from __future__ import annotations

from typing import Any

from bfpp.traces.timeline.renderers import FIGURE, NOTEBOOK, RENDERERS


def _svg(timeline: Any) -> str:
    from bfpp.traces.figures.panel import Panel
    from bfpp.traces.figures.svg.schedule import svg

    return svg([Panel(timeline.graph.schedule, timeline)])


def _figure(timeline: Any) -> Any:
    from bfpp.traces.figures.plotly_figure import figure

    return figure(timeline)


RENDERERS.update({NOTEBOOK: _svg, FIGURE: _figure})
