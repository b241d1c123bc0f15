"""The documentation's tables of a public corpus: each number is what the commands give."""

from __future__ import annotations

import json
import re

import pytest

from docs.generate.sessions import ROOT, blocks, steps

PAGE = ROOT / "docs" / "how-to" / "uneven.md"
ROW = re.compile(r"^\| (`.+?) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
CELL = re.compile(r"([-+]?[\d.]+) % \((-?[\d.]+) to (-?[\d.]+)\)")
PER_CENT = 0.051
"""Numbers have one digit after the point."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tables() -> list[dict[str, list[tuple[float, ...]]]]:
    """The losses by packing and the gains by remedy, of each schedule, in per cent."""
    section = PAGE.read_text(encoding="utf-8").partition("## A public corpus")[2].partition("\n## ")
    lost, _, saved = section[0].partition("What each remedy recovers")
    return [
        {
            name.replace("`", ""): [tuple(map(float, CELL.fullmatch(it).groups())) for it in cells]
            for name, *cells in ROW.findall(part)
        }
        for part in (lost, saved)
    ]


@pytest.fixture
def answered(bfpp, tmp_path, monkeypatch):
    """The JSON of a command with other words for its last one."""
    monkeypatch.chdir(tmp_path)
    for block in blocks(PAGE):
        if block.title:
            (tmp_path / block.title).write_text(block.text)

    def answer(command, packing):
        _, printed, _ = bfpp(*command.words[1:-1], packing, "--json")
        return json.loads(printed)

    return answer


COMPARED, *EXPLAINED = (
    each for each in steps(PAGE) if "wikipedia.csv" in getattr(each, "line", "")
)


def test_losses_are_those_of_the_commands(tables, answered):
    lost, _ = tables
    assert len(lost) == 3
    for packing, cells in lost.items():
        for cell, schedule in zip(cells, answered(COMPARED, packing)["schedules"], strict=True):
            uneven = schedule["uneven"]
            low, _, high = uneven["step_time_quantiles"].values()
            even = uneven["even_step_time"]
            shares = [uneven["slowdown"], low / even, high / even]
            assert [100 * (each - 1) for each in shares] == pytest.approx(cell, abs=PER_CENT)


def test_gains_are_those_of_the_commands(tables, answered):
    _, saved = tables
    assert len(saved) > 8
    for at, command in enumerate(EXPLAINED):
        found = {
            f"packing: {it['change'].rpartition(' ')[2]}"
            if it["name"] == "packing"
            else it["name"]: it
            for it in answered(command, "first-fit")["remedies"]
            if it["name"] != "schedule"
        }
        assert found.keys() == saved.keys()
        for name, cells in saved.items():
            shares = [100 * found[name][each] for each in ("gain", "low", "high")]
            assert shares == pytest.approx(cells[at], abs=PER_CENT), name
