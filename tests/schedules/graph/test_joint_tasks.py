"""Joint tasks of replicas: the core's replay against a few lines of Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.schedules import InvalidInput
from bfpp.schedules.graph.joint_tasks import JointTasks


@st.composite
def joint_tasks(draw) -> tuple[JointTasks, np.ndarray]:
    """Tasks whose edges go from earlier to later meetings, numbered in any order."""
    tasks = draw(st.integers(1, 12))
    group = np.array([draw(st.integers(0, tasks)) for _ in range(tasks)])
    meets = np.array([draw(st.booleans()) for _ in range(tasks)])
    pairs = [
        (before, after)
        for before in range(tasks)
        for after in range(tasks)
        if group[before] < group[after] and draw(st.booleans())
    ]
    before, after = np.array(pairs, dtype=int).reshape(-1, 2).T
    seconds = np.array([draw(st.integers(0, 9)) for _ in range(tasks)], dtype=float)
    return JointTasks(before, after, np.where(meets, group, -1)), seconds


def reference(tasks: JointTasks, seconds: np.ndarray) -> list[float]:
    """When each task ends, by looking again until nothing changes."""
    ready, end = [0.0] * len(tasks), [0.0] * len(tasks)
    while True:
        before = list(end)
        for task in range(len(tasks)):
            ahead = tasks.before[tasks.after == task]
            ready[task] = max((end[each] for each in ahead), default=0.0)
        for task, meeting in enumerate(tasks.meeting):
            met = [task] if meeting < 0 else np.flatnonzero(tasks.meeting == meeting)
            end[task] = max(ready[each] for each in met) + seconds[task]
        if end == before:
            return end


@given(joint_tasks())
def test_tasks_end_when_they_would_by_hand(drawn):
    tasks, seconds = drawn
    assert tasks.replay(seconds).tolist() == reference(tasks, seconds)


@pytest.mark.parametrize(
    ("before", "after", "meeting"),
    [([0, 1], [1, 0], [-1, -1]), ([0, 2], [1, 0], [5, -1, 5]), ([0], [1], [3, 3])],
)
def test_a_circle_is_refused(before, after, meeting):
    tasks = JointTasks(np.array(before), np.array(after), np.array(meeting))
    with pytest.raises(InvalidInput, match="in a circle"):
        tasks.replay(np.ones(len(tasks)))
