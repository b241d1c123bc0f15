"""Parameters of users' schedules: as options, in files, in searches and other processes."""

from __future__ import annotations

import csv
import json
import pickle
from pathlib import Path

import pytest

from bfpp.options.experiment_file import experiment_text, read_experiment
from bfpp.options.shared import words
from bfpp.schedules import InvalidConfiguration, find_schedule
from bfpp.sim.experiment.experiment import Experiment, experiment_of
from tests.helpers.user_schedules import MANY, SEARCH

pytestmark = pytest.mark.usefixtures("own_folder")


VALUES = [
    {"whole": 0, "least": -3, "share": 0.0, "kind": "other", "first": False, "after": False},
    {"whole": 4, "least": 7, "share": 0.5, "kind": "5%", "first": True, "after": True},
    {"whole": 2, "share": -1.0, "kind": " of two words"},
    {"kind": ""},
    {"kind": "-k", "share": -1e-05},
]
"""Values of parameters: other ones, defaults of the class, and those of its instance."""


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
def test_two_of_one_class_are_distinct_in_other_processes_too():
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


@pytest.mark.usefixtures("many")
def test_what_has_no_name_is_refused():
    with pytest.raises(InvalidConfiguration, match="sizes: was made in Python"):
        _ = Experiment("many.py:Many").changed(sizes=(1, 2)).record
    Path("clash.py").write_text(MANY.replace("whole", "dp"))
    with pytest.raises(InvalidConfiguration, match="parameter 'dp' has the name of another value"):
        Experiment("clash.py:Many")
