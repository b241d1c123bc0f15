"""Malformed input of all kinds: one line and exit code 2, or a result; never a fault or a hang.

The same some 300 cases every time; HYPOTHESIS_PROFILE=fresh draws others.
"""

from __future__ import annotations

import io
import json
import os
import time
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from importlib import import_module
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bfpp.command_line import main
from bfpp.sim.costs.measured.profile_file import as_toml
from bfpp.sim.search.workers import EXECUTORS
from bfpp.terminal.command_table import COMMANDS, module_of
from bfpp.terminal.parser import Parser
from tests.commands.test_misread import CONSTANTS
from tests.helpers.damage import ODD_WORDS, changed_json, damaged
from tests.helpers.simumax_files import system
from tests.sim.costs.measured.test_profile import PROFILE
from tests.sim.costs.test_physical import MEASUREMENTS
from tests.sim.models.test_hugging_face import GPT2, LLAMA
from tests.terminal.test_outputs import FEW_STEPS

SECONDS = 5
"""Of processor time that no refusal takes, and a fourth of what no result takes."""

EACH = 9
"""Cases of a kind."""

MODEL = "layers = 4\nhidden = 1024\nheads = 16\nsequence = 512\nvocabulary = 1000\nmlp = 4096\n"
STEP = "--pp 2 --microbatches 2"
ON = "--cluster dgx1-v100 --pp 2 --microbatches 2"
SMALL_SEARCH = "--model model.toml --cluster dgx1-v100 --gpus 1 --batch 1 --schedule 1f1b"
ROWS = MEASUREMENTS.read_text().splitlines(keepends=True)

READERS = {
    "model.toml": [f"simulate gpipe --model model.toml {ON}", "models model.toml --json"],
    "cluster.toml": [
        f"simulate breadth-first --model bert-6.6b --cluster cluster.toml {STEP} --json",
        "clusters cluster.toml",
    ],
    "machine.toml": [f"simulate gpipe --profile machine.toml {STEP}"],
    "constants.toml": ["validate table.csv --constants constants.toml"],
    "config.json": [f"compare gpipe 1f1b --model config.json {ON}", "models config.json"],
    "gpt2.json": [f"explain gpipe --model gpt2.json {ON} --json", "models gpt2.json --json"],
    "table.csv": ["validate table.csv --json", "fit table.csv --no-cross-validation"],
    "timeline.json": [
        "show timeline.json --json",
        "show timeline.json --svg out.svg --html out.html --perfetto out.json --text",
        "diff timeline.json other.json.gz --svg out.svg",
        "explain timeline.json --set forward=x2",
    ],
    "other.json.gz": ["show other.json.gz", "diff timeline.json other.json.gz --json"],
    "graph.json": ["check graph.json", "check graph.json --json --format graph"],
    "orders.csv": [
        "check orders.csv",
        "check orders.csv --format torch --json",
        "simulate orders.csv --json --svg out.svg",
        f"compare orders.csv 1f1b {STEP}",
    ],
    "journal": [f"search {SMALL_SEARCH} --journal journal"],
    "system.json": ["measure --simumax system.json --out measured.toml --json"],
}
"""Each kind of file that is read, and commands that read it."""

JSON_FILES = [name for name in READERS if ".json" in name]


class Here:
    """Simulates in this process, at once, and is its own future."""

    def submit(self, function, /, *arguments):
        return Done(function(*arguments))


class Done:
    def __init__(self, value):
        self.value = value

    def done(self):
        return True

    def result(self):
        return self.value


@pytest.fixture(scope="module", autouse=True)
def no_processes():
    """Searches simulate in this process: hundreds of them are not to start another each."""
    with pytest.MonkeyPatch.context() as patched:
        for name in EXECUTORS:
            patched.setitem(EXECUTORS, name, lambda _: nullcontext(Here()))
        yield


@pytest.fixture(scope="module")
def files(no_processes, tmp_path_factory):  # noqa: ARG001
    """The start of every case: a whole file of each kind."""
    folder = tmp_path_factory.mktemp("whole")
    before = Path.cwd()
    os.chdir(folder)
    try:
        Path("model.toml").write_text(MODEL)
        Path("machine.toml").write_text(as_toml(PROFILE))
        Path("constants.toml").write_text(CONSTANTS)
        Path("config.json").write_text(json.dumps(LLAMA, indent=1))
        Path("gpt2.json").write_text(json.dumps(GPT2, indent=1))
        alone = [row for row in ROWS if ",bert-6.6b,dgx1-v100,paper,no-pipeline" in row]
        Path("table.csv").write_text("".join([ROWS[0], *alone]))
        Path("cluster.toml").write_text(run("clusters", "dgx1-v100").out)
        Path("system.json").write_text(json.dumps(system()))
        Path("orders.csv").write_text(run("orders", "1f1b", *STEP.split()).out)
        step = ["simulate", "gpipe", *STEP.split(), "--transfer", "0.5"]
        assert not run(*step, "--timeline", "timeline.json", "--graph", "graph.json").code
        assert not run(*step, "--engine", "simpy", "--timeline", "other.json.gz").code
        assert not run(*READERS["journal"][0].split()).code
        return {name: Path(name).read_bytes() for name in READERS}
    finally:
        os.chdir(before)


