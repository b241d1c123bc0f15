"""A file that cannot be read or written: the line begins with the option that names it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]

SEARCH = "--model gpt-345m --cluster dgx1-v100 --gpus 1 --batch 1 --schedule 1f1b --workers 1"
TRAINING = "run gpipe --pp 1 --microbatches 1 --microbatch-size 1 --backend local --steps 1"

# fmt: off
BLAMED = {
    f"search {SEARCH} --journal other.jsonl": "--journal",
    f"search {SEARCH} --journal latin.jsonl": "--journal",
    f"search {SEARCH} --fix eat": "--fix",
    f"search {SEARCH} --fix loops=eat": "--fix",
    f"tradeoff {SEARCH} --critical-batch 8 --fix loops=eat": "--fix",
    f"search {SEARCH} --constants nowhere.toml": "--constants",
    f"search {SEARCH} --max-memory 1000GB": "--max-memory",
    f"search {SEARCH} --jitter-quantile 2": "--jitter-quantile",
    f"search {SEARCH} --gpus 100000000": "--gpus",
    f"search {SEARCH} --batch 100000000000": "argument --batch",
    f"search {SEARCH} --batch 2000000000": "--batch",
    "fit nowhere.csv": "TABLE.csv", "fit latin.csv": "latin.csv", "fit folder": "TABLE.csv",
    "validate nowhere.csv": "TABLE.csv", "validate latin.csv": "latin.csv",
    "validate table.csv --constants nowhere.toml": "--constants",
    "validate table.csv --profile nowhere.toml": "--profile",
    "measure --simumax nowhere.json --out my.toml": "--simumax",
    "measure --simumax latin.json --out my.toml": "--simumax",
    "show nowhere.json": "FILE", "show latin.json": "FILE",
    "diff nowhere.json step.json": "SIMULATED", "diff step.json nowhere.json": "MEASURED",
    "diff step.json latin.json": "MEASURED",
    "explain nowhere.json": "SCHEDULE",
    "explain latin.json": "SCHEDULE",
    "import nowhere.json --out my.json": "TRACE: nowhere.json",
    "import latin.json --out my.json": "TRACE: latin.json",
    "import folder --out my.json": "TRACE: folder",
    "import nowhere.et --out my.json": "TRACE: nowhere.et",
    "import kineto.0.json --orders nowhere.csv --out my.json": "--orders",
    "check nowhere.csv": "FILE", "check latin.csv": "FILE",
    "export nowhere --out new": "CHECKPOINT", "export folder --out new": "CHECKPOINT",
    "export nowhere --out foreign": "--out",
    "paper figure-3 --out foreign": "--out", "paper figure-3 --out table.csv": "--out",
    "simulate gpipe --kineto foreign": "--kineto",
    "simulate gpipe --svg table.csv/step.svg": "--svg",
    "simulate gpipe --html table.csv/step.html": "--html",
    "simulate gpipe --timeline table.csv/step.json": "--timeline",
    "simulate gpipe --graph table.csv/graph.json": "--graph",
    "simulate gpipe --perfetto table.csv/trace.json": "--perfetto",
    "explore --out table.csv": "--out",
    f"{TRAINING} --text nowhere": "--text",
    f"{TRAINING} --text folder": "--text",
    f"{TRAINING} --evaluate-every 1 --evaluate-text nowhere": "--evaluate-text",
    f"{TRAINING} --checkpoint table.csv": "--checkpoint",
    f"{TRAINING} --model own.py:model --layers 2": "--layers",
    f"{TRAINING} --model own.py:f --evaluate-every 1 --evaluate-text nowhere": "--evaluate-text",
    f"{TRAINING} --model mixtral-8x22b": "--model",
    "schedule --memory-limit 4,eat": "--memory-limit",
    "schedule --memory-limit 4,2GB": "--memory-limit",
    "simulate nowhere.toml": "SCHEDULE",
    "models latin.json": "NAME|FILE", "clusters nowhere.toml": "NAME|FILE",
}
# fmt: on


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bfpp: Run) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("latin.csv", "latin.json", "latin.jsonl"):
        Path(name).write_bytes(b"\xe9t\xe9\n")
    Path("table.csv").write_text("model,cluster,schedule,step_seconds\n")
    Path("other.jsonl").write_text('{"gpus": 3}\n')
    Path("folder").mkdir()
    Path("foreign").mkdir()
    for name in ("kineto.0.json", "figure-3.svg", "model.safetensors", "config.json"):
        Path("foreign", name).write_text("somebody else's")
    assert bfpp("simulate gpipe --pp 2 --timeline step.json --kineto .")[0] == 0


@pytest.mark.parametrize("line", BLAMED)
def test_the_option_is_named(line: str, bfpp: Run) -> None:
    code, _, error = bfpp(line)
    assert (code, error.count("\n")) == (2, 1)
    assert error.startswith(f"bfpp {line.split()[0]}: {BLAMED[line]}: ")


def test_a_journal_of_another_search(bfpp: Run) -> None:
    assert bfpp(f"search {SEARCH} --journal found")[0] == 0
    code, _, error = bfpp(f"search {SEARCH} --cluster dgx-a100 --journal found")
    assert code == 2
    assert error.startswith("bfpp search: --journal: ")
