"""Files that commands write: checked before any work, whole or not there, never another's."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest

from bfpp.reports.exports import FOLDERS
from bfpp.terminal import outputs
from bfpp.terminal.command_table import COMMANDS, module_of
from bfpp.terminal.parser import Parser
from bfpp.traces.formats.operations_json import save_operations
from tests.helpers import ROOT
from tests.helpers.simumax_files import system
from tests.helpers.straggler_jobs import Job
from tests.helpers.studies import written
from tests.sim.costs.test_physical import MEASUREMENTS
from tests.traces.stragglers.jobs import table_of

SMALL = "layers = 4\nhidden = 1024\nheads = 16\nsequence = 512\nvocabulary = 1000\n"
SEARCH = "--model small.toml --cluster dgx1-v100 --gpus 2 --batch 2 --workers 1 --schedule 1f1b"
STEP = "--pp 2 --microbatches 2"
MODEL = "--model small.toml --cluster dgx1-v100"

WRITING = {
    ("measure", "--out"): "measure --simumax system.json --out PLACE.toml",
    ("experiment", "--out"): f"experiment gpipe {STEP} --out PLACE.toml",
    ("search", "--html"): f"search {SEARCH} --html PLACE.html",
    ("explore", "--out"): "explore --out PLACE",
    ("simulate", "--html"): f"simulate gpipe {STEP} --html PLACE.html",
    ("simulate", "--svg"): f"simulate gpipe {STEP} --svg PLACE.svg",
    ("simulate", "--perfetto"): f"simulate gpipe {STEP} --perfetto PLACE.json.gz",
    ("simulate", "--timeline"): f"simulate gpipe {STEP} --timeline PLACE.json.gz",
    ("simulate", "--graph"): f"simulate gpipe {STEP} --graph PLACE.json",
    ("simulate", "--kineto"): f"simulate gpipe {STEP} --kineto PLACE",
    ("simulate", "--chakra"): f"simulate gpipe {STEP} --chakra PLACE",
    ("simulate", "--memory-svg"): f"simulate gpipe {STEP} {MODEL} --memory-svg PLACE.svg",
    ("compare", "--html"): f"compare {STEP} --html PLACE.html",
    ("compare", "--svg"): f"compare {STEP} --svg PLACE.svg",
    ("show", "--html"): "show step.json --html PLACE.html",
    ("show", "--svg"): "show step.json --svg PLACE.svg",
    ("show", "--perfetto"): "show step.json --perfetto PLACE.json",
    ("show", "--timeline"): "show step.json --timeline PLACE.json",
    ("show", "--graph"): "show step.json --graph PLACE.json",
    ("show", "--kineto"): "show step.json --kineto PLACE",
    ("show", "--chakra"): "show step.json --chakra PLACE",
    ("import", "--out"): "import trace.json --out PLACE.json",
    ("explain", "--html"): "explain job.json --html PLACE.html",
    ("diff", "--html"): "diff step.json step.json --html PLACE.html",
    ("diff", "--svg"): "diff step.json step.json --svg PLACE.svg",
    ("schedule", "--out"): f"schedule {STEP} --seconds 0.1 --out PLACE.csv",
    ("orders", "--out"): f"orders gpipe {STEP} --out PLACE.csv",
    ("search", "--journal"): f"search {SEARCH} --journal PLACE",
    ("search", "--best"): f"search {SEARCH} --best PLACE.toml",
    ("search", "--save"): f"search {SEARCH} --save PLACE.toml",
    ("search", "--out"): f"search {SEARCH} --out PLACE.csv",
    ("tradeoff", "--svg"): f"tradeoff {SEARCH} --critical-batch 64 --svg PLACE.svg",
    ("validate", "--svg"): "validate measured.csv --svg PLACE.svg",
    ("fit", "--out"): "fit measured.csv --no-cross-validation --out PLACE.toml",
    ("paper", "--out"): "paper table-models --out PLACE",
    ("study", "--job"): "study slurm.toml --out kept --job PLACE.sbatch",
    ("study", "--out"): "study grid.toml --report --out PLACE",
}
"""A command line for each output that needs no torch; PLACE is the file without its ending."""

WITH_TORCH = {("run", "--metrics"), ("run", "--trace"), ("calibrate", "--out"), ("export", "--out")}

FEW_STEPS = {
    "schedule": ("1f1b",), "pp": ("2",), "loops": ("2",), "microbatches": ("8",),
    "sharding": ("none",),
}  # fmt: skip

READ = {
    "--model", "--cluster", "--constants", "--profile", "--config", "--text", "--evaluate-text",
    "--mock-compute", "--orders", "--simumax", "--like", "--lengths", "--images", "--routing",
    "--factors",
}  # fmt: skip
"""Options of files that are read."""

KEPT = {"--checkpoint", "--weights"}
"""Options of folders that are a state of their own, or are read."""


@pytest.fixture(scope="module")
def step(tmp_path_factory, printed):
    """A saved timeline, a trace and a job, by name."""
    folder = tmp_path_factory.mktemp("step")
    timeline, trace = folder / "step.json", folder / "trace.json"
    printed(*f"simulate gpipe {STEP} --timeline".split(), timeline, "--perfetto", trace)
    save_operations(table_of(Job(pp=2, microbatches=2).rows()), job := folder / "job.json")
    return {path.name: path.read_bytes() for path in (timeline, trace, job)}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, step):
    """Every test runs in a folder of its own, with what commands read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "bfpp.sim.measurements.fit.TOLERANCE", 0.5
    )  # as good as its first guess, and soon
    monkeypatch.setattr("bfpp.reports.explorer.static.LISTED", FEW_STEPS)
    Path("small.toml").write_text(SMALL)
    written(Path("grid.toml"))
    written(Path("slurm.toml"), hosts={"where": "slurm", "count": 2})
    Path("system.json").write_text(json.dumps(system()))
    lines = MEASUREMENTS.read_text().splitlines(keepends=True)
    small = [line for line in lines if ",bert-6.6b,dgx1-v100,paper,no-pipeline" in line]
    Path("measured.csv").write_text("".join([lines[0], *small]))
    for name, content in step.items():
        Path(name).write_bytes(content)
    return tmp_path