class Ended:
    """The end of a command."""

    def __init__(self, words, code, out, err, seconds):
        self.words, self.code, self.out, self.err, self.seconds = words, code, out, err, seconds

    def __repr__(self):
        return f"{self.words} ended with {self.code} after {self.seconds:.1f} s:\n{self.err}"


def run(*words):
    out, err, begun = io.StringIO(), io.StringIO(), time.process_time()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main([*words])
        except SystemExit as exited:
            code = exited.code
    return Ended(words, code, out.getvalue(), err.getvalue(), time.process_time() - begun)


def require_a_clear_end(*words):
    """Run: a result, or one line and nothing else that is left of it."""
    before = listed()
    ended = run(*words)
    assert ended.code in (0, 1, 2), ended
    assert "Traceback" not in ended.err, ended
    if ended.code == 2 and ended.out == "":
        assert ended.err.startswith("bfpp"), ended
        assert ended.err.count("\n") == 1, ended
        assert ended.err.removesuffix("\n").isprintable(), ended
        assert listed() == before, ended
    assert ended.seconds < (SECONDS if ended.code == 2 else 4 * SECONDS), ended
    return ended


def listed():
    return {path: path.stat().st_size for path in Path().rglob("*")}


@pytest.fixture
def begin(tmp_path, monkeypatch, files):
    """Begins a case, with whole files in a folder, and a folder around it, of its own.

    What one case wrote would decide how another ends.
    """
    monkeypatch.setattr("bfpp.sim.measurements.fit.TOLERANCE", 0.5)
    monkeypatch.setattr("bfpp.reports.explorer.static.LISTED", FEW_STEPS)
    numbers = count()

    def anew():
        folder = tmp_path / str(next(numbers)) / "here"
        folder.mkdir(parents=True)
        monkeypatch.chdir(folder)
        for name, contents in files.items():
            Path(name).write_bytes(contents)

    return anew


CASES = settings(
    max_examples=EACH * settings.default.max_examples // 100,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.parametrize("name", READERS)
def test_whole_files_are_fine(begin, name):
    begin()
    for line in READERS[name]:
        assert run(*line.split()).code == 0


@pytest.mark.parametrize("name", READERS)
@CASES
@given(data=st.data())
def test_a_damaged_file(begin, files, name, data):
    begin()
    Path(name).write_bytes(data.draw(damaged(files[name])))
    require_a_clear_end(*data.draw(st.sampled_from(READERS[name])).split())


@pytest.mark.parametrize("name", JSON_FILES)
@CASES
@given(data=st.data())
def test_json_that_says_something_else(begin, files, name, data):
    begin()
    Path(name).write_bytes(data.draw(changed_json(files[name])))
    require_a_clear_end(*data.draw(st.sampled_from(READERS[name])).split())


SIMULATED = [command for command in COMMANDS if command not in ("run", "calibrate", "study")]
BASE = {
    "import": "step.json --out imported.json",
    "simulate": f"gpipe {STEP}", "compare": STEP, "explain": f"gpipe {STEP}",
    "experiment": f"gpipe {STEP}",
    "show": "timeline.json", "diff": "timeline.json other.json.gz", "orders": f"gpipe {STEP}",
    "schedule": f"{STEP} --seconds 0.1",
    "search": SMALL_SEARCH, "tradeoff": f"{SMALL_SEARCH} --critical-batch 8",
    "validate": "table.csv", "fit": "table.csv --no-cross-validation",
    "explore": "--out pages",
    "check": "orders.csv", "paper": "figure-3", "models": "", "clusters": "",
    "completion": "bash", "export": "saved --out exported",
    "measure": "--simumax system.json --out measured.toml",
}  # fmt: skip
"""Further arguments of each command: little to do."""


@pytest.fixture(scope="module")
def options():
    """Each command's options."""

    def of(command):
        parser = Parser()
        import_module(module_of(command)).add_arguments(parser)
        return [action for action in parser._actions if action.option_strings]

    return {command: of(command) for command in SIMULATED}


@pytest.mark.parametrize("command", SIMULATED)
@CASES
@given(data=st.data())
def test_odd_words(begin, options, command, data):
    begin()
    Path("folder").mkdir()
    Path("foreign.svg").write_text("mine")
    words = [command, *BASE[command].split()]
    if data.draw(st.integers(0, 4)) == 0 and len(words) > 1:
        at = data.draw(st.integers(1, len(words) - 1))
        least = command == "paper"  # of which nothing means all
        words[at : at + 1] = [data.draw(word())] * data.draw(st.integers(least, 2))
    for action in data.draw(st.lists(st.sampled_from(options[command]), max_size=3)):
        option = data.draw(st.sampled_from(action.option_strings))
        is_flag = action.nargs == 0
        value = data.draw(value_of(action))
        words += (
            [option]
            if is_flag
            else data.draw(st.sampled_from([[option, value], [f"{option}={value}"]]))
        )
    require_a_clear_end(*words)


def word():
    """None is a place outside of the case's folders, where a command might write."""
    return st.sampled_from(ODD_WORDS) | st.text(max_size=6).filter(is_relative)


def is_relative(text):
    return not text.startswith("/")


def value_of(action):
    """Something odd, or one of the choices, or a number that is none too large."""
    usual = [*(action.choices or ()), "1", "2", "3", "4", "0.5", "paper", "bert-6.6b", "dgx1-v100"]
    return st.sampled_from(usual) | word()
