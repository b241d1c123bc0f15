"""Schedules of one's own, from a Python file: in every command, in other processes, as options."""

from __future__ import annotations

import csv
import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bfpp.options.experiment_file import experiment_text, read_experiment
from bfpp.options.shared import words
from bfpp.schedules import InvalidConfiguration, InvalidInput, find_schedule
from bfpp.schedules.families.gpipe import GPipe
from bfpp.schedules.formats import python_file
from bfpp.sim.experiment.experiment import Experiment, experiment_of
from bfpp.sim.search.workers import executor


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Every test runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)


SEARCH = "search --model bert-6.6b --cluster dgx1-v100 --gpus 4 --batch 8 --workers 1 --fix pp=2"

OWN = """
from bfpp import Schedule
from bfpp.schedules.orders.steps import backward, forward


class Mine(Schedule):
    name = "mine"
    first: int = 0

    def steps(self, layout, rank):
        for microbatch in range(layout.microbatches):
            yield forward(rank, microbatch)
            if microbatch >= self.first:
                yield backward(rank, microbatch)
"""


def test_a_schedule_of_ones_own_goes_everywhere(bfpp, answer):
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


def test_a_schedule_of_ones_own_is_the_same_in_another_process():
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


MANY = """
from dataclasses import dataclass

from bfpp.schedules.families.gpipe import GPipe


@dataclass(frozen=True)
class Many(GPipe):
    name = "many"
    whole: int = 4
    least: int | None = None
    share: float = 0.5
    kind: str = "5%"
    first: bool = True
    after: bool = False
    svg: int = 1
    sizes: tuple[int, ...] = ()


few = Many(whole=2, share=-1.0, after=True)
"""
VALUES = [
    {"whole": 0, "least": -3, "share": 0.0, "kind": "other", "first": False, "after": False},
    {"whole": 4, "least": 7, "share": 0.5, "kind": "5%", "first": True, "after": True},
    {"whole": 2, "share": -1.0, "kind": " of two words"},
    {"kind": ""},
    {"kind": "-k", "share": -1e-05},
]
"""Values of parameters: other ones, defaults of the class, and those of its instance."""


@pytest.fixture
def many():
    Path("many.py").write_text(MANY)


@pytest.mark.parametrize("name", ["many.py:Many", "many.py:few"])
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.usefixtures("many")
def test_every_parameter_is_written_and_read_again(bfpp, name, values):
    experiment = Experiment(name, pp=2).changed(**values)
    Path("e.toml").write_text(experiment_text(experiment))
    assert read_experiment("e.toml", trust=True) == experiment
    assert experiment_of({each: str(value) for each, value in experiment.record.items()}) == (
        experiment
    )
    assert bfpp("experiment", *words(experiment)) == (0, experiment_text(experiment), "")


@pytest.mark.usefixtures("many")
def test_two_of_one_class_are_told_apart_in_other_processes_too():
    few, every = find_schedule("many.py:few"), find_schedule("many.py:Many")
    for schedule in (few, every):
        again = pickle.loads(pickle.dumps(schedule))
        assert (again, again.reference) == (schedule, schedule.reference)
        assert experiment_of(Experiment(again).record).rule == schedule


@pytest.mark.usefixtures("many")
def test_parameters_of_files_are_options_of_commands_that_name_them(bfpp, answer):
    assert bfpp("experiment many.py:few --out e.toml")[0] == 0
    assert answer("experiment e.toml --whole 0 --trust")["whole"] == 0
    compared = answer("compare e.toml many.py:Many gpipe --least 1 --trust")["schedules"]
    assert [each["schedule"] for each in compared] == ["many", "many", "gpipe"]
    assert (
        bfpp(
            "explain", "e.toml", "--trust", "--against", "many.py:Many --share=-2 --microbatches 4"
        )[0]
        == 0
    )
    assert "--kind TEXT" in bfpp("orders many.py:Many --help")[1]
    for name in ("e.toml", "no.toml", "no.py:No"):
        assert answer(f"experiment many.py:Many --kind {name}")["kind"] == name
    Path("other.py").write_text("def model(seed): pass")
    for line, reason in [
        ("simulate gpipe --whole 3", "unrecognized arguments: --whole 3"),
        ("simulate many.py:Many --whole 1.5", "argument --whole: must be a whole number"),
        ("simulate many.py:Many --svg 2", "argument --svg: must end in .svg"),
        ("simulate many.py:Many --sizes 2", "unrecognized arguments: --sizes 2"),
        ("simulate other.py:model --whole 3", "SCHEDULE: other.py has no Schedule of the name"),
        ("run many.py:Many --whole 3 --model other.py:model --steps x", "argument --steps"),
    ]:
        code, out, err = bfpp(line)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"bfpp {line.split()[0]}: {reason}")


