"""Repetitions on disk: none is lost, and what is not of the study is refused."""

from __future__ import annotations

import json

import pytest

from bfpp.api.study.journal import NAME, StudyJournal
from bfpp.api.study.study_file import read_study
from bfpp.schedules import InvalidInput
from tests.helpers.studies import measured, row, written


@pytest.fixture
def file(tmp_path):
    return written(tmp_path / "grid.toml")


def test_what_was_kept_is_read_again(file, tmp_path):
    journal = measured(file, tmp_path, {0: [1.0, 2.0], 3: [4.0]})
    study = read_study(str(file))
    again = StudyJournal(tmp_path, study)
    assert [again.medians(cell) for cell in study.cells] == [[1.0, 2.0], [], [], [4.0]]
    assert (again.about, len(again), len(journal)) == ({"machine": "a bench"}, 3, 3)


def test_wherever_a_line_is_cut_off_all_before_it_is_kept(file, tmp_path):
    measured(file, tmp_path, {0: [1.0], 1: [2.0]})
    study, path = read_study(str(file)), tmp_path / NAME
    whole = path.read_bytes()
    begin = whole.rindex(b"\n", 0, -1) + 1
    for end in range(begin, len(whole)):
        path.write_bytes(whole[:end])
        journal = StudyJournal(tmp_path, study, {"machine": "another"})
        assert len(journal) == 1
        journal.add(study.cells[1], row(2.0))
        assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "text", [b"{}\n", b"[]\n", b"\xff\n", b'{"format": "bfpp study journal 1"}\n', b"1\n2\n"]
)
def test_another_file_is_refused_and_stays(file, tmp_path, text):
    (tmp_path / NAME).write_bytes(text)
    with pytest.raises(InvalidInput, match="is no journal of a study"):
        StudyJournal(tmp_path, read_study(str(file)), {})
    assert (tmp_path / NAME).read_bytes() == text


def test_the_journal_of_another_study_is_refused(file, tmp_path):
    measured(file, tmp_path, {0: [1.0]})
    other = read_study(str(written(tmp_path / "other.toml", model={"layers": 8})))
    with pytest.raises(InvalidInput, match="is of another model, other passes, hosts or networks"):
        StudyJournal(tmp_path, other)


def test_a_study_with_more_cells_goes_on_with_those_that_are_there(file, tmp_path):
    measured(file, tmp_path, {0: [1.0]})
    more = {"schedule": ["zb-h1", "gpipe"], "pp": 2, "microbatches": [2, 4, 8]}
    study = read_study(str(written(tmp_path / "more.toml", experiment=more)))
    journal = StudyJournal(tmp_path, study)
    assert [cell.values for cell in study.cells if journal.of(cell)] == [
        {"schedule": "gpipe", "pp": 2, "microbatches": 2}
    ]


def test_a_line_is_a_row_of_its_own(file, tmp_path):
    measured(file, tmp_path, {2: [1.5]})
    _, line = (tmp_path / NAME).read_text().splitlines()
    kept = json.loads(line)
    assert (kept["values"]["schedule"], kept["step_times"]) == ("1f1b", [1.5, 1.5])
