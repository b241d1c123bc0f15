"""A timeline as a plotly figure, for a notebook: imported when one is drawn."""

from __future__ import annotations

from collections.abc import Collection

from plotly.graph_objects import Bar, Figure

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.operations.streams import Stream
from bfpp.traces.figures.appearance import COMPUTE_AND_DATA, drawn_operations, drawn_rows, fill, ink
from bfpp.traces.timeline.labels import label
from bfpp.traces.timeline.timeline import Timeline

MOST = 20_000
"""Tasks that a figure has room for: plotly draws each as an element of its own."""

ROW = 26
"""Height of a row, in pixels."""

AROUND = 140
"""Height of the axis, the legend and the margins."""


def figure(timeline: Timeline, streams: Collection[Stream] = COMPUTE_AND_DATA) -> Figure:
    """The tasks of these streams as bars, a row for each lane.

    Raises `InvalidConfiguration` for more tasks than plotly can draw.
    """
    graph, rows = timeline.graph, drawn_rows(timeline, streams)
    if (tasks := sum(len(row.tasks) for row in rows)) > MOST:
        raise InvalidConfiguration(
            "timeline", f"{tasks:,} tasks are more than a figure has room for; a page has (--html)"
        )
    names = {
        number: f"rank {row.rank}  {row.title}" for row in rows for number in row.tasks.tolist()
    }
    bars = []
    for operation in drawn_operations(graph, rows):
        shown = [graph.task(number) for number in names if graph.operation[number] == operation]
        numbers = [task.number for task in shown]
        colours = [fill(operation, each.microbatch, graph.layout.microbatches) for each in shown]
        bars.append(
            Bar(
                name=operation.called(graph.communication),
                orientation="h",
                base=timeline.start[numbers] - timeline.first_start,
                x=timeline.duration[numbers],
                y=[names[number] for number in numbers],
                text=[label(task) for task in shown],
                customdata=[task.words for task in shown],
                hovertemplate="%{customdata}<br>%{base:.6g} s, for %{x:.6g} s<extra></extra>",
                marker={"color": colours, "line": {"width": 0}},
                textfont={"color": [ink(colour) for colour in colours]},
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
            )
        )
    order = list(dict.fromkeys(names.values()))
    return Figure(
        bars,
        {
            "title": f"{graph.schedule}: {timeline.step_time:.6g} s",
            "barmode": "overlay",
            "bargap": 0.15,
            "height": ROW * len(order) + AROUND,
            "xaxis": {"title": "seconds"},
            "yaxis": {"categoryorder": "array", "categoryarray": order[::-1]},
            "legend": {"orientation": "h", "y": -0.2},
            "template": "plotly_white",
        },
    )
