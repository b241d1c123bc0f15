"""Searches of users' schedules: names that are taken, faults, journals of changed files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.user_schedules import MANY, OWN, SEARCH

pytestmark = pytest.mark.usefixtures("own_folder")


NAMESAKES = """
from dataclasses import dataclass

from bfpp.schedules.families.gpipe import GPipe
from bfpp.schedules.families.one_forward_one_backward import OneForwardOneBackward


@dataclass(frozen=True)
class First(GPipe):
    name = "1f1b"
    sequence: str = "a"


class Second(OneForwardOneBackward):
    name = "depth-first"


class Third(GPipe):
    name = "depth-first"
"""


def test_schedules_of_one_name_are_distinct(bfpp, answer, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    Path("own.py").write_text(NAMESAKES)
    names = ["1f1b", "own.py:First", "own.py:Second", "own.py:Third"]
    search = f"{SEARCH} --fix layers=8 --fix tp=2 --schedule {' --schedule '.join(names)}"
    lines = [line.replace(",", "").split() for line in bfpp(search)[1].splitlines() if line]
    compared = [words[1] for words in lines if words[0] in ("Best:", "Against")]
    assert sorted(compared) == sorted({words[0] for words in lines} & set(names))
    assert len(compared) == 2  # in the orders of 1F1B and of GPipe: each is there once
    tradeoff = search.replace("search", "tradeoff", 1) + " --critical-batch 100 --sizes 8"
    found = answer(tradeoff)
    assert {name: found[name][0]["outcome"]["schedule"] for name in names} == {
        name: name for name in names
    }
    bfpp("experiment 1f1b --pp 2 --transfer 1 --out e.toml")
    first = bfpp(f"compare {' '.join(names)} e.toml gpipe --pp 2")[1].splitlines()[1]
    assert first.split() == [*names, "e.toml", "gpipe"]


@pytest.mark.parametrize("name", ["First", "Second", "Third"])
def test_a_schedule_is_not_exported_as_another_one_of_its_name(bfpp, name):
    Path("own.py").write_text(NAMESAKES)
    own = f"experiment own.py:{name} --model bert-6.6b --cluster dgx1-v100 --pp 2 --microbatches 4"
    assert (
        f"no equivalent: the schedule own.py:{name}; these" in bfpp(f"{own} --format megatron")[1]
    )
    settings = bfpp(f"{own} --format torchtitan --release 0.2")[1]
    assert f"bfpp orders own.py:{name} ..." in settings
    assert 'pipeline_parallel_schedule_csv = "orders.csv"' in settings


@pytest.mark.parametrize("keep", ["", " --out found.csv"])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("yield forward", "_ = forward"), "stage 0, micro-batch 0 must run forward once"),
        (('"mine"', "5"), "its name must be a text, not 5"),
    ],
)
def test_a_search_names_the_schedule_that_cannot_run(bfpp, change, reason, keep):
    Path("mine.py").write_text(OWN.replace(*change))
    code, out, err = bfpp(f"{SEARCH}{keep} --schedule gpipe --schedule mine.py:Mine")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"bfpp search: SCHEDULE: mine.py:Mine: {reason}")


@pytest.mark.usefixtures("many")
def test_a_journal_knows_no_results_of_a_file_that_has_changed(answer):
    search = f"{SEARCH} --fix layers=8 --fix tp=2 --schedule many.py:few --journal found"

    def journalled():  # in one process: what it remembers is of the schedule, not of its name
        answer(search)
        return len(Path("found").read_text().splitlines()) - 1

    once = journalled()
    assert journalled() == once
    Path("many.py").write_text(MANY.replace("whole=2", "whole=3"))
    assert journalled() == 2 * once
    assert journalled() == 2 * once
    Path("many.py").rename("moved.py")
    search = search.replace("many.py", "moved.py")
    assert journalled() == 3 * once
    search = search.replace("moved.py", "./moved.py")
    assert journalled() == 3 * once


def test_a_journal_knows_no_results_of_what_a_file_imports_once_that_has_changed(
    answer,
):
    Path("steps_of_ours").mkdir()
    Path("steps_of_ours/inner.py").write_text("from .innermost import Mine\n")
    Path("steps_of_ours/innermost.py").write_text(OWN)
    Path("beside_ours.py").write_text("import json\nfrom steps_of_ours.inner import Mine\n")
    Path("own.py").write_text("import bfpp, numpy.linalg\nfrom beside_ours import Mine\n")
    search = f"{SEARCH} --fix layers=8 --fix tp=2 --schedule own.py:Mine --journal found"

    def journalled():
        answer(search)
        return len(Path("found").read_text().splitlines()) - 1

    once = journalled()
    Path("other.py").write_text(OWN)
    assert journalled() == once
    for times, changed in enumerate(["steps_of_ours/innermost.py", "beside_ours.py"], 2):
        with Path(changed).open("a") as file:
            file.write("\n# changed")
        assert journalled() == journalled() == times * once
