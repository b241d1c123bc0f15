"""Input that says something else than it seems to: told, not read as something."""

from __future__ import annotations

import argparse
import json
from importlib import import_module
from itertools import cycle, product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.schedules import InvalidConfiguration, Operation
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.costs.measured.profile_file import as_toml
from bfpp.sim.presets import file_kinds
from bfpp.sim.presets.numbers import LARGEST, LARGEST_COUNT, LEAST, real, whole
from bfpp.terminal.command_table import COMMANDS, module_of
from bfpp.terminal.number_types import seconds, whole_number
from bfpp.terminal.parser import Parser
from tests.sim.costs.measured.test_profile import PROFILE
from tests.sim.costs.test_physical import MEASUREMENTS
from tests.sim.models.test_hugging_face import LLAMA

CONSTANTS = '[clusters."dgx1-v100".device]\nmatmul_efficiency = 0.5\n'
CLUSTER = "--cluster dgx-h100 --pp 4 --tp 8"
SEARCH = "--model config.json --cluster dgx-h100 --gpus 8 --batch 8 --workers 1 --schedule gpipe"


@pytest.fixture(scope="module")
def presets(printed):
    """A model and a cluster as files, by name."""
    named = {"models": "bert-52b", "clusters": "dgx-h100"}
    return {f"{kind}.toml": printed(kind, name) for kind, name in named.items()}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, presets):
    monkeypatch.chdir(tmp_path)
    Path("machine.toml").write_text(as_toml(PROFILE))
    Path("constants.toml").write_text(CONSTANTS)
    Path("config.json").write_text(json.dumps({**LLAMA, "max_position_embeddings": 131072}))
    rows = MEASUREMENTS.read_text().splitlines(keepends=True)
    Path("table.csv").write_text("".join(rows[:2]))
    for name, text in presets.items():
        Path(name).write_text(text)


KINDS = {
    "validate table.csv --constants machine.toml": "--constants: machine.toml is a profile of a "
    "machine, from bfpp calibrate, not a file of constants, from bfpp fit; bfpp simulate, compare, "
    "explain and validate take it as --profile",
    "simulate gpipe --profile constants.toml": "--profile: constants is a file of constants, from "
    "bfpp fit, not a profile of a machine, from bfpp calibrate; --constants takes it",
    "validate table.csv --profile constants.toml": "--profile: constants is a file of constants,",
    "validate table.csv --constants models.toml": "--constants: models.toml is a model, not a file",
    "simulate gpipe --profile clusters.toml": "--profile: clusters is a cluster, not a profile",
    "simulate gpipe --model clusters.toml --cluster dgx-h100": "--model: clusters is a cluster, "
    "not a model; --cluster takes it",
    "simulate gpipe --model bert-52b --cluster models.toml": "--cluster: models is a model, not",
    "simulate gpipe --model machine.toml --cluster dgx-h100": "--model: machine is a profile",
    "models constants.toml": "NAME|FILE: constants is a file of constants, from bfpp fit, not",
}


