"""The commands as a program and as a person sees them: output, one-line errors, exit codes."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from argparse import SUPPRESS
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bfpp.command_line import main
from bfpp.schedules import (
    Communication,
    Layout,
    Operation,
    Sharding,
    build_graph,
    registered_schedules,
)
from bfpp.schedules.formats.graph_json import write_graph
from bfpp.terminal.command_table import BY_SUBJECT, COMMANDS, all_commands
from bfpp.terminal.help import names_of
from tests.helpers import ROOT
from tests.helpers.mutations import twice

MODEL = "layers = 16\nhidden = 512\nheads = 8\nsequence = 256\nvocabulary = 1000\n"
PHYSICAL = "--model bert-6.6b --cluster dgx1-v100 --pp 4 --tp 2 --loops 2 --microbatches 4"
HOSTILE = "[red]x[/red]<script>\x1b[31m\n"

RANK = {
    "rank", "compute_time", "start", "end", "idle", "utilisation", "exposed_transfer",
    "exposed_data", "exposed_model", "peak_microbatches",
}  # fmt: skip
ABSTRACT = {
    "schedule",
    "step_time",
    "bubble",
    "bubble_fraction",
    "span",
    "period",
    "tasks",
    "engine",
    "ranks",
}
WITH_MODEL = ABSTRACT | {
    "implementation",
    "tflops_per_gpu", "model_tflops_per_gpu", "memory_gb", "memory_min_gb", "memory_largest_gb",
    "memory_parts_gb",
    "device_memory_gb", "missing_gb", "fits_probability", "samples_per_second", "mfu", "hfu",
    "memory_reserved_gb", "tokens_per_second_per_gpu", "step_time_low", "step_time_high",
    "interval_parts",
    "not_modelled", "memory_peak", "memory_over_time", "memory_reserved_low_gb",
    "memory_reserved_high_gb", "layers_of_stages", "megatron_layout", "torchtitan_modules",
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Every test runs in a folder of its own, with a few files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    Path("sixteen.toml").write_text(MODEL)
    Path("endless.toml").symlink_to("/dev/zero")
    Path("endless.json").symlink_to("/dev/zero")
    Path("seven-heads.toml").write_text(MODEL.replace("heads = 8", "heads = 7"))
    Path("broken.toml").write_text("layers = = 3\n")
    Path("hostile.toml").write_text(MODEL + '"[red]x\\u001b[31m\\n" = 1\n')
    Path("slow.toml").write_text(SLOW_CLUSTER)
    Path("abstract.toml").write_text('format = "bfpp experiment 1"\nschedule = "gpipe"\n')
    priced = 'model = "sixteen.toml"\ncluster = "dgx1-v100"\n'
    Path("priced.toml").write_text(Path("abstract.toml").read_text() + priced)
    Path("empty").touch()
    Path("words").write_text("0F0,eat\n")
    Path("brace").write_text("{")
    Path("folder").mkdir()
    return tmp_path


SLOW_CLUSTER = """
gpus_per_node = 8
device = { peak = 1e-300, memory_bandwidth = 1.0, memory = 1.0, matmul_efficiency = 0.5 }
intra_node = { bandwidth = 1e-300, latency = 1e300 }
inter_node = { bandwidth_per_node = 1e-300, latency = 1e300 }
"""


# What programs read


@pytest.mark.parametrize("engine", ["compiled", "simpy"])
def test_simulate_with_seconds(answer, engine):
    record = answer(f"simulate breadth-first --pp 4 --loops 4 --microbatches 8 --engine {engine}")
    assert record.keys() == ABSTRACT
    assert record["schedule"] == "breadth-first"
    assert record["engine"] == engine
    assert record["step_time"] == 8 * 4 * 3 + 3 * 3
    assert record["bubble"] == 3 / (8 * 4)
    first, *_, last = record["ranks"]
    assert first.keys() == RANK
    assert [rank["rank"] for rank in record["ranks"]] == [0, 1, 2, 3]
    assert (first["compute_time"], first["start"], first["end"]) == (96, 0, 105)
    assert (last["start"], last["end"], last["peak_microbatches"]) == (3, 99, 8)


def test_simulate_with_a_model(answer):
    record = answer(f"simulate breadth-first {PHYSICAL}")
    assert record.keys() == WITH_MODEL
    assert 0 < record["model_tflops_per_gpu"] < record["tflops_per_gpu"] < 125
    assert record["mfu"] == pytest.approx(record["model_tflops_per_gpu"] / 125)
    assert record["hfu"] == pytest.approx(record["tflops_per_gpu"] / 125)
    assert record["samples_per_second"] == pytest.approx(4 / record["step_time"])
    assert 0 < record["memory_min_gb"] < record["memory_gb"] <= record["memory_largest_gb"]
    assert record["device_memory_gb"] == 32


def test_the_rate_of_the_model_is_shown_before_that_of_the_hardware(bfpp, answer):
    words = f"simulate breadth-first {PHYSICAL} --recompute full"
    record = answer(words)
    rates = f"{record['model_tflops_per_gpu']:.1f}, {record['tflops_per_gpu']:.1f}"
    _, out, _ = bfpp(words)
    assert rates in next(line for line in out.splitlines() if "TFLOP/s per GPU: model" in line)


def test_a_model_file_says_the_same_as_its_preset(answer):
    preset = ROOT / "bfpp" / "sim" / "presets" / "models" / "bert-6.6b.toml"
    words = f"simulate gpipe {PHYSICAL.replace('--loops 2', '')}"
    assert answer(words.replace("bert-6.6b", str(preset))) == answer(words)


def test_compare(answer):
    words = "--pp 4 --loops 2 --microbatches 8 --transfer 0.25"
    records = answer(f"compare {words}")["schedules"]
    assert [each["schedule"] for each in records] == [
        "gpipe", "1f1b", "depth-first", "breadth-first",
    ]  # fmt: skip
    assert {rank["compute_time"] for each in records for rank in each["ranks"]} == {8 * 2 * 3}
    assert records[3] == answer(f"simulate breadth-first {words}")
    assert answer(f"compare gpipe {words}")["schedules"] == records[:1]


def test_compare_gives_a_schedule_the_values_of_the_file_next_to_it(answer, bfpp):
    words = f"{PHYSICAL} --dp 2"
    Path("mine.toml").write_text(bfpp(f"experiment breadth-first {words}")[1])
    compared = answer("compare gpipe mine.toml --microbatches 8")["schedules"]
    alone = (
        answer(f"simulate gpipe {words.replace('--loops 2', '')} --microbatches 8"),
        answer("simulate mine.toml --microbatches 8"),
    )
    for each, expected in zip(compared, alone, strict=True):
        assert each.items() <= expected.items()


def test_compare_shows_a_dash_for_what_a_schedule_has_not(bfpp):
    Path("offloaded.toml").write_text(Path("priced.toml").read_text() + "offload = 1\n")
    rows = bfpp("compare priced.toml offloaded.toml")[1].splitlines()
    assert [row.split()[-4] for row in rows if row.startswith("pinned host memory")] == ["-"]


def test_a_sequence_is_for_the_schedules_that_use_it(answer, bfpp):
    words = "--loops 2 --microbatches 8 --transfer 0.5"
    compared = answer(f"compare {words} --sequence 8")["schedules"]
    without = answer(f"compare {words}")["schedules"]
    changed = [here != there for here, there in zip(compared, without, strict=True)]
    assert changed == [False, False, True, False]
    assert compared[2] == answer(f"simulate depth-first {words} --sequence 8")
    others = [
        "--against",
        "breadth-first",
        "--against",
        "--transfer 0",
        "--against",
        "--sequence 4",
    ]
    explained = answer("explain", "depth-first", *words.split(), "--sequence", "8", *others)
    times = [case["step_time"] for case in explained["what_if"]]
    assert (times[0], times[2]) == (compared[3]["step_time"], without[2]["step_time"])
    free = words.replace("0.5", "0")
    assert times[1] == answer(f"simulate depth-first {free} --sequence 8")["step_time"]
    Path("depth.toml").write_text(bfpp(f"experiment depth-first {words} --sequence 8")[1])
    assert answer("explain", "depth.toml", *others)["what_if"] == explained["what_if"]
    code, _, err = bfpp("explain", "depth-first", "--against", "gpipe --sequence 4")
    assert (code, err) == (2, "bfpp explain: --sequence: gpipe has no such parameter\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("8b --pp 4", "It has 8 layers and the output layer; with fewer layers there, ranks are"),
        ("8b --pp 4 --balance time", ""),
        ("8b --pp 2 --cut 0,32", "It has 32 layers and the output layer; with fewer layers there"),
        ("8b --pp 1", ""),
        ("70b --pp 8 --tp 8", "; a layer takes about "),
    ],
)
def test_explain_points_out_the_rank_that_the_others_wait_for(bfpp, words, said):
    given = "1f1b --cluster dgx-h100 --implementation current --microbatches 8"
    _, out, _ = bfpp(f"explain {given} --model llama3-{words}")
    lines = [line for line in out.splitlines() if line.startswith("Rank ")]
    assert len(lines) == bool(said)
    assert said in "".join(lines)


def test_explain(answer):
    words = "depth-first --pp 4 --loops 2 --microbatches 8 --transfer 0.5"
    record = answer(
        "explain", *words.split(), "--set", "transfer=x3", "--against", "gpipe --loops 1"
    )
    simulated = answer(f"simulate {words}")
    step_time = record["step_time"]
    assert step_time == simulated["step_time"]
    for rank, metrics in zip(record["ranks"], simulated["ranks"], strict=True):
        assert sum(rank["causes"].values()) == rank["idle"] == metrics["idle"]
    assert sum(record["mean_rank"].values()) == step_time
    path = record["critical_path"]
    assert (path[0]["start"], path[-1]["end"]) == (0, step_time)
    assert [task["end"] for task in path[:-1]] == [task["start"] for task in path[1:]]
    slopes = {each["parameter"]: each["seconds_per_percent"] for each in record["sensitivities"]}
    on_path = sum(t["end"] - t["start"] for t in path if "transfer" in t["operation"])
    assert slopes["transfer"] == pytest.approx(on_path / 100)
    cases = record["what_if"]
    assert [case["case"] for case in cases] == ["transfer=x3", "gpipe --loops 1"]
    for case in cases:
        assert sum(case["by_cause"].values()) == case["difference"]
        assert case["step_time"] - step_time == case["difference"]
    tripled = answer(f"simulate {words.replace('0.5', '1.5')}")
    assert cases[0]["step_time"] == tripled["step_time"]
    gpipe = words.replace("depth-first", "gpipe").replace("--loops 2", "--units-per-stage 2")
    assert cases[1]["step_time"] == answer(f"simulate {gpipe}")["step_time"]


@pytest.mark.parametrize("more", ["", f" {PHYSICAL.removesuffix('--loops 2 --microbatches 4')}"])
def test_schedules_that_are_explained_against_others_divide_one_model(answer, more):
    words = f"breadth-first --loops 4 --microbatches 8{more}"
    compared = answer(f"compare gpipe {words}")["schedules"]
    [case] = answer("explain", *words.split(), "--against", "gpipe")["what_if"]
    assert case["step_time"] == compared[0]["step_time"]


def test_a_backward_pass_can_be_set_where_none_was_given(answer):
    words = "gpipe --transfer 0.5"
    (case,) = answer(f"explain {words} --set backward=3")["what_if"]
    assert case["step_time"] == answer(f"simulate {words} --backward 3")["step_time"]


def test_explain_with_a_model(answer):
    record = answer(f"explain breadth-first {PHYSICAL} --dp 4 --set device.peak=x2")
    for rank in record["ranks"]:
        assert sum(rank["causes"].values()) == pytest.approx(rank["idle"])
    (case,) = record["what_if"]
    assert case["difference"] < 0
    assert sum(case["by_cause"].values()) == pytest.approx(case["difference"])


ORDERS = {
    "gpipe --pp 2 --microbatches 2": ["0F0,0F1,0B0,0B1", "1F0,1F1,1B0,1B1"],
    "1f1b --pp 2 --microbatches 3": ["0F0,0F1,0B0,0F2,0B1,0B2", "1F0,1B0,1F1,1B1,1F2,1B2"],
    "depth-first --pp 1 --loops 2 --microbatches 2": ["0F0,1F0,1B0,0F1,0B0,1F1,1B1,0B1"],
    "breadth-first --pp 2 --loops 2 --microbatches 2": [
        "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1",
        "1F0,1F1,3F0,3F1,3B0,3B1,1B0,1B1",
    ],
}


@pytest.mark.parametrize(("words", "lines"), ORDERS.items())
def test_orders(bfpp, answer, words, lines):
    assert bfpp(f"orders {words}") == (0, "".join(f"{line}\n" for line in lines), "")
    record = answer(f"orders {words}")
    assert record == {
        "schedule": words.split()[0],
        "orders": [line.split(",") for line in lines],
    }


def test_check_orders(bfpp, answer):
    Path("right.csv").write_text(bfpp("orders depth-first --pp 4 --loops 2")[1])
    assert bfpp("check right.csv") == (0, "valid\n", "")
    assert answer("check right.csv") == {"valid": True, "violations": [], "remarks": []}
    Path("wrong.csv").write_text("0B0,0F0\n")
    code, out, err = bfpp("check wrong.csv --json")
    record = json.loads(out)
    assert (code, err, record["valid"]) == (1, "", False)
    assert record["violations"][0].keys() == {"rule", "message", "steps"}
    assert "invalid" in bfpp("check wrong.csv")[1]


@pytest.mark.parametrize("name", registered_schedules())
def test_every_schedule_checks(bfpp, name):
    assert bfpp(f"check {name} --microbatches 8") == (0, "valid\n", "")


def test_check_graphs(bfpp, answer):
    simulated = bfpp("simulate breadth-first --loops 2 --sharding full --graph graph.json --json")
    assert simulated[2] == "wrote graph.json\n"
    assert answer("check graph.json") == {"valid": True, "violations": [], "remarks": []}
    graph = json.loads(Path("graph.json").read_text())
    used = next(at for at, found in enumerate(graph["tasks"]["dependencies"]) if found)
    graph["tasks"]["dependencies"][used] = []
    Path("graph.json").write_text(json.dumps(graph))
    code, out, err = bfpp("check graph.json --format graph --json")
    record = json.loads(out)
    assert (code, err, record["valid"]) == (1, "", False)
    assert used in {task for each in record["violations"] for task in each["tasks"]}


def test_check_tells_what_is_wrong_from_what_is_not_prescribed(bfpp, answer):
    graph = build_graph("breadth-first", Layout(1, 1), Communication(Sharding.PARTIAL, True, False))
    gather = graph.operation.tolist().index(Operation.GATHER)
    Path("graph.json").write_text(write_graph(twice(graph, gather)))
    remark = "gathers: #0 all-gather of stage 0 on rank 0 is of no use"
    assert bfpp("check graph.json") == (0, f"remark: {remark}\nvalid\n", "")
    assert bfpp("check graph.json --strict")[:2] == (1, f"remark: {remark}\ninvalid\n")
    record = answer("check graph.json")
    assert (record["valid"], record["violations"]) == (True, [])
    assert [each["rule"] for each in record["remarks"]] == ["gathers"]


# What people read


def test_the_table_of_a_simulation_fits_a_terminal(bfpp, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = bfpp(f"simulate breadth-first {PHYSICAL}")[1]
    assert max(map(len, out.splitlines())) <= 80
    for words in (
        "step time",
        "peak in-flight micro-batches",
        "reserved memory",
        "of 32 GiB",
    ):
        assert words in out
    assert re.search(r"rank +compute +start +end +busy", out)
    assert "micro-batches\n" in out.split("Ranks")[1]


def test_a_model_that_does_not_fit_is_marked(bfpp):
    words = "--cluster dgx1-v100 --pp 4 --tp 8 --loops 2"
    assert "(!)" not in bfpp(f"compare --model bert-6.6b {words}")[1]
    rows = bfpp(f"compare --model gpt3-175b {words}")[1].splitlines()
    (row,) = [row for row in rows if row.startswith("reserved memory")]
    assert row.count("(!)") == 4


def test_what_does_not_fit_says_by_how_much_and_for_what(bfpp, answer):
    words = "--model gpt3-175b --cluster dgx1-v100 --pp 4 --tp 8"
    record = answer(f"simulate gpipe {words}")
    part, size = max(record["memory_parts_gb"].items(), key=lambda each: each[1])
    needed = record["memory_reserved_gb"]
    assert record["missing_gb"] == needed - 32 > 0
    allocated = sum(record["memory_parts_gb"].values())
    assert allocated == pytest.approx(record["memory_largest_gb"])
    assert allocated < needed
    reserved = f"{needed:.1f} GiB reserved of 32 GiB"
    line = f"gpipe does not fit: {reserved}; largest is {part}, {size:.1f} GiB\n"
    assert part == "training state"
    for command in ("simulate", "explain"):
        assert line in bfpp(f"{command} gpipe {words}")[1]
    assert bfpp(f"compare gpipe 1f1b gpipe {words}")[1].count(line) == 2
    fitting = f"simulate breadth-first {PHYSICAL}"
    assert answer(fitting)["missing_gb"] == 0
    assert "does not fit" not in bfpp(fitting)[1]


def test_compare_marks_the_fastest(bfpp):
    out = bfpp("compare gpipe breadth-first --pp 4 --loops 2 --microbatches 8")[1]
    assert "4 ranks, 8 micro-batches\n" in out
    assert re.search(r"\+15\.8% +fastest", out)


def test_explain_in_words(bfpp):
    words = ["explain", "depth-first", "--transfer", "0.5", "--set", "transfer=x0.5"]
    out = bfpp(*words, "--against", "breadth-first")[1]
    assert "Idle time of each rank by cause, in s\n" in out
    assert "With transfer=x0.5: step time -" in out
    assert "With breadth-first: " in out
    assert "e+" not in out


def test_one_of_something(bfpp):
    assert "gpipe: 1 rank, 1 micro-batch\n" in bfpp("simulate gpipe --pp 1 --microbatches 1")[1]


def test_steps_of_no_length(bfpp, answer):
    words = "gpipe --forward 0 --backward 0"
    assert answer(f"simulate {words}")["step_time"] == 0
    assert bfpp(f"explain {words} --set transfer=1")[0] == 0
    assert bfpp(f"compare {words} --text --svg nothing.svg")[0] == 0


def test_text(bfpp):
    code, out, _ = bfpp("simulate gpipe --pp 2 --microbatches 2 --text")
    assert code == 0
    assert re.search(r"^rank 0 +compute +\| 0 1 +\[0 \]\[1 \]$", out, re.MULTILINE)


@pytest.mark.parametrize("command", [*COMMANDS])
def test_help(bfpp, command):
    code, out, err = bfpp(f"{command} --help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: bfpp {command}")


@pytest.mark.parametrize("command", [each for each in all_commands()[1] if each.opens_with])
def test_help_opens_with_what_most_use_and_names_the_rest_by_subject(bfpp, command):
    name = command.prog.split()[-1]
    opening, every = bfpp(f"{name} --help")[1], bfpp(f"{name} --help all")[1]
    assert {*command.opens_with} <= {word for each in command._actions for word in names_of(each)}
    assert len(opening.splitlines()) < min(100, len(every.splitlines()))
    named = {*re.findall(r"(?<![\w-])--[a-z][\w-]*|-h(?= )", opening)}
    for subject in command.subjects:
        assert f"\n{subject.title}:\n" in every
        on = bfpp(f"{name} --help {subject.title.split()[0]}")[1]
        for action in subject.actions:
            assert not action.option_strings or {*action.option_strings} & named
            words = " ".join((action.help or "").replace("%%", "%").split())
            assert words[:20].split()[0] in on


@pytest.mark.parametrize("word", ["dispatch", "quantised-dispatch", "Experts"])
def test_help_takes_a_subject_or_a_part_of_an_options_name(bfpp, word):
    code, out, _ = bfpp(f"simulate --help {word}")
    assert code == 0
    assert "--quantised-dispatch" in out
    assert "--recompute" not in out


def test_help_on_nothing_that_there_is_names_the_subjects(bfpp):
    code, out, err = bfpp("simulate --help frobnicate")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "nothing has 'frobnicate' in its name; there are arguments; schedules; " in err


def test_help_has_every_command_by_subject(bfpp):
    out = bfpp("--help")[1]
    assert [*COMMANDS] == re.findall(r"^  ([a-z]+) {2,}", out, re.MULTILINE)
    assert all(f"\n{title}:\n" in out for title in BY_SUBJECT)


def test_every_option_says_what_it_is_for_and_what_it_takes():
    for command in all_commands()[1]:
        for action in command._actions:
            named = command.prog, action.option_strings
            assert action.help, named
            hidden = action.help == SUPPRESS
            assert action.metavar or action.choices or action.nargs == 0 or hidden, named


PIPELINE = ["pipeline", "communication"]
COSTS = [
    "parallelism",
    "model, cluster and software",
    "layers of stages",
    "precision and optimizer",
    "activations and attention",
    "tensor and context parallelism",
    "experts",
    "abstract costs, in seconds",
    "measured costs",
    "replicas and micro-batches that differ",
]
HOST = ["model and data", "devices", "processes"]
GROUPS = {
    "simulate": [*PIPELINE, *COSTS, "pictures", "files for other tools"],
    "compare": [*PIPELINE, *COSTS, "pictures"],
    "explain": [
        *PIPELINE,
        *COSTS,
        "comparisons, each explained cause by cause",
        "jobs, and replicas that differ",
    ],
    "schedule": [*PIPELINE, *COSTS],
    "experiment": [*PIPELINE, *COSTS],
    "orders": PIPELINE,
    "check": PIPELINE,
    "run": [*PIPELINE, *HOST, "training", COSTS[-1], "output"],
    "calibrate": HOST,
    "export": ["output"],
    "show": ["pictures", "files for other tools"],
    "diff": ["pictures"],
    "search": ["values to try", "results", "robustness"],
    "tradeoff": ["values to try"],
}


def test_help_has_the_same_groups_in_the_same_order_wherever_they_are():
    for command in all_commands()[1]:
        groups = [each.title for each in command._action_groups if each._group_actions]
        own = [title for title in groups if title not in ("positional arguments", "options")]
        assert own == GROUPS.get(command.prog.removeprefix("bfpp "), []), command.prog


# Files


def test_pictures_are_written(bfpp):
    files = ["step.svg", "step.html", "step.json", "step.json.gz"]
    words = "--svg step.svg --html step.html --perfetto step.json --json"
    code, out, err = bfpp(f"simulate breadth-first --loops 2 {words}")
    assert (code, out.count("\n")) == (0, 1)
    assert sorted(err.splitlines()) == sorted(f"wrote {name}" for name in files[:3])
    assert ElementTree.parse("step.svg").getroot().tag.endswith("svg")
    assert "<html" in Path("step.html").read_text()
    assert json.loads(Path("step.json").read_text())["traceEvents"]
    assert bfpp("simulate gpipe --perfetto step.json.gz")[0] == 0
    assert Path("step.json.gz").read_bytes().startswith(b"\x1f\x8b")


def test_the_pictures_of_a_comparison_hold_every_schedule(bfpp):
    assert bfpp("compare gpipe breadth-first --svg both.svg --html both.html")[0] == 0
    for name in ("both.svg", "both.html"):
        text = Path(name).read_text()
        assert "gpipe: 4 ranks" in text
        assert "breadth-first: 4 ranks" in text


def test_names_of_files_are_escaped(bfpp):
    name = f"{HOSTILE.replace('/', '')}.svg"
    code, _, err = bfpp("simulate", "gpipe", "--svg", name)
    assert (code, Path(name).exists()) == (0, True)
    assert err == "wrote [red]x[red]<script>\\x1b[31m .svg\n"


def test_names_of_models_are_escaped_in_pictures(bfpp):
    path = Path(f"{HOSTILE.replace('/', '')}.toml")
    path.write_text(MODEL)
    words = ["simulate", "gpipe", "--cluster", "dgx1-v100", "--html", "page.html", "--svg", "s.svg"]
    code, out, err = bfpp(*words, "--model", str(path))
    assert code == 0
    assert "\x1b" not in out + err
    assert "]<script>" not in Path("page.html").read_text()
    ElementTree.parse("s.svg")


def test_standard_input(bfpp, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"0F0,0B0\n")))
    assert bfpp("check -") == (0, "valid\n", "")


def test_a_pipe_is_read(bfpp):
    read, write = os.pipe()
    os.write(write, b"0F0,0B0\n")
    os.close(write)
    assert bfpp("check", f"/dev/fd/{read}") == (0, "valid\n", "")
    os.close(read)


def test_input_without_end_is_refused(bfpp, monkeypatch):
    monkeypatch.setattr("bfpp.schedules.reading.MOST_BYTES", 10**7)
    with Path("/dev/zero").open() as endless:
        monkeypatch.setattr(sys, "stdin", endless)
        code, out, err = bfpp("check -")
    reason = "holds more than 10,000,000 bytes: BFPP_LARGEST_FILE raises that"
    assert (code, out, err) == (2, "", f"bfpp check: FILE: {reason}\n")


# What cannot be


ON_GPUS = "--model llama3-8b --cluster dgx-h100"
ERRORS = {
    "eat": "bfpp: argument COMMAND: invalid choice: 'eat'",
    "simulate": "the following arguments are required: SCHEDULE",
    "simulate gpipe more": "unrecognized arguments: more",
    "simulate gpipe --engin simpy": "unrecognized arguments: --engin simpy",
    "simulate eat": "SCHEDULE: 'eat' is not a schedule; choose from gpipe, ",
    "explain eat": "SCHEDULE: 'eat' is not",
    "orders eat": "SCHEDULE: 'eat' is not",
    "compare gpipe eat": "SCHEDULE: 'eat' is not",
    "paper eat": "ITEM: 'eat' is not one of figure-",
    "simulate gpipe --pp 0": "argument --pp: must be a whole number of at least 1, not '0'",
    "simulate gpipe --pp -3": "argument --pp: .* not '-3'",
    "simulate gpipe --pp=--": "argument --pp: expected a value, not '--'",
    "run gpipe --backend=--": "argument --backend: expected a value, not '--'",
    "check /dev/zero": "FILE: /dev/zero: neither a file nor a pipe",
    "show /dev/zero": ".*/dev/zero.*neither a file nor a pipe",
    "models endless.json": ".*'endless.json': neither a file nor a pipe",
    "validate /dev/zero": ".*/dev/zero.*neither a file nor a pipe",
    "fit /dev/zero": ".*/dev/zero.*neither a file nor a pipe",
    "simulate gpipe --profile endless.toml": ".*'endless.toml': neither a file nor a pipe",
    "simulate gpipe @endless.toml": "--model: cannot read 'endless.toml': neither a file nor a",
    "run gpipe --text /dev/zero": "--text: /dev/zero: neither a file nor a pipe",
    "simulate gpipe --pp two": "argument --pp: .* not 'two'",
    "simulate gpipe --microbatches 1.5": "argument --microbatches: .* not '1.5'",
    "simulate gpipe --microbatches nan": "argument --microbatches: .* not 'nan'",
    "simulate gpipe --pp 99999999999": "argument --pp: must be at most 2147483647",
    "simulate gpipe --pp 100000 --microbatches 100000": "--pp: 100,000 ranks; at most 10,000 can",
    "simulate gpipe --microbatches 10000000": "--pp, --microbatches: .* at most 10,000,000 can",
    "orders gpipe --pp 2147483647": "--pp: 2,147,483,647 ranks",
    "simulate gpipe --forward -1": "argument --forward: must be a number of seconds, at least 0",
    "simulate gpipe --transfer nan": "argument --transfer: .* not 'nan'",
    "simulate gpipe --transfer inf": "argument --transfer: .* not 'inf'",
    "simulate gpipe --transfer 1e308": "argument --transfer: .* at least 0 .*1e.30.*not '1e308'",
    "simulate gpipe --sharding some": "argument --sharding: invalid choice: 'some'",
    "simulate gpipe --p2p queues": "argument --p2p: .* .choose from '?channels'?, '?fifo'?,",
    "simulate gpipe --p2p fif": "argument --p2p: .*posted'?.; did you mean 'fifo'?",
    f"simulate gpipe {ON_GPUS} --recompute full,mlp": "--recompute: .full. stands in no list",
    f"simulate gpipe {ON_GPUS} --recompute mlp,3": "--recompute: .3. stands in no list with",
    "simulate gpipe --engine diesel": "argument --engine: invalid choice",
    "simulate gpipe --loops 2": "--loops: gpipe is not looped",
    "simulate breadth-first --stages-per-rank 2": "--units-per-stage: breadth-first is looped",
    "compare --stages-per-rank 2": "--units-per-stage: schedules of 4 and 8 units do not compare",
    "compare abstract.toml priced.toml": "--model: abstract seconds do not compare with those of",
    "explain gpipe --against priced.toml": "--model: abstract seconds do not compare with those of",
    "simulate depth-first --sequence 3": "--sequence: .* cannot fill 4 ranks",
    "simulate gpipe --sequence 8": "--sequence: gpipe has no such parameter",
    "orders 1f1b --sequence 8": "--sequence: 1f1b has no such parameter",
    "explain breadth-first --sequence 8": "--sequence: breadth-first has no such parameter",
    "compare gpipe breadth-first --sequence 8": "--sequence: gpipe has no such parameter",
    "compare --sequence 3": "--sequence: .* cannot fill 4 ranks",
    "simulate depth-first --microbatches 9": "--microbatches: 9 in sequences of 4 leave 1",
    "simulate gpipe --text --json": "--text: cannot be printed together with --json",
    "simulate gpipe --model bert-52b": "--cluster: must be given together with --model",
    "simulate gpipe --cluster dgx-a100": "--model: must be given together with --cluster",
    "simulate gpipe --tp 2": "--tp: needs --model and --cluster",
    "simulate gpipe --implementation paper": "--implementation: needs --model and --cluster",
    "simulate gpipe --forward 1 @bert-52b": "--forward: abstract seconds cannot be combined",
    "simulate gpipe @eat": "--model: 'eat' is neither a preset",
    "simulate gpipe @nowhere.toml": "--model: cannot read 'nowhere.toml': No such file",
    "simulate gpipe @folder.toml": "--model: cannot read",
    "simulate gpipe @broken.toml": "--model: 'broken.toml' is not TOML: Invalid value",
    "simulate gpipe @hostile.toml": r"--model: hostile: unknown key '\[red\]x\\x1b\[31m\\n'",
    "simulate gpipe @seven-heads.toml": "--model: seven-heads: 7 heads do not divide 512",
    "simulate gpipe @sixteen.toml --pp 17": "--pp: 16 layers cannot be divided over 17 stages",
    "simulate zb-v @sixteen.toml --pp 9": "--pp: 16 layers cannot be divided over 18 stages",
    "simulate depth-first @sixteen.toml --pp 17": "--pp: 16 layers cannot be divided over",
    "simulate depth-first @sixteen.toml --pp 4 --loops 5": "--loops: 16 layers cannot be divided",
    "simulate 1f1b --pp 33 --model llama3-8b --cluster dgx-h100": "--pp: 32 layers cannot be",
    "simulate breadth-first @sixteen.toml --loops 5": "--loops: 16 layers .* over 20 stages",
    "simulate gpipe @sixteen.toml --cut 4,4,4,3": "--cut: 4 stages of 15 layers are not 4 stages",
    "simulate gpipe @sixteen.toml --cut uneven": "--cut: 'uneven' is neither one of even",
    "simulate gpipe @sixteen.toml --recompute most": "--recompute: 'most'",
    "simulate gpipe @sixteen.toml --precision half": "--precision: 'half' is not one of",
    "simulate gpipe @sixteen.toml --cp 2": "--cp: context parallelism needs fused attention",
    "simulate gpipe @sixteen.toml --dp 2 --ep 2": "--ep: sixteen has no experts",
    "simulate gpipe @sixteen.toml --recompute moe": "--recompute: sixteen has no moe",
    "simulate gpipe @sixteen.toml --tp 3": "--tp: 3 does not divide sixteen's 8 heads",
    "simulate gpipe --model sixteen.toml --cluster eat": "--cluster: 'eat' is neither",
    "simulate gpipe --model sixteen.toml --cluster slow.toml": "--cluster: slow: device: peak must",
    "simulate gpipe --svg folder": "argument --svg: must end in .svg or .pdf or .png, not 'folder'",
    "paper figure-3 --out empty": "--out: empty: Not a directory",
    "check nowhere": "SCHEDULE: 'nowhere' is not a schedule",
    "check nowhere.csv": "FILE: nowhere.csv: No such file",
    "check words --pp 2": "--pp: is decided by the file",
    "check folder": "FILE: folder: Is a directory",
    "check empty": "FILE: holds no compute step",
    "check words": "FILE: line 1, cell 2: 'eat' is not an action",
    "check brace": "FILE: is not JSON",
    "check empty --format graph": "FILE: is not JSON",
    "check empty --format eat": "argument --format: invalid choice",
    "simulate gpipe --svg a.svg --width 84": "argument --width: must be a length from 71mm",
    "simulate gpipe --svg a.svg --width 1mm": "argument --width: must be a length",
    "simulate gpipe --svg a.svg --width nanmm": "argument --width: must be a length",
    "explain gpipe --set eat": "--set: 'eat' is not NAME=VALUE or NAME=xFACTOR",
    "explain gpipe --set eat=2": "--set: 'eat' is not a parameter; there are all_reduce, backward",
    "explain gpipe --set forward=nan": "--set: 'forward=nan' is not NAME=VALUE",
    "explain gpipe --set forward=1e308": "--set: 'forward=1e308' is not NAME=VALUE",
    "explain gpipe --set stage.9=x2": "--set: there is no stage.9; the last is 3",
    "explain gpipe --set stage.1=2": "--set: 'stage.1' .* scale it",
    "explain gpipe --set backward_input=x2": "--set: 'backward_input' is not set, so it cannot",
    "explain gpipe --against eat": "SCHEDULE: 'eat' is not a schedule",
    "explain gpipe --against=--pp=0": "argument --pp: must be",
    "explain gpipe --against=--loops=2": "--loops: gpipe is not looped",
    "explain gpipe --against=--help": "--against: --help is not an option of an experiment",
    "explain gpipe --against=--json": "--against: --json is not an option",
    "explain gpipe --against 'x": "--against: .*No closing quotation",
}


@pytest.mark.parametrize(("line", "reason"), ERRORS.items())
def test_errors_are_one_line_that_names_the_option(bfpp, line, reason):
    words = re.sub(r"@(\S+)", r"--model \1 --cluster dgx1-v100", line).split()
    code, out, err = bfpp(*words)
    command = "" if words[0] == "eat" else f" {words[0]}"
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert re.match(rf"bfpp{command}: ", err)
    assert re.search(reason, err), err


PLACES = [
    ("simulate", HOSTILE), ("simulate", "gpipe", HOSTILE), ("simulate", "gpipe", "--pp", HOSTILE),
    ("simulate", "gpipe", "--svg", f"no/{HOSTILE}"), ("check", HOSTILE), ("paper", HOSTILE),
    ("simulate", "gpipe", "--model", HOSTILE, "--cluster", "dgx1-v100"), (HOSTILE,),
    ("explain", "gpipe", "--set", HOSTILE), ("explain", "gpipe", "--against", HOSTILE),
]  # fmt: skip


@pytest.mark.parametrize("words", PLACES)
def test_hostile_words_are_escaped(bfpp, words):
    code, out, err = bfpp(*words) if len(words) > 1 else bfpp(words[0], "")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.removesuffix("\n").isprintable()
    assert "[red]x" in err


def test_nothing_to_do_prints_the_help(capsys):
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert (out, err.splitlines()[0]) == ("", "usage: bfpp COMMAND [OPTIONS]")


# As processes


def process(*words, **options):
    command = [sys.executable, "-m", "bfpp", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    return subprocess.run(
        command, env=environment, capture_output=True, timeout=60, check=False, **options
    )


def test_a_process_answers():
    done = process("simulate", "gpipe", "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["step_time"] == 33


def test_a_process_fails_in_one_line():
    done = process("simulate", "gpipe", "--pp", "0")
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)


def test_a_terminal_without_unicode_is_served():
    done = process("simulate", "gpipe", "--forward", "1e-5", env={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"step time" in done.stdout


def test_a_reader_that_leaves_is_no_error():
    command = [sys.executable, "-m", "bfpp", "orders", "gpipe", "--microbatches=20000"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout.read(4) == b"0F0,"
        running.stdout.close()
        assert running.stderr.read() == b""
        assert running.wait(60) == 0
