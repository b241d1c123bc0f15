"""Runs of a study: its sessions one after another, each predicted before its cells are run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bfpp.api.predictions import predict
from bfpp.api.running.jobs import about
from bfpp.api.study.hosts.namespaces import namespaces
from bfpp.api.study.hosts.study_hosts import HostKind
from bfpp.api.study.intervals import interval
from bfpp.api.study.jobs import jobs_of
from bfpp.api.study.journal import StudyJournal, seconds_of
from bfpp.api.study.study import Session, Study, StudyCell
from bfpp.api.study.turns import StudyTurns
from bfpp.schedules import InvalidInput
from bfpp.sim.costs.measured.profile import load_profile
from bfpp.sim.costs.measured.profile_file import as_toml
from bfpp.traces.explain.difference import difference
from bfpp.traces.formats.timeline_json import save_timeline
from bfpp.traces.timeline.timeline import Timeline
from bfpp.traces.timeline.units import in_words

if TYPE_CHECKING:
    from bfpp.executor.events import Message
    from bfpp.executor.processes import Hosts
    from bfpp.executor.train.job import Job

FAILURES_IN_A_ROW = 3
"""Failures of a session without a repetition between them, after which it is given up."""

Say = Callable[[str], None]


def run_study(study: Study, folder: Path, journal: StudyJournal, say: Say) -> None:
    """Run what is left of a study, and keep it in the journal.

    Profiles and measured timelines are written to the folder. A session whose processes fail is
    begun again; raises `RunFailed` after the third failure with nothing measured in between.
    """
    is_joined = study.hosts.are_joined
    if is_joined and len(study.sessions) > 1:
        raise InvalidInput("FILE: under torchrun, all cells have one pp, dp and microbatch_size")
    # Of processes that torchrun started, only the first knows what is done: all take part.
    due = {
        session: cells
        for session, cells in study.sessions.items()
        if is_joined or StudyTurns(study.measuring, seconds_of(journal, cells), True).due
    }
    # All of them first, so that what cannot be run is said before anything is.
    jobs = {session: jobs_of(study, cells) for session, cells in due.items()}
    for session, cells in due.items():
        _Conductor(study, session, cells, jobs[session], folder, journal, say).run()


class _Conductor:
    """A session: its jobs, its predictions, and the repetitions that arrive."""

    def __init__(
        self,
        study: Study,
        session: Session,
        cells: Sequence[StudyCell],
        jobs: Sequence[Job],
        folder: Path,
        journal: StudyJournal,
        say: Say,
    ) -> None:
        self.study, self.session, self.cells = study, session, list(cells)
        self.folder, self.journal, self.say = folder, journal, say
        self.profile = folder / session.profile
        self.jobs = jobs
        self.predicted: list[Timeline] = []
        if self.profile.exists():
            self._predict()

    def run(self) -> None:
        """Run what is left, however often processes fail in between."""
        from bfpp.executor.processes import RunFailed

        failures = 0
        with _hosts(self.study, self.session, self.folder) as hosts:
            while True:
                before = len(self.journal)
                try:
                    self._launch(hosts)
                    return
                except RunFailed as error:
                    if not self.turns.due:  # it failed when all was done
                        return
                    failures = 1 if len(self.journal) > before else failures + 1
                    if failures == FAILURES_IN_A_ROW:
                        raise
                    self.say(f"{self.session.name}: {error}; begun again, the cell under way too")

    @property
    def turns(self) -> StudyTurns:
        """The turns that are left."""
        seconds = seconds_of(self.journal, self.cells)
        return StudyTurns(self.study.measuring, seconds, bool(self.predicted))

    def _launch(self, hosts: Hosts) -> None:
        from bfpp.executor.measure.passes import QUICK, Effort
        from bfpp.executor.measure.turns import Jobs, take_turns
        from bfpp.executor.processes import launch

        measuring = self.study.measuring
        effort = Effort(QUICK.steps, QUICK.bytes[:1], QUICK.parameters[:2])
        work = Jobs(
            self.jobs, self.turns, measuring.steps, measuring.warm_up, effort, self.study.mocked
        )
        launch(take_turns, work, self.jobs[0].processes, on_message=self._hear, hosts=hosts)

    def _hear(self, message: Message) -> None:
        match message.get("event"):
            case "profile":
                record = {"about": about(self.jobs[0]), **message["profile"]}
                self.profile.write_text(as_toml(record), encoding="utf-8")
                self._predict()
            case "turn":
                self._keep(message)

    def _predict(self) -> None:
        """Predict all cells by the profile, before any of them is run."""
        costs = load_profile(str(self.profile))
        self.predicted = [
            predict(cell.predicted.changed(profile=costs)).timeline for cell in self.cells
        ]
        self.say(f"{self.session.name}: {len(self.cells)} cells predicted")

    def _keep(self, message: Message) -> None:
        number = int(message["job"])
        cell, predicted = self.cells[number], self.predicted[number]
        parts = {}
        if cell.times_tasks:
            measured = _timeline(self.jobs[number], predicted, message["columns"])
            parts = difference(predicted, measured).mean_rank
            timelines = self.folder / "timelines"
            timelines.mkdir(exist_ok=True)
            save_timeline(measured, timelines / cell.timeline)
        row = {
            "step_times": _rounded(message["seconds"]),
            "elapsed_times": _rounded(message["elapsed"]),
            "predicted": _rounded([predicted.step_time])[0],
            "parts": {
                name: _rounded([pair.simulated, pair.measured])
                for name, pair in parts.items()
                if pair.simulated or pair.measured
            },
            "clocks": message["clocks"],
            "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self.journal.add(cell, row)
        known = interval(self.journal.medians(cell))
        error = predicted.step_time / known.mean - 1
        self.say(
            f"{self.session.name}: {', '.join(map(str, cell.values.values()))}: "
            f"{in_words(message['seconds'][0])}; mean {in_words(known.mean)}, "
            f"predicted {error:+.1%}"
        )


def _rounded(seconds: Sequence[float]) -> list[float]:
    """To the microsecond."""
    return [round(each, 6) for each in seconds]


def _timeline(job: Job, predicted: Timeline, columns: Any) -> Timeline:
    """The measured timeline of the median step of a repetition."""
    from bfpp.executor.train.measured_timeline import timeline_of

    timeline = timeline_of(np.array(columns), predicted.graph)
    return replace(timeline, about=about(job))


@contextmanager
def _hosts(study: Study, session: Session, folder: Path) -> Iterator[Hosts]:
    """The hosts of a session."""
    from bfpp.executor.processes import HERE

    bits = study.networks[session.network]
    if study.hosts.where is not HostKind.NAMESPACES:
        yield HERE
        return
    with namespaces(study.hosts.count, bits, folder) as hosts:
        yield hosts
