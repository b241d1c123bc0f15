"""Experiments: what values mean, and how they are said in files."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.options.experiment_file import experiment_text, read_experiment
from bfpp.options.shared import pipeline
from bfpp.schedules import InvalidConfiguration, Sharding, registered_schedules
from bfpp.schedules.families.gpipe import GPipe
from bfpp.schedules.layout.layout import Layout
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.experiment.experiment import Experiment, experiment_of
from bfpp.sim.experiment.values import DEFAULTS, OPTIONS
from bfpp.sim.models.model import load_model
from bfpp.sim.models.model_text import text_of
from bfpp.sim.presets.files import preset_names

PHYSICAL = {"model": "bert-6.6b", "cluster": "dgx-a100"}


@st.composite
def values(draw: st.DrawFn) -> dict[str, object]:
    """Some values of an experiment, by name."""
    kinds = {
        "count": st.integers(1, 8),
        "seconds": st.floats(0.5, 10).map(lambda number: round(number, 3)),
        "flag": st.booleans(),
    }
    chosen = draw(st.sets(st.sampled_from(sorted(OPTIONS))))
    found: dict[str, object] = {"schedule": draw(st.sampled_from(list(registered_schedules())))}
    for name in sorted(chosen):
        option = OPTIONS[name]
        if option.choices:
            found[name] = draw(st.sampled_from(option.choices))
        elif option.kind in kinds:
            found[name] = draw(kinds[option.kind])
    return found


@settings(max_examples=60, derandomize=True, deadline=None)
@given(values())
def test_what_is_written_is_read_again(tmp_path_factory, given_values):
    experiment = experiment_of(given_values)
    path = tmp_path_factory.mktemp("experiment") / "e.toml"
    path.write_text(experiment_text(experiment))
    assert read_experiment(str(path)) == experiment
    as_texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in given_values.items()
    }
    assert experiment_of(as_texts) == experiment


def test_a_command_takes_the_file_and_options_change_it(answer, bfpp, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "--pp 4 --loops 2 --microbatches 8 --transfer 0.5 --sharding fsdp --gather 0.1"
    first = answer(f"simulate depth-first {words}")
    assert bfpp(f"experiment depth-first {words} --out e.toml")[0] == 0
    assert answer("simulate e.toml") == first
    changed = answer("simulate e.toml --microbatches 4 --sequence 4")
    assert changed == answer(
        f"simulate depth-first {words.replace('batches 8', 'batches 4')} --sequence 4"
    )
    assert answer("explain e.toml")["step_time"] == first["step_time"]
    assert answer("orders e.toml") == answer("orders depth-first --pp 4 --loops 2")
    assert answer("compare e.toml")["schedules"][0] == first


def test_files_that_an_experiment_names_are_beside_it(tmp_path):
    model = "layers = 4\nhidden = 512\nheads = 8\nsequence = 64\nvocabulary = 1000\n"
    (tmp_path / "own.toml").write_text(model)
    path = tmp_path / "e.toml"
    path.write_text('schedule = "1f1b"\nmodel = "own.toml"\ncluster = "dgx-h100"\nlayers = 8\n')
    experiment = read_experiment(str(path))
    assert (experiment.transformer.hidden, experiment.transformer.layers) == (512, 8)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("pp = 4", "names no schedule: bfpp experiment writes experiment files"),
        ('schedule = "gpipe"\npp = 0', "pp: must be a whole number of at least 1, not 0"),
        ('schedule = "gpipe"\npp = "four"', "pp: must be a whole number"),
        ('schedule = "gpipe"\nclipping = 2', "clipping: must be true or false"),
        ('schedule = "gpipe"\nforward = -1', "forward: must be a number of at least 0"),
        ('schedule = "gpipe"\nsharding = "most"', "sharding: 'most' is not one of none"),
        ('schedule = "gpipe"\nsequence = 4', "sequence: no such value"),
        ('schedule = "gpipe"\nmicrobatch = 4', "microbatch: .*did you mean 'microbatches'"),
        ('schedule = "gpip"', "did you mean 'gpipe'"),
        ('format = "bfpp experiment 9"', "is not 'bfpp experiment 1'"),
        ("passes = 3", "is a profile"),
        ("pp = = 4", "is not TOML"),
    ],
)
def test_a_file_that_cannot_be_is_refused_in_one_line(bfpp, tmp_path, text, reason):
    path = tmp_path / "e.toml"
    path.write_text(text)
    code, out, err = bfpp("simulate", str(path))
    assert (code, out, err.count("\n")) == (2, "", 1)
    with pytest.raises(InvalidConfiguration, match=reason):
        read_experiment(str(path))


def test_orders_and_runs_leave_out_the_model_that_an_experiment_predicts(tmp_path):
    cut = "Et*3|t*4|t*4|t*4|t*4|t*4|t*4|t*5L"
    model = {"model": "llama3-8b", "cluster": "dgx-h100", "dp": 2}
    path = tmp_path / "e.toml"
    for name, cuts in (("interleaved", {"cut": cut}), ("zb-v", {}), ("1f1b", {})):
        experiment = Experiment(name, pp=4, **model, **cuts)
        path.write_text(experiment_text(experiment))
        found = pipeline(argparse.Namespace(schedule=str(path), trust=False)).configuration
        loops = {"loops": 2} if cuts else {}
        assert found == Experiment(name, pp=4, dp=2, **loops).configuration


def test_other_names_mean_the_same():
    named = experiment_of(
        {"schedule": "interleaved", "virtual_stages": 4, "sharding": "zero3", "microbatches": 8}
    )
    assert named == Experiment("depth-first", loops=4, sharding=Sharding.FULL)


def test_a_cluster_made_in_python_has_no_name_to_write_but_a_model_is_its_sizes():
    model = replace(load_model("deepseek-v3"), layers=8)
    experiment = Experiment("1f1b", model=model, cluster="dgx-a100", implementation="current")
    read = experiment_of(experiment.record)
    assert read.transformer == model
    assert read.changed(model=model) == experiment
    with pytest.raises(InvalidConfiguration, match="cluster: was made in Python"):
        _ = experiment.changed(cluster=load_cluster("dgx-a100")).record


@pytest.mark.parametrize(
    ("values", "software"),
    [
        ({}, None),
        ({"model": "bert-6.6b", "cluster": "dgx1-v100"}, "paper"),
        ({"model": "bert-6.6b", "cluster": "dgx-h100"}, "current"),
        ({"model": "bert-6.6b", "cluster": "dgx-h100", "implementation": "megatron"}, "megatron"),
    ],
)
def test_the_software_of_a_physical_step_is_always_written(values, software):
    """So that a step means the same when the cluster's file names another."""
    experiment = Experiment("1f1b", **values)
    assert experiment.software == software
    assert experiment.record.get("implementation") == software


