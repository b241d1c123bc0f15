"""Output with `--json` is as its schemas say, and the schemas leave nothing out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy

import pytest
from jsonschema import Draft202012Validator

from bfpp.options import schemas
from bfpp.options.schemas import schema_of
from bfpp.sim.experiment.values import OPTIONS
from bfpp.terminal.command_table import COMMANDS, all_commands
from bfpp.terminal.printing import SCHEMA
from docs.generate.json_keys import keys
from tests.executor.model.test_hugging_face_weights import LLAMA
from tests.helpers.described import require_described
from tests.helpers.simumax_files import system
from tests.helpers.straggler_jobs import Job, parquet_of
from tests.helpers.studies import measured, written
from tests.traces.profiles.test_megatron_timers import ITERATIONS

PHYSICAL = "--model bert-6.6b --cluster dgx1-v100 --pp 4 --tp 2 --microbatches 8"
ON_H100 = "--cluster dgx-h100 --pp 4 --tp 2 --dp 2 --microbatches 8"
SEARCHED = "--cluster dgx1-v100 --gpus 4 --batch 8 --workers 1 --fix microbatch_size=1"
SMALL = "--layers 2 --hidden 16 --context 8 --microbatch-size 1"
LLAMA_RUN = "--steps 1 --context 8 --model config.json --checkpoint llama --save-every 1"
TRAINED = "1f1b --pp 2 --microbatches 2 --microbatch-size 1 --backend local"

RANKS = {f"ranks[].{key}" for key in ("rank", "compute_time", "start", "end", "peak_microbatches")}
TIMELINE = {"schedule", "step_time", "bubble", "bubble_fraction", "span", "period", "tasks"}

CONTRACT = {
    "simulate": TIMELINE
    | {"engine", "ranks", *RANKS, "tflops_per_gpu", "mfu", "hfu", "memory_gb", "memory_min_gb"}
    | {"memory_largest_gb", "memory_reserved_gb", "samples_per_second", "not_modelled"}
    | {"tokens_per_second_per_gpu", "step_time_low", "step_time_high", "implementation"},
    "check": {"valid", "violations"},
    "validate": {"rows", "rows[].prediction", "rows[].prediction.step_time_low"}
    | {"rows[].prediction.step_time_high", "rows[].error", "rows[].error_step_time"}
    | {"throughput_mape", "memory_mape", "coverage"},
    "search": {"configurations", "tried", "simulated", "seconds", "excluded"}
    | {"configurations[].mfu", "configurations[].memory_reserved_gb"}
    | {"configurations[].memory_reserved_high_gb", "configurations[].pp"},
    "schedule": {"step_time", "lower_bound", "gap", "best_rule", "best_rule_step_time"},
    "run": {"losses", "step_times", "tokens_per_second", "reference_losses", "max_weight_error"}
    | {"elapsed_times"},
    "diff": {"step_time_error", "operations"},
    "study": {"cells", "cells[].values", "cells[].measured", "cells[].measured_low"}
    | {"cells[].measured_high", "cells[].predicted", "cells[].low", "cells[].high"},
    "import": TIMELINE | RANKS,
    "explain": {"slowdown", "by", "by.stage", "by.replica", "by.operation", "by.worker"}
    | {"worst_workers_share", "last_stage_share", "steps", "steps.NAME.measured"}
    | {"steps.NAME.replayed", "steps.NAME.even"},
}
"""Keys that other programs rely on: none of them is ever renamed or removed."""

FAILING = ("wrong.csv", "gpt-1t")

FREE = {
    "paper": ("items.", "figure-3", "table-models"),
    "measure": ("measurements",),
    "study": ("about", "cells.0.values", "groups.0.values", "refused.0.values"),
}
"""Objects whose keys depend on what is drawn or measured."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, printed):
    """Files that the commands read."""
    place, simulated = tmp_path_factory.mktemp("read"), ("simulate", "1f1b", "--pp", "2")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        printed(*simulated, "--timeline", "one.json", "--perfetto", "trace.json")
        printed(*simulated, "--forward", "1.5", "--timeline", "other.json")
        printed("orders", *simulated[1:], "--out", "found.csv")
        (place / "job.parquet").write_bytes(parquet_of(Job(pp=2, microbatches=2).columns()))
        (place / "run.log").write_text(ITERATIONS)
        (place / "wrong.csv").write_text("0F0,0B0\n1B0,1F0\n")
        (place / "config.json").write_text(json.dumps(LLAMA))
        (place / "system.json").write_text(json.dumps(system()))
        rows = [
            f"1f1b,bert-6.6b,dgx1-v100,4,2,{dp},8,{size},{40 + size}"
            for dp in (1, 2)
            for size in (1, 2, 4)
        ]
        measured(written(place / "grid.toml"), place / "studied", {0: [1.0, 1.1], 2: [1.2]})
        names = "schedule,model,cluster,pp,tp,dp,microbatches,microbatch_size,tflops_per_gpu"
        (place / "table.csv").write_text("\n".join([names, *rows]) + "\n")
    return place


@pytest.fixture
def here(folder, tmp_path, monkeypatch):
    """A folder with these files, to write to."""
    for each in folder.iterdir():
        (tmp_path / each.name).symlink_to(each)
    monkeypatch.chdir(tmp_path)


