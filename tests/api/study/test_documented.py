"""The study of the documentation: its table, and the numbers that the page says, are its data's."""

from __future__ import annotations

import re
import shutil

import pytest

from bfpp.api.study.journal import NAME, StudyJournal
from bfpp.api.study.results import results_of
from bfpp.api.study.study_file import read_study
from tests.helpers import ROOT

FOLDER = ROOT / "docs" / "studies" / "four-hosts"
PAGE = (ROOT / "docs" / "how-to" / "studies.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def result():
    study = read_study(str(FOLDER / "grid.toml"))
    return results_of(study, StudyJournal(FOLDER, study))


def test_each_number_of_the_tables_is_measured(result):
    """Rows are networks and micro-batches, columns schedules, or their variants."""
    said = {}
    for heading, body in re.findall(r"\| network, micro-batches \|(.*)\|\n.*\n((?:\|.*\n)+)", PAGE):
        names = [name.strip() for name in heading.split("|")]
        for row in body.splitlines():
            place, *cells = (cell.strip(" *") for cell in row.strip("|").split("|"))
            network, microbatches = place.strip().split(", ")
            told = zip(names, cells, strict=True)
            said |= {(network, microbatches, name): cell for name, cell in told if cell}
    known = {
        (
            each.cell.network, str(each.cell.values["microbatches"]), label(each.cell),
        ): f"{each.measured.mean:.3f} ({100 * each.error:+.1f})"
        for each in result.results
    }  # fmt: skip
    assert said == known


def label(cell):
    """The name of a column."""
    without = ", no overlap" if cell.values.get("pp_overlap") is False else ""
    return f"{cell.schedule}{without}{'' if cell.times_tasks else ', PyTorch'}"


def test_the_sentences_are_true(result):
    summary, errors = result.summary, result.errors
    assert f"Errors** are {summary['median_error']:.1%}".replace("%", " %") in PAGE
    assert f"In {sum(error < 0.1 for error in errors)} of {len(errors)} cells" in PAGE
    assert f"the largest is {max(errors):.1%}".replace("%", " %") in PAGE
    taus = [group.tau for group in result.groups]
    assert f"tau of {summary['mean_kendall_tau']:.2f} in the mean" in PAGE
    assert f"and of {min(taus):.2f} at least" in PAGE
    assert f"up to {summary['largest_loss']:.1%} slower".replace("%", " %") in PAGE


def test_one_command_draws_table_and_page_again(bfpp, tmp_path):
    shutil.copy(FOLDER / NAME, tmp_path / NAME)
    grid = str(FOLDER / "grid.toml")
    assert bfpp("study", grid, "--out", str(tmp_path), "--report")[0] == 0
    for name in ("cells.csv", "index.html", "step-times.svg"):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()
