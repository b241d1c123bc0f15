"""The accuracy that is published is that of the documented command, with the shipped presets."""

from __future__ import annotations

import json
from itertools import takewhile

import pytest

from bfpp.command_line import main
from bfpp.sim.experiment.uncertainty import Interval
from bfpp.sim.measurements.published import sources
from tests.helpers import ROOT
from tests.sim.costs.test_physical import MEASUREMENTS

ROUNDING = 0.051


def table_of(page: str, first: str, *others: str) -> list[dict[str, str]]:
    """The rows of the first table of a page with such a first column, and all others."""
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    heads = [number for number, line in enumerate(lines) if line.startswith(f"| {first} |")]
    at = next(each for each in heads if all(f"| {other} |" in lines[each] for other in others))
    rows = takewhile(lambda line: line.startswith("|"), lines[at:])
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in rows]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


RECIPES = table_of("recipes.md", "recipe")


def system_of(row):
    return row["recipe"].partition("-dgx-")[2].partition("-")[0]


SOME = list({system_of(row): row for row in RECIPES}.values())
"""The oldest of each system."""


def check_recipe(row, capsys):
    path = ROOT / "examples" / "recipes" / f"{row['recipe']}.toml"
    assert main(["simulate", str(path), "--json"]) == 0
    predicted = json.loads(capsys.readouterr().out)["tokens_per_second_per_gpu"]
    assert f"{predicted:.0f}" == row["predicted"]
    published = float(row["tokens/s per GPU"])
    error = float(row["error of the step time"].rstrip(" %"))
    assert 100 * (published / predicted - 1) == pytest.approx(error, abs=ROUNDING)


@pytest.mark.parametrize("row", SOME, ids=lambda row: row["recipe"])
def test_a_published_recipe_is_what_its_command_predicts(row, capsys):
    check_recipe(row, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("row", RECIPES, ids=lambda row: row["recipe"])
def test_every_published_recipe_is_what_its_command_predicts(row, capsys):
    check_recipe(row, capsys)


TABLES = {source.title: name for name, source in sources().items()}
TABLES["the paper, V100"] = str(MEASUREMENTS)


@pytest.mark.parametrize(
    "row", table_of("accuracy.md", "source", "left out"), ids=lambda row: row["source"]
)
def test_a_sources_published_accuracy_is_what_validate_says(row, capsys, monkeypatch):
    """Without intervals, which take nine tenths of the time, and are not in this table."""
    known = Interval(1.0, 2.0)
    monkeypatch.setattr("bfpp.sim.measurements.validation.interval", lambda *_: known)
    assert main(["validate", TABLES[row["source"]], "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert len(record["rows"]) == int(row["runs"])
    assert record["step_time_mape"] == pytest.approx(float(row["mean error (%)"]), abs=ROUNDING)
    largest = max(abs(each["error_step_time"]) for each in record["rows"])
    assert largest == pytest.approx(float(row["largest"]), abs=ROUNDING)