def listed():
    return sorted(path for path in Path().rglob("*") if path.is_file())


def options_of(command):
    parser = Parser()
    import_module(module_of(command)).add_arguments(parser)
    return parser._actions


def is_output(action):
    if isinstance(action.default, outputs.Output):
        return True
    return isinstance(action.type, partial) and action.type.func in (
        outputs._file, outputs._folder,
    )  # fmt: skip


def test_every_option_that_names_a_file_is_read_or_written_or_tried_here():
    found = set()
    for command in COMMANDS:
        actions = options_of(command)
        for action in filter(is_output, actions):
            found.add((command, action.option_strings[0]))
            assert any("--force" in each.option_strings for each in actions), command
        for action in actions:
            names_a_file = isinstance(action.metavar, str) and (
                "FILE" in action.metavar or "DIR" in action.metavar
            )
            if action.option_strings and names_a_file and not is_output(action):
                assert action.option_strings[0] in READ | KEPT
    assert found == WRITING.keys() | WITH_TORCH


@pytest.mark.parametrize("line", WRITING.values(), ids=map(" ".join, WRITING))
def test_folders_are_made_and_our_own_files_overwritten(bfpp, line):
    before = listed()
    words = line.replace("PLACE", "out/of/here/made")
    for _ in range(2):
        code, out, err = bfpp(words)
        assert code == 0, err
        assert out
        assert "wrote out/of/here/made" in err or "--journal" in words
    new = set(listed()) - set(before)
    assert new
    assert all(path.is_relative_to("out/of/here") for path in new)


@pytest.fixture
def refused(bfpp, monkeypatch):
    """Runs a command that must be refused, in one line, before it does anything."""

    def work(_):
        raise AssertionError("worked before it looked where results go")

    def run(line, reason):
        words = line.split() if isinstance(line, str) else line
        before = sorted(Path().rglob("*"))
        with monkeypatch.context() as patched:
            for command in COMMANDS:
                if command != "paper":  # it knows the names of its files itself
                    patched.setattr(f"{module_of(command)}.run", work)
            patched.setattr("bfpp.commands.paper._report", work)
            code, out, err = bfpp(*words)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert reason in err
        assert sorted(Path().rglob("*")) == before

    return run


OF_FOLDERS = {
    ("paper", "--out"),
    ("explore", "--out"),
    ("study", "--out"),
    *((it, f"--{to}") for it in ("simulate", "show") for to in FOLDERS),
}
FILES = {key: line for key, line in WRITING.items() if key not in OF_FOLDERS}


