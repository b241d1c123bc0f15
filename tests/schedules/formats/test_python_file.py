"""Schedules from a user's Python file: in commands and other processes, with what it imports."""

from __future__ import annotations

import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bfpp.schedules import InvalidInput, find_schedule
from bfpp.schedules.families.gpipe import GPipe
from bfpp.schedules.formats import python_file
from bfpp.sim.search.workers import executor
from tests.helpers.user_schedules import OWN, SEARCH

pytestmark = pytest.mark.usefixtures("own_folder")


def test_a_users_schedule_goes_everywhere(bfpp, answer):
    Path("mine.py").write_text(OWN)
    own = "mine.py:Mine --pp 2 --microbatches 4"
    assert bfpp(f"check {own}") == (0, "valid\n", "")
    assert bfpp(f"orders {own}")[1].startswith("0F0,0B0,0F1,0B1,0F2,0B2,0F3,0B3\n")
    Path("late.py").write_text(OWN.replace("first: int = 0", "first: int = 2"))
    code, out, _ = bfpp("check late.py:Mine --pp 2 --microbatches 4")
    assert (code, out.splitlines()[-1]) == (1, "invalid")
    assert "backward: stage 1 never runs micro-batches 0, 1 backward" in out
    Path("inner").mkdir()
    Path("mine.py").rename("inner/mine.py")
    assert bfpp("experiment inner/mine.py:Mine --pp 2 --out mine.toml")[0] == 0
    Path("inner/e.toml").write_text(Path("mine.toml").read_text().replace("inner/", ""))
    for file in ("mine.toml", "inner/e.toml"):
        assert answer(f"simulate {file} --trust")["schedule"] == "mine"
        assert bfpp(f"check {file} --trust") == (0, "valid\n", "")


INHERITED = (
    OWN
    + """

class Heir(Mine):
    name = "heir"
    last: int = 0


class Bare(Heir):
    name = "bare"


class Nothing(Schedule):
    name = "nothing"
"""
)


def test_a_field_is_an_option_without_a_decorator(bfpp):
    """Of the class itself, and of those that it inherits from."""
    Path("mine.py").write_text(INHERITED)
    code, out, _ = bfpp("check mine.py:Mine --pp 2 --microbatches 4 --first 2")
    assert (code, "backward: stage 1 never runs micro-batches 0, 1 backward" in out) == (1, True)
    assert "last = 3" in bfpp("experiment mine.py:Bare --last 3")[1]
    bare = find_schedule("mine.py:Bare", last=2)
    assert (repr(bare), bare.parameters) == ("Bare(first=0, last=2)", {"first": 0, "last": 2})
    assert bare != find_schedule("mine.py:Bare")
    assert pickle.loads(pickle.dumps(bare)) == bare
    code, _, error = bfpp("simulate mine.py:Nothing")
    assert (code, error) == (2, "bfpp simulate: SCHEDULE: mine.py:Nothing has no method steps\n")


EXITS = """
import sys

from bfpp import Schedule
from bfpp.schedules.families.gpipe import GPipe

class Early(GPipe):
    name = "early"

    def __init__(self):
        sys.exit(0)


class Late(GPipe):
    name = "late"

    def steps(self, layout, rank):
        sys.exit(0)
"""


@pytest.mark.parametrize(
    "line",
    [
        "simulate top.py:Any", "orders exits.py:Early", "compare gpipe exits.py:Late",
        f"{SEARCH} --schedule exits.py:Late",
    ],
)  # fmt: skip
def test_a_file_that_exits_is_an_error(bfpp, line):
    Path("top.py").write_text("import sys\nsys.exit(0)\n")
    Path("exits.py").write_text(EXITS)
    code, out, error = bfpp(line)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert "sys.exit(0) would end bfpp" in error


@pytest.mark.parametrize("statement", ["sys.exit(0)", "1 / 0"])
def test_a_worker_says_which_line_fails(statement):
    Path("fails.py").write_text(EXITS.replace("sys.exit(0)", statement))
    late = find_schedule("fails.py:Late")
    with executor("local", 1) as workers, pytest.raises(InvalidInput, match=r"fails.py, line 18: "):
        workers.submit(late.orders, late.layout(2, 2)).result()


def test_a_file_imports_what_is_next_to_it():
    """Each its own, also of one name; classes that are made there are the same elsewhere, too."""
    for first, folder in enumerate(["one", "two"]):
        Path(folder).mkdir()
        Path(f"{folder}/beside.py").write_text(OWN.replace("= 0", f"= {first}"))
        Path(f"{folder}/mine.py").write_text("from beside import Mine")
    before = [*sys.path]
    found = [find_schedule(f"{folder}/mine.py:Mine") for folder in ("one", "two")]
    assert [each.first for each in found] == [0, 1]
    assert sys.path == before
    sent = pickle.dumps(found)
    del sys.modules["beside"]
    python_file._schedules.clear()
    assert [each.first for each in pickle.loads(sent)] == [0, 1]
    Path("json.py").write_text("")
    Path("mine.py").write_text("import json\nfrom one.beside import Mine")
    assert find_schedule("mine.py:Mine").first == 0
    assert sys.modules["json"] is json


def test_a_users_schedule_is_the_same_in_another_process():
    Path("mine.py").write_text(OWN)
    mine = replace(find_schedule("mine.py:Mine"), first=3)
    assert pickle.loads(pickle.dumps(mine)) == mine
    sent = pickle.dumps(mine)
    python_file._schedules.clear()
    there = pickle.loads(sent)
    assert (there.name, there.first, there.reference) == ("mine", 3, "mine.py:Mine")
    Path("mine.py").write_text(OWN.replace("first: int = 0", "first: int = 1"))
    assert find_schedule("mine.py:Mine").first == 1
    Path("known.py").write_text("from bfpp.schedules.families.gpipe import GPipe")
    assert pickle.loads(pickle.dumps(find_schedule("known.py:GPipe"))) == GPipe()
