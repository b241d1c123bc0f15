"""Searches as files: what is saved is the same search, whatever becomes of defaults."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from bfpp.commands import search
from bfpp.options.search import problem_of
from bfpp.options.search_file import search_text
from bfpp.sim.experiment import values
from bfpp.sim.experiment.values.option import UNEVEN
from bfpp.sim.search.problem import DIMENSIONS
from bfpp.terminal.parser import Parser

NAMED = Path(__file__).parents[2] / "examples" / "searches"

SEARCHES = {
    "paper": "--model bert-6.6b --cluster dgx1-v100 --gpus 4 --batch 8 --fix layers=4",
    "current": """
        --model llama3-8b --cluster dgx-h100 --gpus 4 8 --batch 8 16 --fix layers=4 --fix tp=1,2
        --schedule 1f1b --schedule depth-first --fix sequence=4 --recompute none full
        --run-length all 2 --max-memory 60GB --objective memory --fix clipping=true
    """,
    "experts": """
        --model mixtral-8x22b --cluster dgx-b200 --gpus 8 --batch 8 --fix layers=4 --ep 1 2
        --cut even --precision bf16 fp8-current --implementation bfpp --seq-length 512
    """,
}


def parsed(words: str):  # type: ignore[no-untyped-def]
    parser = Parser()
    search.add_arguments(parser)
    return parser.parse(words.split())


@pytest.mark.parametrize("name", SEARCHES)
def test_a_saved_search_is_the_same_search(name, tmp_path, monkeypatch, bfpp):
    monkeypatch.chdir(tmp_path)
    found = bfpp(f"search {SEARCHES[name]} --workers 1 --top 3 --save saved.toml --json")
    again = bfpp("search saved.toml --workers 1 --json")
    ours, theirs = (json.loads(out) for _, out, _ in (found, again))
    said = ("precision", "recompute", "tp_overlap")  # what was the software's is said now
    assert [
        {name: value for name, value in each.items() if name not in said}
        for each in theirs["configurations"]
    ] == [
        {name: value for name, value in each.items() if name not in said}
        for each in ours["configurations"]
    ]
    assert theirs["tried"] == ours["tried"]
    text = Path("saved.toml").read_text()
    assert bfpp("search saved.toml --workers 1 --save again.toml")[0] == 0
    assert Path("again.toml").read_text() == text


def test_every_value_is_said(tmp_path, monkeypatch, bfpp):
    """But for those that are searched, and those that nothing is known of."""
    monkeypatch.chdir(tmp_path)
    assert bfpp(f"search {SEARCHES['paper']} --workers 1 --save saved.toml")[0] == 0
    saved = tomllib.loads(Path("saved.toml").read_text())
    unsaid = {name for name in values.OPTIONS if name not in saved and name not in saved["fixed"]}
    searched = {*DIMENSIONS, "schedule", "balance"}
    nothing = {name for name, value in values.DEFAULTS.items() if value is None}
    differing = {*values.of_group(UNEVEN)}
    assert unsaid - searched - nothing - differing == {"prediction"}  # of the model, which says it


def test_options_change_a_saved_search(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(
        "layers = 4\nhidden = 1024\nheads = 16\nsequence = 512\nvocabulary = 1000\n"
    )
    folder = tmp_path / "searches"
    folder.mkdir()
    (folder / "own.toml").write_text((tmp_path / "small.toml").read_text())
    (folder / "file.toml").write_text(
        'format = "bfpp search 1"\nmodel = "own.toml"\ncluster = "dgx1-v100"\ngpus = [4]\n'
        "batch = 8\n[fixed]\ntp = [1, 2]\nclipping = true\n"
    )
    problem = problem_of(parsed("searches/file.toml"))
    assert (problem.gpus, problem.batches, problem.model.layers) == ((4,), (8,), 4)
    assert (problem.only, problem.fixed) == ((("tp", (1, 2)),), (("clipping", True),))
    changed = problem_of(parsed("searches/file.toml --gpus 8 --fix=tp=4 --model small.toml"))
    assert (changed.gpus, changed.batches) == ((8,), (8,))
    assert (changed.only, changed.fixed) == ((("tp", (4,)),), (("clipping", True),))
    several = problem_of(parsed("searches/file.toml --fix tp=4 --fix clipping=false"))
    assert (several.only, several.fixed) == ((("tp", (4,)),), (("clipping", False),))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gpux = [2]", "there is no option --gpux; did you mean '--gpus'?"),
        ('gpus = ["x"]', "gpus: must be a whole number"),
        ('cut = ["odd"]', "cut: 'odd' is none of"),
        ("gpus = [2]\nmodel = [1, 2]", "model: takes one value, not 2"),
        ("gpus = [2]\nfixed = 3", "fixed must be a table"),
        ('gpus = [2]\nfix = ["tp=2"]', "fix: the table [fixed] says it"),
        ("gpus = [2]\ntrust = true", "trust: takes no value"),
        (
            'format = "bfpp experiment 1"\nschedule = "1f1b"',
            "says no model, which a search divides",
        ),
        (
            'format = "bfpp machine profile 1"',
            "is a profile of a machine, from bfpp calibrate, not a search",
        ),
        ("gpus = [", "is not TOML"),
        ("gpus = []", "gpus: takes at least one value"),
        ('gpus = [2]\nout = "else.csv"', "out: only the command line"),
    ],
)
def test_a_malformed_file_is_one_line(text, reason, tmp_path, monkeypatch, bfpp):
    monkeypatch.chdir(tmp_path)
    Path("file.toml").write_text(text)
    code, out, err = bfpp("search file.toml")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("bfpp search: FILE: ")
    assert "file.toml" in err
    assert reason in err


def test_what_the_command_line_fixes_counts_by_any_of_its_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file.toml").write_text(
        'model = "bert-6.6b"\ncluster = "dgx1-v100"\ngpus = 4\nbatch = 8\n'
        "[fixed]\nloops = 2\nlayers = 4\n"
    )
    sizes = "layers=8,hidden=1024,heads=16,sequence=512,vocabulary=1000"
    changed = problem_of(parsed(f"file.toml --fix vpp=4 --model {sizes}"))
    assert changed.only == (("loops", (4,)),)
    assert changed.model.layers == 4


def test_what_is_no_file_of_a_search_is_not_overlooked(bfpp):
    code, out, err = bfpp(f"search {SEARCHES['paper']} saved")
    assert (code, out) == (2, "")
    assert "must be a file named .toml, or a launch file, not 'saved'" in err


def test_any_letters_are_saved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("🐟.toml").write_text(
        "layers = 4\nhidden = 1024\nheads = 16\nsequence = 512\nvocabulary = 1000\n"
    )
    options = parsed("--model 🐟.toml --cluster dgx1-v100 --gpus 4 --batch 8")
    assert tomllib.loads(search_text(options, problem_of(options)))["model"] == "🐟.toml"


def test_a_limit_of_memory_is_saved_to_the_digit():
    options = parsed(f"{SEARCHES['paper']} --max-memory 20.1234567GB")
    said = tomllib.loads(search_text(options, problem_of(options)))
    assert said["max_memory"] == "20.1234567GiB"


def test_other_commands_say_what_takes_it(tmp_path, monkeypatch, bfpp):
    monkeypatch.chdir(tmp_path)
    assert bfpp(f"search {SEARCHES['paper']} --workers 1 --save saved.toml")[0] == 0
    code, _, err = bfpp("simulate saved.toml")
    assert (code, "is a search, not an experiment" in err) == (2, True)
    code, out, _ = bfpp("tradeoff saved.toml --critical-batch 1000 --workers 1")
    assert (code, "days" in out) == (0, True)


@pytest.mark.parametrize("path", sorted(NAMED.glob("*.toml")), ids=lambda path: path.stem)
def test_named_searches_say_every_value(path):
    """Written again, each is the same but for the values that have come since."""
    options = parsed(str(path))
    again = tomllib.loads(search_text(options, problem_of(options)))
    said = tomllib.loads(path.read_text())
    assert said["fixed"] == {name: again["fixed"][name] for name in said["fixed"]}
    assert said == {name: again[name] for name in said if name != "fixed"} | {
        "fixed": said["fixed"]
    }
    assert again.keys() == said.keys()


def test_code_that_a_file_names_runs_only_where_it_is_trusted(tmp_path, monkeypatch, bfpp):
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text("raise SystemExit('ran')\n")
    Path("file.toml").write_text(
        'format = "bfpp search 1"\nmodel = "bert-6.6b"\ncluster = "dgx1-v100"\ngpus = [4]\n'
        'batch = 8\nschedule = ["evil.py:X"]\n'
    )
    code, out, err = bfpp("search file.toml --workers 1")
    assert (code, out) == (2, "")
    assert "names Python code to be run, evil.py:X: --trust runs it" in err
    code, _, err = bfpp("search file.toml --workers 1 --trust")
    assert (code, "ran" in err) == (2, True)