QUICK = [
    "simulate 1f1b --pp 2",
    "simulate 1f1b --pp 2 --gather 1",
    "simulate 1f1b --pp 2 --engine simpy --sharding full",
    f"simulate 1f1b {PHYSICAL}",
    f"simulate 1f1b --model llama3-8b {ON_H100} --offload all --offload-share 0.5",
    f"simulate breadth-first --loops 2 --model mixtral-8x22b --ep 2 --sequence-parallel {ON_H100}",
    "compare --pp 4",
    f"compare gpipe 1f1b {PHYSICAL}",
    "show one.json",
    "diff one.json other.json",
    "import trace.json --out imported.json",
    "import job.parquet --out imported.json",
    "import job.parquet --step 4 --replica 1 --out imported.json",
    "explain 1f1b --pp 2 --set forward=2 --against gpipe",
    "explain found.csv",
    "explain job.parquet",
    "explain run.log",
    "explain one.json --set forward=x2 --against other.json",
    f"explain 1f1b {PHYSICAL}",
    "orders breadth-first --pp 2 --loops 2",
    "orders 1f1b --pp 2 --format torch-actions",
    "check 1f1b --pp 2",
    "check wrong.csv",
    "models",
    "models deepseek-v3",
    "models config.json",
    "clusters",
    "clusters gb200-nvl72",
    "experiment seq1f1b --slices 2 --pp 2",
    f"experiment 1f1b {PHYSICAL} --format megatron",
    f"experiment 1f1b --model llama3-8b {ON_H100} --format torchtitan",
    "schedule --pp 2 --microbatches 2 --seconds 1 --out order.csv",
    "schedule --pp 2 --microbatches 2 --seconds 1 --out order.csv --objective memory",
    f"schedule --seconds 0.2 --choose cut --out order.csv {PHYSICAL}",
    f"search --model gpt-345m {SEARCHED} --top 2 --price 2",
    f"search {SEARCHED} --schedule 1f1b --model gpt-1t",
    f"search {SEARCHED} --model gpt-345m --schedule 1f1b --objective robustness --jitter-draws 2",
    f"tradeoff --model gpt-345m {SEARCHED} --schedule 1f1b --critical-batch 64 --sizes 4 --price 2",
    "validate table.csv",
    "validate korthikanti-2022",
    "fit table.csv --no-cross-validation",
    "paper figure-3 table-models --out paper",
    "measure --simumax system.json --out measured.toml",
    "study grid.toml --out studied --report",
    "study grid.toml --out studied --dry-run",
    f"calibrate --quick --pp 2 --optimizer muon --out profile.toml {SMALL}",
    f"run {TRAINED} --steps 2 --verify {SMALL}",
    f"run 1f1b --pp 2 --dp 2 --dry-run --rank 3 --backend cuda {SMALL}",
]


@pytest.mark.usefixtures("here", "one_process")
@pytest.mark.parametrize("words", QUICK)
def test_it_prints_what_its_schema_says_and_no_other_key_is_allowed(words, bfpp):
    code, out, err = bfpp(f"{words} --json")
    assert (code, out.count("\n")) == (int(words.endswith(FAILING)), 1), err
    record = json.loads(out, parse_constant=pytest.fail)
    command = words.split()[0]
    assert record["schema"] == SCHEMA
    require_described(command, record)
    for path, changed in _with_another_key(record):
        if not path.startswith(FREE.get(command, ())):
            with pytest.raises(AssertionError, match=f"bfpp {command} --json"):
                require_described(command, changed)


def _with_another_key(record: dict) -> Iterator[tuple[str, dict]]:
    """The record with a key too many, in each object of it; of a list, in the first."""
    for path in _objects(record, ()):
        changed = deepcopy(record)
        value = changed
        for step in path:
            value = value[step]
        value["another_key"] = [{"of": "nobody"}]
        yield ".".join(map(str, path)), changed


def _objects(value: object, path: tuple) -> Iterator[tuple]:
    if isinstance(value, dict):
        yield path
        for name, each in value.items():
            yield from _objects(each, (*path, name))
    elif isinstance(value, list) and value:
        yield from _objects(value[0], (*path, 0))


@pytest.mark.usefixtures("here", "one_process")
def test_an_export_prints_what_its_schema_says(bfpp):
    pytest.importorskip("safetensors")
    assert bfpp(f"run {TRAINED} {LLAMA_RUN}")[0] == 0
    code, out, err = bfpp("export llama --out exported --json")
    assert code == 0, err
    require_described("export", json.loads(out))


def test_every_command_with_json_has_a_schema_and_is_tried():
    _, parsers = all_commands()
    answering = {parser.prog.split()[1] for parser in parsers if "--json" in parser.names}
    assert {*schemas.commands()} == answering == {*COMMANDS} - {"explore", "completion"}
    assert {words.split()[0] for words in QUICK} | {"export"} == answering


@pytest.mark.parametrize("command", schemas.commands())
def test_a_schema_says_what_every_key_means(command, bfpp):
    schema = schema_of(command)
    Draft202012Validator.check_schema(schema)
    assert schema["title"] == f"bfpp {command} --json"
    listed = keys(command)
    assert all(key.meaning for key in listed), command
    for path, each in _properties(schema):
        assert each.get("description") or "$ref" in each, path
    assert json.loads(bfpp(f"{command} --json-schema")[1]) == schema
    described = {key.path for key in listed}
    assert CONTRACT.get(command, set()) | {"schema"} <= described


def _properties(schema: object, path: str = "") -> Iterator[tuple[str, dict]]:
    """All keys of all objects in a schema, and what is said of each."""
    if isinstance(schema, dict):
        for name, each in schema.get("properties", {}).items():
            yield f"{path}.{name}", each
    children = schema.items() if isinstance(schema, dict) else enumerate(schema)
    for name, each in children:
        if isinstance(each, dict | list):
            yield from _properties(each, f"{path}.{name}")


def test_options_are_described_by_their_table():
    described = {key.path for key in keys("experiment")}
    assert {*OPTIONS} | {"schedule", "slices"} <= described
