"""Reports of errors: our own refusals in one line and soon, faults of ours as faults."""

from __future__ import annotations

import gc
import os
import pickle
import re
import subprocess
import sys
import time
from importlib import import_module
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from bfpp.__main__ import THREADS, TRAINS, main
from bfpp.command_line import FAULT
from bfpp.schedules import Deadlock, InvalidConfiguration, InvalidInput
from bfpp.schedules.formats.graph_json import MalformedGraph
from bfpp.terminal.command_table import COMMANDS, module_of
from bfpp.terminal.interrupts import INTERRUPTED
from bfpp.traces.formats.timeline_json import MalformedTimeline


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(THREADS, "1")  # a command in this process would set it for good


@pytest.mark.parametrize(
    "error", [ZeroDivisionError, ValueError, OSError, RuntimeError, OverflowError, KeyError]
)
def test_only_our_own_exception_is_told_as_bad_input(bfpp, monkeypatch, error):
    def broken(*_):
        raise error("broken inside")

    monkeypatch.setattr("bfpp.commands.simulate.print_result", broken)
    code, _, err = bfpp("simulate", "gpipe", "--pp", "3", "--forward", "1")
    assert code == FAULT not in (0, 1, 2, 130)
    assert err.startswith("Traceback (most recent call last):\n")
    assert f"{error.__name__}: " in err
    assert "in broken\n" in err
    *_, request, versions, command = err.splitlines()
    assert "Please report it" in request
    assert re.match(r"bfpp [0-9.]+, Python 3\.[0-9.]+, \S+", versions)
    assert command == "bfpp simulate gpipe --pp 3 --forward 1"


OWN = """
import bfpp

class Mine(bfpp.Schedule):
    name = "own"

    def steps(self, layout, rank):
        BODY
"""


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("yield 1", "SCHEDULE: yields what is not a step: 'int' object is not iterable"),
        ("pass", "SCHEDULE: yields what is not a step: 'NoneType' object is not iterable"),
        ("yield (0, rank)", "SCHEDULE: yields what is not a step: pack expected 4 items"),
        ("yield (0, rank, [][layout.pp], False)", "mine.py, line 8: IndexError: list index out"),
        ("yield 1 + 'a'", "mine.py, line 8: TypeError: unsupported operand"),
        ("raise ValueError('two\\nlines')", "mine.py, line 8: ValueError: two lines"),
    ],
)
def test_what_is_wrong_in_a_schedule_of_ones_own_is_told_in_one_line(bfpp, tmp_path, body, reason):
    (tmp_path / "mine.py").write_text(OWN.replace("BODY", body))
    code, out, err = bfpp("simulate mine.py:Mine --pp 2")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"bfpp simulate: {reason}".replace("mine.py", str(tmp_path / "mine.py")))


def test_an_interruption_while_it_is_imported_prints_no_traceback(capsys, monkeypatch):
    class Interrupted(ModuleType):
        def __getattr__(self, name):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "bfpp.command_line", Interrupted("command_line"))
    assert main() == INTERRUPTED
    assert capsys.readouterr() == ("", "bfpp: interrupted\n")


