"""Drift of hosts' clocks, of offsets that are known."""

from __future__ import annotations

import pytest

from bfpp.api.study.clocks import clock_drifts
from bfpp.api.study.results import results_of
from bfpp.api.study.study_file import read_study
from bfpp.reports.studies import CLOCKS, print_study
from tests.helpers.studies import measured, written

GAIN, START = 20e-6, 1000.0
"""A clock that gains 20 microseconds a second, and is this many seconds ahead."""


@pytest.fixture
def known(tmp_path):
    """A study, and its journal: of two runs the first took longer."""
    file = written(tmp_path / "grid.toml")
    study = read_study(str(file))
    journal = measured(file, tmp_path, {0: [1.0, 1.2], 1: [3.0], 2: [2.0]})
    rows = [row for cell in study.cells for row in journal.of(cell)]
    for row, (since, at) in zip(
        rows, [(1.0, 10.0), (1.0, 60.0), (1.0, 35.0), (99.0, 100.0)], strict=True
    ):
        own = since * 1e3 if since > 1 else 0.0  # another run's clock begins elsewhere
        offset = START + own + GAIN * at
        row["clocks"] = {"since": since, "at": at, "hosts": [[0.0, 0.0], [offset, 1e-4]]}
    return study, journal


def test_drift_is_that_of_the_longest_run(known):
    (drift,) = clock_drifts(*known)
    assert (drift.host, drift.seconds) == (1, 50.0)
    assert drift.drift == pytest.approx(GAIN)
    assert drift.drift_error == pytest.approx(2e-4 / 50)
    assert (drift.start, drift.end) == (START + 10 * GAIN, START + 60 * GAIN)


def test_drift_is_printed_in_parts_in_a_million(known, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")  # lines are not broken
    print_study(results_of(*known))
    out = capsys.readouterr().out
    assert CLOCKS in out
    assert "+20.00 ± 4.00 ppm" in out


def test_clocks_that_were_compared_once_have_no_drift_and_one_host_has_none(known):
    study, journal = known
    for cell in study.cells[1:]:
        for row in journal.of(cell):
            row["clocks"] = None
    journal.of(study.cells[0]).pop()
    (drift,) = clock_drifts(study, journal)
    assert (drift.drift, drift.record["drift_error"]) == (None, None)
    journal.of(study.cells[0])[0]["clocks"]["hosts"].pop()
    assert clock_drifts(study, journal) == []
