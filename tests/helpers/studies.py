"""Studies as files, and as they are after some repetitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bfpp.api.study.journal import StudyJournal
from bfpp.api.study.study_file import read_study
from bfpp.sim.costs.measured.profile_file import inline

GRID: dict[str, Any] = {
    "title": "A study",
    "experiment": {"schedule": ["gpipe", "1f1b"], "pp": 2, "microbatches": [2, 4]},
    "model": {"layers": 4, "hidden": 16, "context": 8},
    "compute": {"forward": 0.002, "backward": 0.004},
    "measuring": {"steps": 2, "warm_up": 0, "least": 2, "most": 3, "width": 0.1},
}


def written(path: Path, **tables: Any) -> Path:
    """The file of a study: a table that is None is left out."""
    known = {name: table for name, table in (GRID | tables).items() if table is not None}
    path.write_text("\n".join(f"{name} = {inline(value)}" for name, value in known.items()))
    return path


def measured(file: Path, folder: Path, seconds: Mapping[int, Sequence[float]]) -> StudyJournal:
    """The journal of a study with steps of these seconds, a repetition each, by cell."""
    folder.mkdir(exist_ok=True)
    study = read_study(str(file))
    journal = StudyJournal(folder, study, {"machine": "a bench"})
    for number, repetitions in seconds.items():
        for each in repetitions:
            journal.add(study.cells[number], row(each))
    return journal


def row(seconds: float) -> dict[str, Any]:
    """A repetition of two steps, whose prediction is 10 % too long."""
    return {
        "step_times": [seconds, seconds],
        "elapsed_times": [seconds, seconds],
        "predicted": 1.1 * seconds,
        "parts": {"compute": [0.5, 0.5], "transfer": [1.1 * seconds - 0.5, seconds - 0.5]},
        "ended": "2026-11-27T12:00:00+00:00",
    }