def test_an_interruption_in_imports_of_numpy_prints_no_traceback():
    script = (
        "import sys\n"
        "class Interrupts:\n"
        "    def find_spec(name, *_):\n"
        "        if name == 'datetime':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupts)\n"
        "from bfpp.__main__ import main\n"
        "assert 'datetime' not in sys.modules\n"
        "sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (INTERRUPTED, b"bfpp: interrupted\n")


def test_the_collector_is_back_once_a_command_is_imported(bfpp, monkeypatch):
    def run(_):
        collects.append(gc.isenabled())
        return 0

    collects = []
    monkeypatch.setattr("bfpp.commands.models.run", run)
    gc.disable()
    try:
        bfpp("models")
    finally:
        gc.enable()
    assert collects == [True]


def test_commands_that_need_torch_are_known_before_they_are_imported():
    names = {name: vars(import_module(module_of(name))).values() for name in COMMANDS}
    needing = {
        command
        for command, found in names.items()
        if any(getattr(each, "__module__", None) == "bfpp.api.running.jobs" for each in found)
    }
    assert needing == TRAINS


@pytest.mark.parametrize(
    ("command", "given", "kept"),
    [("simulate", None, "1"), ("simulate", "4", "4"), ("run", None, None), ("run", "4", "4")],
)
def test_torch_keeps_the_threads_of_a_blas_that_it_shares(command, given, kept, monkeypatch):
    if given is None:
        monkeypatch.delenv(THREADS)
    else:
        monkeypatch.setenv(THREADS, given)
    monkeypatch.setattr(sys, "argv", ["bfpp", command])
    monkeypatch.setitem(sys.modules, "bfpp.command_line", SimpleNamespace(main=lambda: 0))
    assert main() == 0
    assert os.environ.get(THREADS) == kept


def test_our_own_exceptions_are_value_errors_and_come_from_other_processes_whole():
    found = [
        InvalidInput("plain"),
        InvalidConfiguration("loops", "too many"),
        MalformedGraph("has no tasks"),
        MalformedTimeline("has no times"),
        Deadlock("all wait"),
    ]
    for error in found:
        assert isinstance(error, ValueError)
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))
        assert getattr(again, "field", None) == getattr(error, "field", None)


def test_a_step_that_memory_cannot_hold_is_told_as_one(bfpp, monkeypatch):
    def full(*_):
        raise MemoryError

    monkeypatch.setattr("bfpp.api.predictions.simulate_graph", full)
    code, out, err = bfpp("simulate gpipe")
    assert (code, out) == (2, "")
    assert err == "bfpp simulate: the step is too large for this machine's memory\n"


def take_all_memory(*_):
    np.empty(2**57)


def take_all_of_torchs(*_):
    torch.empty(2**60)


@pytest.mark.usefixtures("forked_processes")
@pytest.mark.parametrize(
    ("line", "function", "take"),
    [
        ("simulate gpipe", "bfpp.commands.simulate.print_result", take_all_memory),
        ("orders gpipe", "bfpp.commands.orders.in_units", take_all_memory),
        ("run gpipe --backend local --steps 1",
         "bfpp.executor.train.job.Job.plan", take_all_of_torchs),
        ("run gpipe --pp 1 --backend local --steps 1 --layers 1 --verify",
         "bfpp.executor.run.verification.train_plainly", take_all_of_torchs),
    ],
)  # fmt: skip
def test_too_little_memory_is_told_as_such(bfpp, monkeypatch, line, function, take):
    monkeypatch.setattr(function, take)
    code, _, err = bfpp(line)
    told = err.splitlines()[-1]
    assert code == 2
    assert "Traceback" not in err
    assert re.fullmatch(r"bfpp \w+: out of memory: tried to allocate [\d.]+ EiB", told)


def leave(*_):
    os._exit(1)


SEARCH = "search --model bert-6.6b --cluster dgx1-v100 --gpus 8 --batch 8 --schedule gpipe"


@pytest.mark.parametrize(
    ("work", "told"),
    [
        (take_all_memory, "bfpp search: out of memory: tried to allocate 1 EiB"),
        (leave, "bfpp search: --workers: a worker was killed from outside"),
    ],
)
def test_a_worker_without_memory_is_told_in_one_line(bfpp, monkeypatch, work, told):
    """One that the system ends, too."""
    monkeypatch.setattr("bfpp.api.workers.WORTH", 0)
    monkeypatch.setattr("bfpp.api.searching.evaluate_best", work)
    monkeypatch.setattr("bfpp.api.searching.parts", lambda chosen, _: [chosen])
    code, out, err = bfpp(f"{SEARCH} --workers 1")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(told)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--set=eat=2", "--set"),
        ("--set=forward", "--set"),
        ("--against=--pp 0", "--pp"),
        ("--against=eat", "SCHEDULE"),
    ],
)
def test_what_is_to_be_explained_is_checked_before_anything_is_simulated(
    bfpp, monkeypatch, option, told
):
    monkeypatch.setattr("bfpp.commands.explain.predict", None)
    code, out, err = bfpp("explain", "gpipe", option)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert told in err


