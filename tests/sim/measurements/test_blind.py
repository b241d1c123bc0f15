"""Runs that are predicted before their results are read: what is read, and what is not."""

from __future__ import annotations

import json

import pytest

from benchmarks.sim.blind import maxtext, readmes
from benchmarks.sim.blind.runs import experiment_in, table
from benchmarks.sim.blind.submissions import Open, submissions

COMMON = "export FP8=True\nexport MODEL_SIZE=8b\n"
SETTINGS = """
source $(dirname ${BASH_SOURCE[0]})/config_common.sh
export MINIBS=4
export TENSOR_MODEL_PARALLEL=2
export PIPELINE_MODEL_PARALLEL=2
export INTERLEAVED_PIPELINE=8
export DGXNNODES=2
export DGXNGPU=8
"""


@pytest.fixture
def submitted(tmp_path):
    """A folder with one submission: 16 B200, batch 16, one file of settings."""
    ours = tmp_path / "Ours"
    results = ours / "results" / "b200_n2" / "llama31_8b"
    settings = ours / "benchmarks" / "llama31_8b"
    for folder in (results, settings, ours / "systems"):
        folder.mkdir(parents=True)
    facts = {
        "submission_org": "Ours",
        "submission_platform": "2x",
        "submission_benchmark": "llama31_8b",
        "global_batch_size": 16,
        "gradient_accumulation_steps": 4.0,
    }
    lines = [json.dumps({"key": key, "value": value}) for key, value in facts.items()]
    lines = [f":::MLLOG {line}" for line in [*lines, json.dumps({"key": "run_start"})]]
    (results / "result_0.txt").write_text("\n".join([*lines, ":::MLLOG never read"]))
    system = {"number_of_nodes": "2", "accelerators_per_node": "8"}
    system["accelerator_model_name"] = "NVIDIA B200-SXM-180GB"
    (ours / "systems" / "b200_n2.json").write_text(json.dumps(system))
    (settings / "config_common.sh").write_text(COMMON)
    (settings / "config_DGXB200_2x8.sh").write_text(SETTINGS)
    return tmp_path


def test_a_submission_is_an_experiment(submitted):
    (found,) = submissions(submitted)
    assert found.row == {
        "run": "Ours/b200_n2/llama31_8b",
        "model": "llama3-8b",
        "seq_length": 8192,
        "cluster": "dgx-b200",
        "implementation": "current",
        "schedule": "interleaved",
        "pp": 2,
        "tp": 2,
        "cp": 1,
        "dp": 4,
        "loops": 8,
        "microbatch_size": 1,
        "microbatches": 4,
        "sharding": "zero1",
        "precision": "fp8-current",
        "main_gradients": "bf16",
        "sequence_parallel": True,
        "tp_overlap": "none",
    }


def test_settings_that_do_not_fit_or_are_of_another_machine_are_left_out(submitted):
    settings = submitted / "Ours" / "benchmarks" / "llama31_8b"
    (settings / "config_DGXB200_1x8.sh").write_text(SETTINGS.replace("DGXNNODES=2", "DGXNNODES=1"))
    (settings / "config_GB200_4x4.sh").write_text(f"{SETTINGS}export FP4=True\n")
    (found,) = submissions(submitted)
    assert found.row["precision"] == "fp8-current"


def test_settings_that_leave_a_submission_open_are_named(submitted):
    settings = submitted / "Ours" / "benchmarks" / "llama31_8b"
    (settings / "config_DGXB200_2x8_fp4.sh").write_text(f"{SETTINGS}export FP4=True\n")
    (found,) = submissions(submitted)
    with pytest.raises(Open, match=r"config_DGXB200_2x8.sh, config_DGXB200_2x8_fp4.sh"):
        _ = found.row
    (settings / "README-b200_n2.md").write_text("source config_DGXB200_2x8_fp4.sh")
    (found,) = submissions(submitted)
    assert found.row["precision"] == "nvfp4"