MARKS = {  # what a file begins with, and keys that no other kind has
    file_kinds.PROFILE: ("bfpp machine profile 1", ["passes", "channels", "dispatch"]),
    file_kinds.CONSTANTS: ("bfpp constants 1", ["clusters", "implementations"]),
    file_kinds.CLUSTER: (
        "bfpp cluster 1", ["gpus_per_node", "intra_node", "inter_node", "levels", "like"],
    ),
    file_kinds.MODEL: ("", ["hidden", "heads", "vocabulary"]),
    file_kinds.EXPERIMENT: ("bfpp experiment 1", ["schedule"]),
    file_kinds.SEARCH: ("bfpp search 1", ["gpus"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", MARKS, ids=lambda kind: kind.title)
def test_one_mark_tells_what_a_file_is(kind):
    said, keys = MARKS[kind]
    tables = [{key: 1} for key in keys] + ([{"format": said}] if said else [])
    for table in tables:
        file_kinds.require_kind("--it", "its file", table, kind)
        for other in MARKS.keys() - {kind}:
            with pytest.raises(InvalidConfiguration) as refused:
                file_kinds.require_kind("--it", "its file", table, other)
            said_of_it = f"its file is {kind.title}, not {other.title}; {kind.takers}"
            assert refused.value.reason == said_of_it
    later = {"format": "bfpp cluster 2", **dict.fromkeys(keys, 1)}
    with pytest.raises(InvalidConfiguration, match="the format 'bfpp cluster 2' is not"):
        file_kinds.require_kind("--it", "its file", later, kind)


@pytest.mark.parametrize(("line", "reason"), KINDS.items())
def test_a_file_of_another_kind_is_refused_by_name(bfpp, line, reason):
    code, out, err = bfpp(line)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('clusters."dgx1-v10".device.peak = 1.0', "unknown key 'dgx1-v10'; did you mean 'dgx1-v1"),
        ("implementations.papr.overlap_slowdown = 0.1", "unknown key 'papr'; did you mean 'paper'"),
        ("implementations.paper.overlap = 0.1", "unknown key 'overlap'"),
        ("implementations.paper.overlap_slowdown = -1", "overlap_slowdown must be a number from 0"),
        ("implementations.paper.overlap_slowdown = nan", "overlap_slowdown must be a number from"),
        ("implementations.paper = 3", "implementations must hold tables"),
        ("clusters = 3", "clusters must hold tables"),
        ('clusters."dgx1-v100".device.speed = 1.0', "unknown key 'speed'"),
        ('clusters."dgx1-v100".devices.peak = 1.0', "unknown key 'devices'"),
        ('clusters."dgx1-v100".device.matmul_efficiency = 2.0', "must be at most 1, not 2.0"),
        ('clusters."dgx1-v100".device.matmul_efficiency = inf', "must be positive and finite"),
        ("more = 1", "unknown key 'more'"),
        ('format = "bfpp constants 2"', "the format 'bfpp constants 2' is not 'bfpp constants 1'"),
    ],
)
def test_constants_that_nothing_would_use_are_refused(bfpp, text, reason):
    Path("constants.toml").write_text(text)
    code, out, err = bfpp("validate table.csv --constants constants.toml")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--constants: constants.toml" in err
    assert reason in err


def test_constants_that_were_fitted_to_a_file_would_be_used_by_none(bfpp):
    lines = MEASUREMENTS.read_text().splitlines()[:20]
    Path("table.csv").write_text("\n".join(lines).replace("dgx1-v100", "clusters.toml"))
    code, _, err = bfpp("fit table.csv")
    assert (code, err.count("\n")) == (2, 1)
    assert "'clusters.toml' is a file" in err


SECONDS = st.floats(0.125, 8, width=16)


@given(whole=SECONDS, of_input=SECONDS, of_weight=SECONDS)
def test_a_backward_pass_is_its_halves(whole, of_input, of_weight):
    def costs(**given):
        table = AbstractCosts(**given).by_operation()
        return tuple(
            table[each]
            for each in (
                Operation.BACKWARD, Operation.BACKWARD_INPUT, Operation.BACKWARD_WEIGHT,
            )
        )  # fmt: skip

    both = {"backward_input": of_input, "backward_weight": of_weight}
    together = (of_input + of_weight, of_input, of_weight)
    assert costs() == (2, 1, 1)
    assert costs(backward=whole) == (whole, whole / 2, whole / 2)
    assert costs(**both) == costs(**both, backward=of_input + of_weight) == together
    assert costs(backward=of_input + of_weight, backward_input=of_input) == together
    assert costs(backward=of_input + of_weight, backward_weight=of_weight) == together
    if whole != of_input + of_weight:
        with pytest.raises(InvalidConfiguration, match="is not the sum of its halves"):
            costs(backward=whole, **both)
    if whole < of_weight:
        with pytest.raises(InvalidConfiguration, match="is not the sum of its halves"):
            costs(backward=whole, backward_weight=of_weight)


def test_halves_that_contradict_the_whole_are_refused(bfpp):
    code, out, err = bfpp("simulate gpipe --backward 1 --backward-weight 3")
    assert (code, out) == (2, "")
    assert err == ("bfpp simulate: --backward: 1 is not the sum of its halves (3)\n")
    line = "explain gpipe --backward 3 --backward-input 1 --backward-weight 2"
    assert bfpp(line)[0] == 0
    assert bfpp(f"{line} --set backward=5")[0] == 2


# How long sequences are


def steps(record):
    return record["step_time"]


SAYING = {
    f"simulate gpipe --model config.json {CLUSTER}": ["step_time"],
    f"compare gpipe 1f1b --model config.json {CLUSTER}": ["schedules", 0, "step_time"],
    f"explain gpipe --model config.json {CLUSTER}": ["step_time"],
    f"search {SEARCH}": [],
    f"tradeoff {SEARCH} --critical-batch 64 --sizes 8": [],
}


@pytest.mark.parametrize("line", SAYING)
def test_an_assumed_sequence_is_said_and_a_given_one_is_used(bfpp, line):
    code, out, err = bfpp(f"{line} --json")
    told = "--seq-length 131072: the longest that config.json allows"
    if not line.startswith("tradeoff"):  # which has nothing to print where nothing fits
        assert code == (1 if line.startswith("search") else 0)
        assert json.loads(out)["assumed"][0].startswith(told)
    assert f"bfpp {line.split()[0]}: assumed {told}" in err.splitlines()[0]
    code, out, err = bfpp(f"{line} --seq-length 2048 --json")
    assert (code, err) == (0, "")
    record = json.loads(out)
    assert "assumed" not in record
    if path := SAYING[line]:
        Path("mine.toml").write_text(
            bfpp("models config.json")[1].replace("sequence = 131072", "sequence = 2048")
        )
        same = json.loads(bfpp(f"{line.replace('config.json', 'mine.toml')} --json")[1])
        for key in path:
            record, same = record[key], same[key]
        assert record == same


def test_what_another_configuration_assumes_is_said_too(bfpp):
    against = "gpipe --model config.json"
    words = f"explain gpipe --model llama3-8b {CLUSTER} --json".split()
    code, out, err = bfpp(*words, "--against", against)
    assert code == 0
    assert len(json.loads(out)["assumed"]) == err.count("\n") == 1


def test_a_sequence_needs_a_model(bfpp):
    for line in ("simulate gpipe --seq-length 8", "compare --seq-length 8"):
        assert bfpp(line)[2].endswith(": --seq-length: needs --model and --cluster too\n")
    line = "simulate gpipe --profile machine.toml --pp 2 --seq-length 8"
    assert bfpp(line)[2] == "bfpp simulate: --seq-length: cannot be combined with --profile\n"


def test_where_nothing_can_fit_that_is_known_soon(bfpp, monkeypatch):
    monkeypatch.delattr("bfpp.api.workers.executor")
    code, out, _ = bfpp(f"search {SEARCH} --implementation paper --json")
    assert code == 1
    record = json.loads(out)
    assert record["configurations"] == []
    assert record["nearest"]["missing_gb"] > 0


# Numbers

NOT_WHOLE = ["٣", "1_000", "3.0", "", "0", "-1", "1e3", "0x10", "٣٠", "9" * 30, "9" * 5000, "½"]
NOT_SECONDS = ["٣", "1_0", "", "-1", "nan", "inf", "1e400", "1e31", "1e-31", "0x1p3", "infinity"]


def numbers_of(command):
    parser = Parser()
    import_module(module_of(command)).add_arguments(parser)
    return [action for action in parser._actions if action.type in (whole_number, seconds)]


@pytest.mark.parametrize(
    ("read", "text"), [*product([whole_number], NOT_WHOLE), *product([seconds], NOT_SECONDS)]
)
def test_a_number_is_in_plain_digits_and_of_a_plain_size(read, text):
    with pytest.raises(argparse.ArgumentTypeError, match=r"^must be "):
        read(text)


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_number_is_told_by_every_option_that_takes_one(bfpp, command):
    for action, text in zip(numbers_of(command), cycle(NOT_WHOLE)):
        given = "1_0" if action.type is seconds else text
        code, out, err = bfpp(command, *required(command), f"{action.option_strings[0]}={given}")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"argument {'/'.join(action.option_strings)}: must be " in err


def required(command):
    needs = {
        "search": SEARCH, "tradeoff": f"{SEARCH} --critical-batch 1", "calibrate": "--out p.toml",
        "measure": "--out m.toml",
        "simulate": "gpipe", "explain": "gpipe", "run": "gpipe", "orders": "gpipe",
    }  # fmt: skip
    return needs.get(command, "").split()


@given(st.text("0123456789.eE+-_ ٣xinfa", max_size=12))
def test_numbers_are_read_as_python_reads_them_or_not_at_all(text):
    if (number := whole(text)) is not None:
        assert number == int(text)
    if (value := real(text)) == value:
        assert value == float(text)
        assert text.isascii()
        assert "_" not in text


@pytest.mark.parametrize("size", ["9" * 30, "9" * 400, "1_000_000_000_000", str(LARGEST_COUNT + 1)])
def test_a_size_of_many_digits_is_refused(bfpp, size):
    model = Path("models.toml").read_text()
    at = model.index("vocabulary = ")
    Path("models.toml").write_text(f"{model[:at]}vocabulary = {size}\n")
    code, out, err = bfpp(f"simulate gpipe --model models.toml {CLUSTER}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    reasons = ("--model: models: vocabulary must be ", "a whole number is of more than 64 bits")
    assert any(reason in err for reason in reasons)


@pytest.mark.parametrize("factor", [LARGEST * 10, LEAST / 10])
def test_a_number_of_a_cluster_is_of_a_plain_size(bfpp, factor):
    cluster = Path("clusters.toml").read_text()
    at = cluster.index("peak = ")
    end = cluster.index(",", at) if "," in cluster[at : at + 20] else cluster.index("\n", at)
    Path("clusters.toml").write_text(f"{cluster[:at]}peak = {factor}{cluster[end:]}")
    code, _, err = bfpp("simulate gpipe --model llama3-8b --cluster clusters.toml")
    assert (code, err.count("\n")) == (2, 1)
    assert "--cluster: clusters: device: peak must be from 1e-30 to 1e+30" in err


RUN = "1f1b --pp 2 --microbatches 2 --layers 2 --backend local --steps 1"
JOB = "--model bert-6.6b --cluster odd.toml --pp 2 --microbatches 2"


@pytest.mark.parametrize(
    ("command", "place"),
    [
        (f"simulate 1f1b {JOB}", "out"),
        (f"compare 1f1b gpipe {JOB}", "out"),
        (f"explain 1f1b {JOB}", "out"),
        (f"experiment 1f1b {JOB}", "error"),
        ("experiment odd-job.toml", "error"),
        (f"schedule --seconds 0.1 {JOB}", "error"),
        (f"run {RUN} --dry-run --cluster odd.toml", "error"),
        ("validate odd.csv", "error"),
        ("clusters odd.toml", "error"),
        (
            "tradeoff --model bert-6.6b --cluster odd.toml --gpus 8 --batch 8 --critical-batch 9",
            "error",
        ),
    ],
)
def test_every_command_names_numbers_of_a_cluster_in_another_unit(bfpp, command, place):
    if command.startswith("run"):
        pytest.importorskip("torch")
    text = Path("clusters.toml").read_text()
    line = next(each for each in text.splitlines() if each.startswith("memory ="))
    Path("odd.toml").write_text(text.replace(line, "memory = 80"))
    Path("odd-job.toml").write_text(
        'format = "bfpp experiment 1"\nschedule = "1f1b"\npp = 2\nmicrobatches = 2\n'
        'model = "bert-6.6b"\ncluster = "odd.toml"\n'
    )
    Path("odd.csv").write_text(Path("table.csv").read_text().replace("dgx1-v100", "odd.toml"))
    _, out, error = bfpp(command)
    said = " ".join((out if place == "out" else error).split())
    doubt = "odd: device.memory = 80 is in bytes: write 80e9 if GB are meant"
    assert said.count(doubt) == (2 if command.startswith("compare") else 1)
