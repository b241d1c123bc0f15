"""Searches that begin with an experiment or a launch file: what is faster, and by how much."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, reject, settings

from bfpp.api.predictions import predict
from bfpp.options.search_file import experiment_table, problem_alone
from bfpp.schedules import InvalidInput
from bfpp.sim.cluster.software_profiles import implementation_on
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.search.evaluation import evaluate
from bfpp.sim.search.problem import Problem
from tests.helpers.launched_experiments import of_megatron

Bfpp = Callable[..., tuple[int, str, str]]

SCRIPT = """\
torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 8 --hidden-size 2048 \\
    --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 \\
    --micro-batch-size 1 --global-batch-size 16 --bf16 --pipeline-model-parallel-size 4 \\
    --use-distributed-optimizer --lr 1e-4 --invented 3
"""
QUICK = "--schedule 1f1b --workers 1 --fix tp=1 --top 3"


@pytest.fixture
def _script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.sh").write_text(SCRIPT)


def found(bfpp: Bfpp, words: str) -> dict[str, Any]:
    code, out, error = bfpp(f"search --json {words}")
    assert code == 0, error
    record: dict[str, Any] = json.loads(out)
    return record


@pytest.mark.usefixtures("_script")
def test_it_says_what_the_best_saves(bfpp: Bfpp) -> None:
    record = found(bfpp, f"train.sh {QUICK}")
    simulated = json.loads(bfpp("simulate train.sh --json")[1])
    given, best = record["given"], record["configurations"][0]
    assert given["configuration"]["step_time"] == simulated["step_time"]
    assert best["step_time"] < simulated["step_time"]
    assert best["batch"] == given["configuration"]["batch"] == 16
    saved = simulated["step_time"] - best["step_time"]
    assert sum(given["longer"].values()) == pytest.approx(saved)
    assert [each["name"] for each in record["ignored"]] == ["--lr", "--invented"]
    assert record["understood"] == simulated["understood"]
    assert record["assumed"] == simulated["assumed"]
    code, out, error = bfpp(f"search train.sh {QUICK}")
    plain = " ".join(out.split())
    assert code == 0
    assert "train.sh as it is: 1f1b, pp 4, tp 1, dp 2: " in plain
    assert f"a step, {saved / simulated['step_time']:.1%}: bubble -" in plain
    assert error.startswith("bfpp search: train.sh: left out or taken otherwise: --invented;")


@pytest.mark.usefixtures("_script")
def test_all_forms_are_one_search(bfpp: Bfpp) -> None:
    assert bfpp("experiment train.sh --out job.toml")[0] == 0
    forms = ("train.sh", "job.toml", SCRIPT.replace("\\\n", " ").strip())
    names = ("step_time", "mfu", "memory_reserved_gb", "pp", "microbatches", "sharding")
    records = [found(bfpp, f"{QUICK} {'-- ' if ' ' in form else ''}{form}") for form in forms]
    best = [{name: each["configurations"][0][name] for name in names} for each in records]
    assert best[0] == best[1] == best[2]


@pytest.mark.usefixtures("_script")
def test_nothing_is_faster_than_the_best_and_options_change_the_search(bfpp: Bfpp) -> None:
    assert bfpp("experiment train.sh --out job.toml")[0] == 0
    said = Path("job.toml").read_text().splitlines(keepends=True)
    Path("job.toml").write_text("".join(line for line in said if "_overlap" not in line))
    only = "--fix pp=4 --fix loops=1 --fix microbatch_size=1 --fix sharding=partial --fix tp=1"
    code, out, error = bfpp(f"search job.toml --workers 1 --schedule 1f1b --recompute none {only}")
    assert code == 0, error
    assert "Nothing that was tried is faster." in " ".join(out.split())
    record = found(bfpp, f"train.sh {QUICK} --gpus 4 --batch 8 --cluster dgx-b200")
    assert (record["configurations"][0]["gpus"], record["configurations"][0]["batch"]) == (4, 8)
    assert record["given"]["configuration"]["gpus"] == 8


def test_weights_are_quantised_in_the_precision_that_is_searched(bfpp: Bfpp) -> None:
    sizes = "layers=4,hidden=1024,heads=8,sequence=1024,vocabulary=32000"
    record = found(
        bfpp,
        f"--model {sizes} --cluster dgx-h100 --gpus 4 --batch 4 --precision fp8-current "
        f"--fix quantised_weights=true {QUICK}",
    )
    assert record["configurations"][0]["precision"] == "fp8-current"


def test_what_says_no_model_is_refused_in_one_line(
    bfpp: Bfpp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("abstract.toml").write_text('schedule = "1f1b"\npp = 4\n')
    code, out, error = bfpp("search abstract.toml")
    assert (code, out) == (2, "")
    reason = "abstract.toml says no model, which a search divides: --model NAME does"
    assert error == f"bfpp search: FILE: {reason}\n"
    Path("train.sh").write_text("echo\n")
    code, _, error = bfpp("search train.sh")
    assert (code, error.count("\n")) == (2, 1)
    assert error.startswith("bfpp search: FILE: train.sh has no command that trains")
    code, _, error = bfpp("search train.txt")
    assert code == 2
    assert "must be a file named .toml, or a launch file, not 'train.txt'" in error


def test_what_is_trained_stays() -> None:
    """The batch, the precision and what training keeps; what another schedule decides does not."""
    table = experiment_table("job", Experiment(
        "zb-h1", pp=2, dp=4, tp=2, microbatches=4, model="mixtral-8x22b", cluster="dgx-h100",
        precision="fp8-current", recompute="layernorm", moments="bf16", clipping=True, ep=4, cp=1,
        sequence_parallel=True, dp_overlap=False, implementation="current", offload="selective",
    ))  # fmt: skip
    assert table["fixed"] == {"clipping": True, "moments": "bf16"}
    assert (table["gpus"], table["batch"], table["precision"]) == ([16], [16], ["fp8-current"])
    assert table["recompute"] == ["none", "layernorm,moe_act", "full", "layernorm"]
    assert table["offload"] == ["0", "selective"]
    assert table["schedule"][-1] == "zb-h1"
    assert {"ep", "cp", "pp_overlap", "tp"}.isdisjoint(table)


@settings(max_examples=30, deadline=None)
@given(of_megatron())
def test_an_experiment_alone_is_predicted_as_it_is(experiment: Experiment) -> None:
    try:
        predicted = predict(experiment).record
    except InvalidInput:
        reject()
    physical = experiment.require_physical()
    devices, batch = experiment.configuration.degrees.devices, experiment.configuration.batch
    problem = Problem(
        experiment.transformer, physical.cluster, (devices,), (batch,), ("1f1b",),
        implementation_on(physical.cluster, experiment.software),
    )  # fmt: skip
    (alone,) = evaluate(problem_alone(problem, experiment), [experiment.configuration])
    assert alone.step_time == pytest.approx(predicted["step_time"], rel=1e-12)
    assert alone.memory_reserved_gb == pytest.approx(predicted["memory_reserved_gb"], rel=1e-12)