@pytest.mark.usefixtures("many")
def test_a_search_keeps_the_parameters_of_schedules(bfpp, answer, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    search = (
        f"{SEARCH} --fix layers=8 --fix tp=2 --schedule many.py:few --schedule dualpipe "
        "--fix whole=7,-1 --fix kind=a --fix fused_blocks=false --journal found"
    )
    found = json.loads(bfpp(f"{search} --best best.toml --out found.csv --json")[1])
    rows = found["configurations"]
    of_few = {"whole", "least", "share", "kind", "first", "after", "svg"}
    assert {(row["schedule"], row.get("whole"), row.get("fused_blocks")) for row in rows} == {
        ("many.py:few", 7, None), ("many.py:few", -1, None), ("dualpipe", None, False),
    }  # fmt: skip
    for row in rows:
        assert of_few.isdisjoint(row) or of_few < set(row)
    rule = read_experiment("best.toml", trust=True).rule
    assert {name: rows[0].get(name, ()) for name in rule.parameters} == rule.parameters
    assert answer("simulate best.toml --trust")["step_time"] == pytest.approx(rows[0]["step_time"])
    with Path("found.csv").open(newline="") as file:
        cells = [(row["whole"], row["fused_blocks"]) for row in csv.DictReader(file)]
    assert set(cells) == {("7", ""), ("-1", ""), ("", "False")}
    assert answer(search)["configurations"] == rows
    assert len(Path("found").read_text().splitlines()) == 1 + found["simulated"]
    assert "whole -1" in (printed := bfpp(search)[1])
    assert "fused blocks False" in printed


@pytest.mark.usefixtures("many")
def test_parameters_of_schedules_that_cannot_be_columns_are_refused(bfpp):
    Path("clash.py").write_text(MANY.replace("whole", "bubble"))
    Path("other.py").write_text(MANY.replace("whole: int = 4", 'whole: str = "4"'))
    for name, reason in [
        ("clash.py:few", "clash.py:few: its parameter 'bubble' has the name of another value"),
        ("other.py:Many", "other.py:Many: its parameter 'whole' has another type elsewhere"),
    ]:
        code, out, err = bfpp(f"{SEARCH} --schedule many.py:few --schedule {name}")
        assert (code, out, err) == (2, "", f"bfpp search: SCHEDULE: {reason}\n")


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


def test_schedules_of_one_name_are_told_apart(bfpp, answer, monkeypatch):
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
    settings = bfpp(f"{own} --format torchtitan")[1]
    assert f"bfpp orders own.py:{name} ..." in settings
    assert 'pipeline_parallel_schedule_csv = "orders.csv"' in settings


def test_parameters_may_be_none_and_have_names_of_what_follows_from_a_configuration(answer):
    Path("other.py").write_text(
        MANY.replace("whole", "passes").replace("Many(passes", "Many(least=3, passes")
    )
    rows = answer(
        f"{SEARCH} --fix layers=8 --schedule other.py:few --schedule other.py:Many --fix passes=5"
    )["configurations"]
    assert {(row["schedule"], row["passes"], row["least"]) for row in rows} == {
        ("other.py:few", 5, 3), ("other.py:Many", 5, None),
    }  # fmt: skip


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
def test_what_has_no_name_is_refused():
    with pytest.raises(InvalidConfiguration, match="sizes: was made in Python"):
        _ = Experiment("many.py:Many").changed(sizes=(1, 2)).record
    Path("clash.py").write_text(MANY.replace("whole", "dp"))
    with pytest.raises(InvalidConfiguration, match="parameter 'dp' has the name of another value"):
        Experiment("clash.py:Many")
