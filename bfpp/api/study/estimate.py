"""Time that a study will take, before anything is measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bfpp.api.predictions import predict
from bfpp.api.study.jobs import assumed
from bfpp.api.study.journal import StudyJournal
from bfpp.api.study.study import Study, StudyCell

STARTING, CALIBRATING, CONNECTING = 10.0, 40.0, 2.0
"""Seconds of a session's processes, of its profile, and of the groups of a cell's task graph."""


class Estimate(NamedTuple):
    """Seconds of what is left of a study: with as few repetitions as may be, and with as many."""

    least: float
    most: float


def step_estimates(study: Study) -> list[tuple[StudyCell, float]] | None:
    """The step time of each cell by the study's file alone; None where layers really compute."""
    if study.mocked is None:
        return None
    return [
        (cell, predict(cell.predicted.changed(profile=assumed(study, cell))).timeline.step_time)
        for cell in study.cells
    ]


def estimate(
    study: Study, journal: StudyJournal, steps: Sequence[tuple[StudyCell, float]]
) -> Estimate:
    """Seconds that are left of a study, by its step times and the repetitions that it has."""
    measuring = study.measuring
    bounds, sessions = [], set()
    for bound in (measuring.least, measuring.most):
        seconds = 0.0
        for cell, step in steps:
            if left := max(0, bound - len(journal.of(cell))):
                sessions.add(cell.session)
                seconds += left * (CONNECTING + (measuring.warm_up + measuring.steps) * step)
        bounds.append(seconds)
    before = len(sessions) * (STARTING + CALIBRATING)
    return Estimate(*(before + seconds for seconds in bounds))