@pytest.mark.parametrize("name", preset_names("model"))
def test_every_model_is_read_from_its_sizes(name):
    assert load_model(text_of(load_model(name))) == load_model(name)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("layers=8,hidden", "'hidden' is not a size, as layers=24 is"),
        ("layers=8,layers=9", "layers is given twice"),
        ("layers=8", "own: the key 'hidden' is missing"),
        ("layers=8,wide=9", "own: unknown key 'wide'"),
        ("layers=many", "own: layers must be a whole number, not 'many'"),
        ("experts.routed=8,experts=8", "experts is given twice"),
        ("experts=8,experts.routed=8", "experts.routed is given twice"),
    ],
)
def test_sizes_that_are_no_model_are_refused(text, reason):
    with pytest.raises(InvalidConfiguration) as refused:
        load_model(text)
    assert reason in str(refused.value)


def test_a_model_decides_what_is_not_said():
    layers = Experiment("1f1b", **PHYSICAL).configuration.layout
    assert set(layers.units_per_stage) == {8}
    fewer = Experiment("1f1b", cut="fewer-at-ends", layers=30, **PHYSICAL)
    assert fewer.configuration.layout.units_per_stage == (7, 8, 8, 7)
    costs = fewer.costs
    assert isinstance(costs, PhysicalCosts)
    assert costs.cut == (7, 8, 8, 7)
    looped = Experiment("breadth-first", loops=2, cut="3,5,4,4,4,4,4,4", **PHYSICAL)
    assert looped.require_physical().layers(looped.configuration.layout).of_unit.tolist() == [
        3, 5, 4, 4, 4, 4, 4, 4,
    ]  # fmt: skip


def test_every_default_is_what_the_options_say():
    assert Experiment("gpipe") == Experiment("gpipe", **DEFAULTS)


@pytest.mark.parametrize("name", ["p2p", "gather_per", "reduce_per", "sharding"])
def test_a_choice_that_is_not_there_is_blamed_by_its_name(name):
    with pytest.raises(InvalidConfiguration, match=f"^{name}: 'never' is not one of"):
        Experiment("1f1b", pp=2, microbatches=2, **{name: "never"})


WRONG = {
    "count": ("4", 1.5, True, 0, -1, 10**12),
    "seconds": ("4", True, -1, math.nan, math.inf),
    "number": ("4", True, -1, math.nan),
    "flag": ("true", 1, 0.0),
    "choice": ("nothing", "", 4),
    "name": (4, 0.0, True),
    "text": (4, 0.0, True),
    "offload": ("nothing", 1.5, True, -1),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_value_of_a_wrong_type_is_refused_in_one_line(name):
    wrong = (*WRONG[OPTIONS[name].kind], b"1", [1], {"a": 1}, {1}, object(), np.arange(200))
    for value in wrong:
        with pytest.raises(InvalidConfiguration) as refused:
            Experiment("1f1b", **{name: value})
        assert refused.value.field == name
        assert "\n" not in str(refused.value)


def test_numbers_of_numpy_are_numbers():
    experiment = Experiment("1f1b", pp=np.int64(2), forward=np.float32(0.5), backward=np.int32(1))
    assert len(experiment.graph()) == len(Experiment("1f1b", pp=2).graph())
    assert json.dumps([experiment.pp, experiment.forward, experiment.backward]) == "[2, 0.5, 1]"


def test_layouts_hold_plain_numbers_whatever_they_are_given():
    two = np.int64(2)
    layout = Layout(two, two, units_per_stage=np.int64(1), placement=np.arange(2))
    assert layout == Layout(2, 2)
    every = [layout.pp, layout.microbatches, layout.placement, layout.units_per_stage]
    assert json.dumps(every) == "[2, 2, [0, 1], [1, 1]]"


@pytest.mark.parametrize("schedule", [4, None, b"1f1b", ["1f1b"], object()])
def test_what_is_no_schedule_is_refused(schedule):
    with pytest.raises(InvalidConfiguration, match=r"^schedule: must be a Schedule, or a name"):
        Experiment(schedule)


def test_a_class_is_no_schedule_yet():
    with pytest.raises(InvalidConfiguration, match=r"^schedule: is the class GPipe, not one"):
        Experiment(GPipe)
