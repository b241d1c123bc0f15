"""Values that make replicas differ: each acts, on the command line and in files; elsewhere not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bfpp.api.explanation import explain
from bfpp.api.predictions import predict
from bfpp.schedules import InvalidConfiguration
from bfpp.sim.experiment.experiment import Experiment, experiment_of
from bfpp.sim.experiment.values import of_group
from bfpp.sim.experiment.values.option import UNEVEN
from bfpp.sim.experiment.without_effect import without_effect
from bfpp.traces.explain.looks import Cause

BASE = {
    "schedule": "1f1b", "pp": "4", "dp": "4", "microbatches": "4", "transfer": "0.1",
    "slow": "rank=0:1",
}  # fmt: skip
LENGTHS = {**BASE, "lengths": "100:9,800:1", "packing": "none"}
IMAGES = {**BASE, "images": "0:3,4:1", "image_seconds": "0.1"}
ROUTING = {**BASE, "ep": "2", "routing": "3,0,1,0", "expert_share": "0.5"}

ACTS = {
    "slow": (BASE, "rank=3:1.2"),
    "slow_links": (BASE, "link=1-2:9"),
    "jitter": (BASE, "0.1"),
    "pauses": (BASE, "gc:3/2"),
    "lengths": (BASE, "100:9,800:1"),
    "packing": ({**LENGTHS, "attention_share": "0.5"}, "best-fit"),
    "packed_length": (LENGTHS, "1600"),
    "attention_share": (LENGTHS, "0.5"),
    "images": (IMAGES, "9"),
    "image_seconds": (IMAGES, "0.5"),
    "routing": (ROUTING, "1,1,1,0"),
    "expert_share": (ROUTING, "0.9"),
    "factors": (BASE, "factors.csv"),
    "sampled_steps": ({**BASE, "jitter": "0.1"}, "5"),
    "sample_seed": ({**BASE, "jitter": "0.1"}, "7"),
}
"""For each value, an experiment in which another one than it has changes what is predicted."""


@pytest.fixture(autouse=True)
def _factors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "factors.csv").write_text("replica,rank,factor\n1,2,1.5\n")


def seconds(values):
    result = predict(experiment_of(values))
    return result.uneven.seconds.tolist() if result.uneven else [result.timeline.step_time]


def test_all_values_are_here():
    assert {*ACTS} == {*of_group(UNEVEN)}


@pytest.mark.parametrize("name", ACTS)
def test_a_value_changes_what_is_predicted_and_stands_in_files(name):
    base, value = ACTS[name]
    changed = {**base, name: value}
    assert seconds(changed) != seconds(base)
    assert name not in without_effect(experiment_of(changed))
    record = experiment_of(changed).record
    assert experiment_of(record).record == record
    assert str(record[name]) == value


@pytest.mark.parametrize(
    "name",
    [
        "packing",
        "packed_length",
        "attention_share",
        "image_seconds",
        "expert_share",
        "sampled_steps",
        "sample_seed",
    ],
)
def test_values_of_what_is_even_are_said_to_have_no_effect(name):
    values = {**BASE, "slow": "rank=3:1.2", name: ACTS[name][1]}
    assert [*without_effect(experiment_of(values))] == [name]


def test_images_need_the_time_of_one():
    with pytest.raises(InvalidConfiguration, match="images: needs --image-seconds"):
        predict(experiment_of({**BASE, "images": "3"}))


@pytest.mark.parametrize("options", ["1f1b --pp 4 --dp 4 --slow rank=3:1.5 --json"])
def test_simulate_reports_the_parts(bfpp, options):
    code, out, _ = bfpp(f"simulate {options}")
    uneven = json.loads(out)["uneven"]
    assert code == 0
    assert (uneven["replicas"], uneven["distinct_replicas"], uneven["steps"]) == (4, 1, 1)
    [source] = uneven["sources"]
    assert source == {"source": "slow", "slowdown": uneven["slowdown"], "share": 1.0}
    assert uneven["waits_for_replicas"] == 0


def test_models_report_memory_and_an_interval_around_their_own_time(bfpp):
    model = "1f1b --pp 4 --dp 4 --microbatches 8 --model bert-6.6b --cluster dgx1-v100 --tp 2"
    code, out, _ = bfpp(f"simulate {model} --slow rank=2,replica=1:1.5 --json")
    record = json.loads(out)
    even = json.loads(bfpp(f"simulate {model} --json")[1])
    assert code == 0
    assert record["step_time"] > 1.1 * even["step_time"]
    longer = record["step_time"] / even["step_time"]
    assert record["step_time_low"] == pytest.approx(even["step_time_low"] * longer)
    assert record["memory_reserved_gb"] == even["memory_reserved_gb"]
    assert record["uneven"]["even_step_time"] == pytest.approx(even["step_time"])
    assert record["uneven"]["waits_for_replicas"] > 0
    assert bfpp(f"simulate {model} --slow rank=2:1.5 --pieces")[0] == 2


def test_figures_show_the_slowest_replica_first_and_those_that_wait(bfpp):
    code, out, _ = bfpp(
        "simulate 1f1b --pp 2 --dp 4 --microbatches 2 --slow rank=1,replica=2:2 --text"
    )
    titles = [line for line in out.splitlines() if line.startswith("1f1b: 2 ranks")]
    assert code == 0
    assert titles[0].endswith("replica 2: slowest")
    assert titles[1].endswith("replica 0, and 2 like it")
    svg = "simulate 1f1b --pp 2 --dp 4 --microbatches 2 --jitter 0.2 --svg out.svg --html out.html"
    assert bfpp(svg)[0] == 0
    assert Path("out.svg").read_text().count("replica") >= 3


def test_explain_finds_the_wait_for_replicas_and_what_the_step_depends_on():
    slow = {**BASE, "slow": "stage=2,replica=3:2", "reduce": "0.5"}
    explained = explain(experiment_of(slow))
    by_name = {each.parameter: each.seconds_per_percent for each in explained.sensitivities}
    result = explained.result
    step = result.uneven.typical
    path = np.array(step.critical_path)
    own = (step.end - step.start)[path].sum()
    assert own == pytest.approx(step.step_time)
    operations = ("forward", "backward", "transfer", "reduce")
    assert sum(by_name[each] for each in operations) * 100 == pytest.approx(step.step_time)
    stages = [by_name[f"stage.{stage}"] for stage in range(4)]
    assert stages[2] == max(stages)
    other = step.of((result.uneven.slowest + 1) % 2)
    assert (other.ready < other.start).any()
    assert explained.causes.mean_rank[Cause.REPLICAS] == 0


def test_where_replicas_do_not_differ_they_are_refused(bfpp):
    schedule = bfpp("schedule --pp 2 --microbatches 2 --slow rank=1:2 --seconds 1")
    assert schedule[0] == 2
    assert "slow: bfpp schedule simulates alike replicas alone" in schedule[2]
    Path("table.csv").write_text(
        "schedule,model,cluster,pp,microbatches,slow,step_seconds\n"
        "1f1b,bert-6.6b,dgx1-v100,4,8,rank=1:2,1\n"
    )
    code, _, err = bfpp("validate table.csv")
    assert code == 2
    assert "bfpp validate simulates alike replicas alone" in err
    assert not Experiment("1f1b").is_uneven