@pytest.mark.parametrize(("key", "line"), FILES.items(), ids=map(" ".join, FILES))
def test_a_place_that_cannot_be_written_is_refused_before_any_work(refused, key, line):
    (written,) = [word for word in line.split() if word.startswith("PLACE")]
    ending = written.removeprefix("PLACE")
    folder, foreign, file = (Path(f"{name}{ending}") for name in ("folder", "foreign", "file"))
    folder.mkdir()
    refused(line.replace("PLACE", "folder"), f"{key[1]}: {folder}: Is a directory")
    foreign.write_text("nobody's but mine\n")
    refused(
        line.replace("PLACE", "foreign"),
        f"{key[1]}: {foreign} already exists, and bfpp did not write it as ",
    )
    file.touch()
    refused(line.replace("PLACE", f"{file}/in"), f"{key[1]}: ")
    refused(line.replace("PLACE", "/proc/1/in"), f"{key[1]}: ")
    refused(line.replace("PLACE", "x" * 300), f"{key[1]}: ")
    os.mkfifo(f"pipe{ending}")
    refused(line.replace("PLACE", "pipe"), f"{key[1]}: pipe{ending} is not a regular file")
    if ending:
        refused(line.replace(written, "picture.jpg"), f"argument {key[1]}: must end in ")
        refused([w.replace(written, "") for w in line.split()], f"argument {key[1]}: must end in ")


@pytest.mark.parametrize("line", FILES.values(), ids=map(" ".join, FILES))
def test_with_force_a_foreign_file_is_overwritten(bfpp, line):
    (written,) = [word for word in line.split() if word.startswith("PLACE")]
    foreign = Path(written.replace("PLACE", "foreign"))
    foreign.write_text("nobody's but mine\n")
    assert bfpp(line.replace("PLACE", "foreign") + " --force")[0] == 0
    assert b"nobody" not in foreign.read_bytes()


def test_a_file_of_another_kind_of_ours_is_not_overwritten(refused, bfpp):
    refused("simulate gpipe --graph step.json", "--graph: step.json already exists")
    assert bfpp("simulate gpipe --perfetto trace.json")[0] == 0
    refused("show step.json --timeline trace.json", "--timeline: trace.json already exists")


def test_two_outputs_of_one_file_are_refused(refused):
    Path("link.json").symlink_to("same.json")
    Path("deep").mkdir()
    for other in ("same.json", "./same.json", "deep/../same.json", "link.json"):
        refused(f"simulate gpipe --perfetto same.json --graph {other}", "--perfetto, --graph: both")
    Path("same.json").touch()
    os.link("same.json", "hard.json")
    refused("simulate gpipe --perfetto same.json --graph hard.json", "--perfetto, --graph: both")


def test_an_output_that_is_read_is_refused(refused):
    Path("link.json").symlink_to("step.json")
    os.link("small.toml", "table.toml")
    for name in ("step.json", "./step.json", "link.json"):
        reason = f"--timeline: {Path(name)} is what this command reads"
        refused(f"show step.json --timeline {name}", reason)
    refused("fit small.toml --out table.toml", "--out: table.toml is what this command reads")


def test_names_that_are_also_those_of_outputs_are_not_read(bfpp):
    """A command's own name, a schedule's or a preset's may be that of its folder or file."""
    for _ in range(2):
        assert bfpp("paper table-models --out paper")[0] == 0
        assert bfpp(f"simulate gpipe {STEP} --kineto gpipe")[0] == 0
        assert bfpp(f"search {SEARCH} --journal dgx1-v100")[0] == 0


def test_one_of_several_files_that_are_read_is_no_output(refused):
    reason = "--out: trace.json is what this command reads"
    refused("import trace.json --out trace.json --force", reason)
    Path("mine.py").write_text("")
    refused(f"search {SEARCH} --schedule mine.py:A --journal mine.py --force", "mine.py is what")


def test_a_link_is_written_through(bfpp):
    Path("there").mkdir()
    Path("link.svg").symlink_to("there/figure.svg")
    assert bfpp("simulate gpipe --svg link.svg")[0] == 0
    assert Path("link.svg").is_symlink()
    assert b"<svg" in Path("there/figure.svg").read_bytes()


@pytest.mark.parametrize(
    "line",
    [
        "paper measurements --out folder",
        "explore --out folder",
        "simulate gpipe --pp 1 --microbatches 1 --chakra folder",
    ],
)
def test_a_link_in_a_folder_is_not_written_through(bfpp, line):
    """Nobody has named it: where it leads is another's choice, also to a file of ours."""
    assert bfpp(line)[0] == 0
    written = next(Path("folder").iterdir())
    Path("victim").touch()
    written.unlink()
    written.symlink_to(Path("victim").absolute())
    code, _, told = bfpp(f"{line} --force")
    assert code == 2
    assert f"folder/{written.name} is a link" in told
    assert Path("victim").read_bytes() == b""


