"""A timeline as a plotly figure."""

from __future__ import annotations

import numpy as np
import pytest

from bfpp import Experiment, predict
from bfpp.schedules import InvalidConfiguration
from bfpp.traces.figures import plotly_figure
from bfpp.traces.figures.appearance import COMPUTE_AND_DATA, drawn_rows

STEP = Experiment(
    "breadth-first", pp=2, loops=2, microbatches=4, sharding="full", gather=0.5, reduce=1
)


def test_each_task_is_a_bar_from_its_start_to_its_end():
    timeline = predict(STEP).timeline
    drawn = timeline.figure()
    rows = drawn_rows(timeline, COMPUTE_AND_DATA)
    names = {f"rank {row.rank}  {row.title}": row for row in rows}
    assert list(drawn.layout.yaxis.categoryarray) == [*names][::-1]
    assert {bar.name for bar in drawn.data} == {
        "forward",
        "backward",
        "all-gather",
        "reduce-scatter",
    }
    for name, row in names.items():
        bars = sorted(
            (start, length)
            for bar in drawn.data
            for start, length, own in zip(bar.base, bar.x, bar.y, strict=True)
            if own == name
        )
        expected = sorted(zip(timeline.start[row.tasks], timeline.duration[row.tasks], strict=True))
        np.testing.assert_allclose(bars, expected)
    words = [words for bar in drawn.data for words in bar.customdata]
    assert sorted(words) == sorted(
        timeline.graph.task(number).words for row in rows for number in row.tasks.tolist()
    )


def test_too_many_tasks_are_refused(monkeypatch):
    monkeypatch.setattr(plotly_figure, "MOST", 10)
    with pytest.raises(InvalidConfiguration, match="more than a figure has room for"):
        predict(STEP).timeline.figure()