PAGE = """
## Pre-Training Performance
### System: DGX-H100, Precision: BF16

| Model | #GPUs | GBS | MBS | Seq Length | TP | PP | CP | EP | VP | Time per Global Step (s) |
|---|---|---|---|---|---|---|---|---|---|---|
| Llama3 70B | 64 | 128 | 1 | 8192 | 1 | 1 | 2 | - | - | {seconds} |
| A model of its own | 8 | 8 | 1 | 4096 | 1 | 1 | 1 | - | - | {seconds} |

## Fine-Tuning
### System: DGX-H100, Precision: BF16

| Model | #GPUs | GBS | MBS | Seq Length | TP | PP | CP | EP | VP | Time per Global Step (s) |
|---|---|---|---|---|---|---|---|---|---|---|
| Llama3 70B | 8 | 32 | 2 | 4096 | 2 | 1 | 1 | - | 1 | {seconds} |
"""


def test_configurations_of_a_page_do_not_depend_on_its_results():
    (row,) = readmes.configurations("automodel", PAGE.format(seconds="unread"))
    assert row["run"] == "automodel/llama3-70b/bf16/64/128"
    sizes = {name: row[name] for name in ("dp", "cp", "microbatches", "loops", "seq_length")}
    assert sizes == {"dp": 32, "cp": 2, "microbatches": 4, "loops": 1, "seq_length": 8192}
    assert dict(readmes.results("automodel", PAGE.format(seconds="12.5"))) == {row["run"]: 12.5}


def test_results_with_a_column_for_each_size():
    page = """
| Nemotron 340b FP8 GB200 Strong Scaling | 128x GB200 GPUs (GBS=512) | 256x GB200 GPUs (GBS=512) |
|---|---|---|
| Training step time (seconds per step) | 8.5 | 4.25 |
| Throughput in tokens per second | 1 | 2 |

| Nemotron 340b FP8 GB200 | 512x H100 GPUs (GBS=512) |
|---|---|
| Training step time (seconds per step) | 99 |
"""
    found = dict(readmes.results("dgxc-nemotron", page))
    runs = [f"dgxc-nemotron/nemotron4-340b/fp8/{gpus}/512" for gpus in (128, 256)]
    assert found == dict(zip(runs, (8.5, 4.25), strict=True))


def test_every_run_of_the_frozen_set_is_an_experiment():
    rows = table("configurations")
    names = [row["run"] for row in rows]
    assert len(set(names)) == len(rows) >= 60
    for row in rows:
        assert experiment_in(row).physical is not None


MAXTEXT = """
## TPU v5p

| Hardware | TFLOP/sec/chip |
|---|---|
| 1x v5p-256 | 1 |

## TPU v5e

""" + "\n".join(
    "| Hardware | TFLOP/sec/chip | MFU |\n|---|---|---|\n| 2x v5e-256 | {rate} | {rate} |\n"
    for _ in range(4)
)


def test_configurations_of_maxtext_do_not_depend_on_its_results():
    rows = [*maxtext.configurations(MAXTEXT.replace("{rate}", "unread"))]
    assert [row["run"] for row in rows] == [f"maxtext/{size}/2" for size in maxtext.MODELS]
    sizes = [(row["tp"], row["dp"], row["microbatch_size"], row["microbatches"]) for row in rows]
    assert sizes == [(1, 512, 6, 1), (1, 512, 4, 1), (1, 512, 2, 1), (16, 32, 16, 1)]


def test_seconds_of_maxtext_by_its_own_count_of_operations():
    """16 B: 6 x 16.27e9 parameters x 2,048 tokens and 1.06e13 of attention, of 6 samples."""
    found = dict(maxtext.results(MAXTEXT.replace("{rate}", "100")))
    assert found["maxtext/16b/2"] == pytest.approx(
        6 * (6 * 16.273e9 * 2048 + 1.319e13) / 1e14, rel=2e-3
    )
