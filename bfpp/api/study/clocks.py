"""Clocks of a study's hosts: their offsets from the first one's, and their drift.

Clocks are compared before each repetition, whose times are then the first host's. Processes that
were started anew may have clocks that begin elsewhere, so drift is that of one run of a session: of
the one that took the longest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bfpp.api.study.journal import CLOCKS, StudyJournal
from bfpp.api.study.study import Study

PPM = 1e6


@dataclass(frozen=True)
class ClockDrift:
    """The offset of a host's clock at the first and at the last comparison, in seconds.

    `drift` is in seconds a second, None after a single comparison. Each has the largest error that
    it can have.
    """

    session: str
    host: int
    start: float
    start_error: float
    end: float
    end_error: float
    seconds: float

    @property
    def drift(self) -> float | None:
        """Seconds that the clock gains in each."""
        return (self.end - self.start) / self.seconds if self.seconds else None

    @property
    def drift_error(self) -> float | None:
        """The largest error of the drift."""
        return (self.start_error + self.end_error) / self.seconds if self.seconds else None

    @property
    def record(self) -> dict[str, Any]:
        """All of it as JSON."""
        return {**asdict(self), "drift": self.drift, "drift_error": self.drift_error}


def clock_drifts(study: Study, journal: StudyJournal) -> list[ClockDrift]:
    """The clock of each host but the first, in each session in which there are several."""
    drifts = []
    for session, cells in study.sessions.items():
        known = [row[CLOCKS] for cell in cells for row in journal.of(cell) if row.get(CLOCKS)]
        drifts += _drifts(session.name, known)
    return drifts


def _drifts(session: str, known: Sequence[Mapping[str, Any]]) -> list[ClockDrift]:
    runs: dict[float, list[Mapping[str, Any]]] = {}
    for each in sorted(known, key=lambda each: each["at"]):
        runs.setdefault(each["since"], []).append(each)
    if not runs:
        return []
    longest = max(runs.values(), key=lambda run: run[-1]["at"] - run[0]["at"])
    first, last = longest[0], longest[-1]
    seconds = last["at"] - first["at"]
    ends = zip(first["hosts"], last["hosts"], strict=True)
    return [
        ClockDrift(session, host, start, start_error, end, end_error, seconds)
        for host, ((start, start_error), (end, end_error)) in enumerate(ends)
        if host
    ]
