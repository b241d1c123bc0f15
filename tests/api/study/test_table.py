"""The table of a study, read back: its cells as experiments, predicted by the study's profiles."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from bfpp.api.study.journal import NAME, StudyJournal
from bfpp.api.study.results import NETWORK, results_of
from bfpp.api.study.study_file import read_study
from bfpp.api.study.table import NUMBERS, read_table
from tests.helpers import ROOT
from tests.helpers.studies import measured, written

FOLDER = ROOT / "docs" / "studies" / "four-hosts"
TABLE = [*csv.DictReader((FOLDER / "cells.csv").read_text().splitlines())]


def test_a_table_says_what_its_study_does():
    """The same experiments, and times up to the six digits that are written."""
    study = read_study(str(FOLDER / "grid.toml"))
    results = results_of(study, StudyJournal(FOLDER, study)).results
    for row, result in zip(read_table(FOLDER), results, strict=True):
        assert (row.network, row.experiment) == (result.cell.network, result.cell.experiment)
        assert row.measured == pytest.approx(result.measured, abs=1e-6)
        assert row.predicted == pytest.approx(result.predicted, abs=1e-6)


GRID = {
    "schedule": ["breadth-first", "gpipe"], "pp": 2, "loops": 2, "microbatches": [4, 8],
    "pp_overlap": [True, False], "dp": 2, "sharding": ["none", "fsdp"],
}  # fmt: skip


def test_values_of_all_kinds_come_back(bfpp, tmp_path):
    """Numbers, flags and names."""
    file = written(tmp_path / "grid.toml", experiment=GRID)
    cells = read_study(str(file)).cells
    measured(file, tmp_path, {number: [1.0 + number] for number in range(len(cells))})
    assert bfpp("study", str(file), "--out", str(tmp_path), "--report")[0] == 0
    rows = read_table(tmp_path)
    assert [row.experiment for row in rows] == [cell.experiment for cell in cells]
    assert len({repr(row.experiment) for row in rows}) == len(rows) == 16
    assert (tmp_path / NAME).exists()


@pytest.mark.parametrize("study", [FOLDER, FOLDER / "cells.csv"])
def test_validate_takes_a_study(study, bfpp):
    """The profiles of the folder predict again what they did before the cells were run."""
    code, out, err = bfpp("validate", study, "--json")
    assert code == 0, err
    rows = json.loads(out)["rows"]
    places = [f"{row['network']} {row['backend']}".strip() for row in TABLE]
    assert [row["table"] for row in rows] == places
    assert len(set(places)) > len({row["network"] for row in TABLE})
    for row, known in zip(rows, TABLE, strict=True):
        seconds = row["prediction"]["step_seconds"]
        assert seconds == pytest.approx(float(known["predicted"]), abs=1e-6)
        assert row["error_step_time"] == pytest.approx(100 * float(known["error"]), abs=1e-3)


def test_another_profile_predicts_all_networks(bfpp):
    profile = FOLDER / "25-Mbit-s-4x1x1.toml"
    code, out, err = bfpp("validate", FOLDER, "--profile", profile, "--json")
    assert code == 0, err
    rows = json.loads(out)["rows"]
    values = [name for name in TABLE[0] if name not in (NETWORK, *NUMBERS)]
    places = [tuple(row[name] for name in values) for row in TABLE]
    slow = {
        place: float(row["predicted"])
        for place, row in zip(places, TABLE, strict=True) if row["network"] == "25 Mbit/s"
    }  # fmt: skip
    for row, place in zip(rows, places, strict=True):
        known = slow[place]
        assert row["prediction"]["step_seconds"] == pytest.approx(known, abs=1e-6)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("fit {study}", "bfpp fit: rows of a profile have no constants to fit"),
        (
            "validate {study} --constants {constants}",
            "constants: cannot be combined with --profile",
        ),
        ("validate {bare}", "No such file or directory"),
    ],
)
def test_what_a_study_is_not_for_is_one_line(command, reason, bfpp, tmp_path):
    """A study without its profiles cannot be predicted again."""
    constants, bare = tmp_path / "constants.toml", tmp_path / "bare"
    constants.write_text("")
    bare.mkdir()
    (bare / "cells.csv").write_bytes(Path(FOLDER / "cells.csv").read_bytes())
    code, _, err = bfpp(command.format(study=FOLDER, constants=constants, bare=bare))
    assert (code, err.count("\n")) == (2, 1)
    assert reason in err