MEANT = {
    "--verison": "bfpp: unrecognized arguments: --verison; did you mean '--version'?",
    "--hepl simulate gpipe": "bfpp: unrecognized arguments: --hepl; did you mean '--help'?",
    "calibrate --loops 2": "bfpp calibrate: unrecognized arguments: --loops 2\n",
    "simulat gpipe": "invalid choice: 'simulat' .*; did you mean 'simulate'?",
    "simulate gpip": "'gpip' is not a schedule; .*; did you mean 'gpipe'?",
    "simulate --microbatchs 4": "arguments: --microbatchs 4; did you mean '--microbatches'?",
    "search --modl x": "unrecognized arguments: --modl x; did you mean '--model'?",
    "simulate gpipe --engine compield": "invalid choice: 'compield' .*; did you mean 'compiled'?",
    "simulate gpipe --model bert52b --cluster dgx-a100": "; did you mean 'bert-52b'?",
    "simulate gpipe --model bert-52b --cluster dgx-a10": "; did you mean 'dgx-a100'?",
    "explain gpipe --against=gpip": "; did you mean 'gpipe'?",
    "explain gpipe --against gpipe\t--lops\t8": "arguments: --lops 8; did you mean '--loops'?",
    "explain gpipe --set transfr=2": "'transfr' is not a parameter; .*; did you mean 'transfer'?",
    "paper figure4": "; did you mean 'figure-4'?",
    "models bert-25b": "; did you mean 'bert-52b'?",
    "clusters dgx-h10": "; did you mean 'dgx-h100'?",
    "check --formt torch x": "arguments: --formt torch x; did you mean '--format'?",
}


@pytest.mark.parametrize(("line", "reason"), MEANT.items())
def test_what_is_misspelt_is_named_and_what_was_meant(bfpp, line, reason):
    words = [word.replace("\t", " ") for word in line.split(" ")]
    code, out, err = bfpp(*words) if len(words) > 1 else bfpp(line)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert re.search(reason.replace("?", r"\?"), err), err


def test_every_command_names_a_misspelt_option_before_what_is_missing(bfpp):
    for command in COMMANDS:
        code, _, err = bfpp(f"{command} --hlep")
        assert code == 2
        expected = f"bfpp {command}: unrecognized arguments: --hlep; did you mean '--help'?\n"
        assert err == expected


HUGE = [
    "simulate gpipe --pp 1000000",
    "simulate breadth-first --pp 1000000 --microbatches 1",
    "simulate gpipe --pp 1000 --microbatches 2000000000",
    "compare --pp 1000000",
    "compare --loops 1000000",
    "orders gpipe --pp 1000000",
    "orders breadth-first --loops 1000000 --pp 1000 --json",
    "explain gpipe --pp 1000000",
    "explain gpipe --against=--pp=1000000",
    "simulate gpipe --model bert-6.6b --cluster dgx1-v100 --dp 2000000000",
    "simulate gpipe --model bert-6.6b --cluster dgx1-v100 --pp 4 --microbatches 2000000000",
    "explain gpipe --model bert-6.6b --cluster dgx1-v100 --dp 2000000000",
    "search --model bert-6.6b --cluster dgx1-v100 --gpus 2147483647 --batch 2147483647",
    "search --model bert-6.6b --cluster dgx1-v100 --gpus 1073741824 --batch 8",
    "search --model bert-6.6b --cluster dgx1-v100 --gpus 8 --batch 2147483640",
    "tradeoff --model bert-6.6b --cluster dgx1-v100 --gpus 8 --batch 2147483640 --critical-batch 8",
]


@pytest.mark.parametrize("line", HUGE)
def test_what_is_too_large_is_refused_at_once(bfpp, line):
    begun = time.process_time()
    code, out, err = bfpp(line)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert "at most " in err
    assert time.process_time() - begun < 1