def test_items_of_the_paper_are_not_written_over_other_files(refused, bfpp):
    Path("out").mkdir()
    Path("out/notes.md").write_text("mine\n")
    assert bfpp("paper figure-3 --out out")[0] == 0
    Path("out/figure-3.svg").write_text("mine\n")
    refused("paper figure-3 --out out", "--out: out/figure-3.svg already exists")
    assert bfpp("paper figure-3 --out out --force")[0] == 0
    assert Path("out/notes.md").read_text() == "mine\n"


AT_THE_END = {key: line for key, line in FILES.items() if key[1] != "--journal"}


@pytest.mark.parametrize(("key", "line"), AT_THE_END.items(), ids=map(" ".join, AT_THE_END))
def test_results_are_printed_and_nothing_is_half_written_where_the_disk_is_full(
    bfpp, monkeypatch, key, line
):
    (written,) = [word for word in line.split() if word.startswith("PLACE")]
    place = Path(written.replace("PLACE", "made"))
    code, said, _ = bfpp(line.replace("PLACE", "made"))
    assert code == 0
    whole, before = place.read_bytes(), listed()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("bfpp.terminal.outputs.Path.replace", full)
    code, out, err = bfpp(line.replace("PLACE", "made"))
    assert (code, err) == (2, f"bfpp {key[0]}: {key[1]}: {place}: No space left on device\n")
    assert _without_seconds(out) == _without_seconds(said)
    assert (place.read_bytes(), listed()) == (whole, before)


def _without_seconds(text: str) -> str:
    """The time of a search is never the same, nor the line breaks after it."""
    return re.sub(r"simulated in [0-9.]+ s", "simulated", " ".join(text.split()))


def test_a_journal_that_cannot_be_written_loses_no_result(bfpp, monkeypatch):
    opened = Path.open

    def full(path, mode="r", **options):
        if path.name == "journal" and mode == "a":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return opened(path, mode, **options)

    monkeypatch.setattr(Path, "open", full)
    code, out, err = bfpp(f"search {SEARCH} --journal journal --out found.csv")
    assert code == 2
    assert "fit in memory" in " ".join(out.split())
    assert err.splitlines()[0] == "wrote found.csv"
    assert "--journal: " in err.splitlines()[1]
    assert "No space left on device" in err.splitlines()[1]
    assert len(err.splitlines()) == 2


def process(line, **options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "bfpp", *line.split()]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, **options)


def test_a_reader_that_leaves_keeps_no_file_from_being_written():
    with process("simulate gpipe --svg step.svg --text", stdout=subprocess.PIPE) as running:
        running.stdout.close()
        assert running.stderr.read() == b"wrote step.svg\n"
        assert running.wait(60) == 0
    assert Path("step.svg").stat().st_size


def test_standard_output_on_a_full_disk_is_told_and_keeps_no_file_from_being_written():
    with Path("/dev/full").open("w") as full:
        running = process("simulate gpipe --svg step.svg", stdout=full)
        _, err = running.communicate(timeout=60)
    assert running.returncode == 2
    assert err == b"wrote step.svg\nbfpp: standard output: No space left on device\n"


@pytest.mark.parametrize(
    ("line", "code"),
    [("simulate eat", 2), ("simulate gpipe --pp two", 2), ("simulate gpipe --svg step.svg", 0)],
)
@pytest.mark.parametrize("standard_error", ["2>/dev/full", "2>&-"])
def test_a_command_whose_errors_nobody_can_read_ends_as_it_should(line, code, standard_error):
    command = f'"$0" -m bfpp {line} {standard_error}'
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", command, sys.executable], env=environment, stdout=subprocess.PIPE, timeout=60
    )
    assert done.returncode == code
    assert Path("step.svg").exists() is ("step.svg" in line)


def test_an_output_where_standard_output_goes_is_refused():
    with Path("step.html").open("w") as file:
        running = process("simulate gpipe --html step.html", stdout=file)
        _, err = running.communicate(timeout=60)
    assert running.returncode == 2
    assert err == b"bfpp simulate: --html: step.html is also standard output\n"


def test_a_file_that_outgrows_the_disk_is_not_left(tmp_path):
    """The system's own refusal, in the middle of a file."""
    limited = 'ulimit -f 64; exec "$0" -m bfpp simulate gpipe --html big.html'
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [shutil.which("bash"), "-c", limited, sys.executable],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "step time" in done.stdout
    assert done.stderr == "bfpp simulate: --html: big.html: File too large\n"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith((".", "big"))]
