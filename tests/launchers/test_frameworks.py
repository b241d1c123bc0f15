"""Experiments as Megatron-LM and torchtitan take them, and what these cannot say."""

from __future__ import annotations

import shlex
import tomllib
from contextlib import suppress
from dataclasses import replace

import pytest

from bfpp.launchers import frameworks
from bfpp.launchers.frameworks import FRAMEWORKS, framework_config
from bfpp.launchers.launch import FrameworkConfig
from bfpp.options.experiment_file import experiment_text
from bfpp.options.shared import words
from bfpp.schedules import InvalidConfiguration, find_schedule
from bfpp.schedules.families.registry import BUILT_IN
from bfpp.schedules.layout.cut import given_cut
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.experiment.values import DEFAULTS, OPTIONS, of_group
from bfpp.sim.experiment.values.option import ABSTRACT, MEASURED, UNEVEN
from bfpp.sim.models.model import load_model
from tests.helpers.orders import action_rows
from tests.helpers.pytorch_schedules import looped

DENSE = Experiment(
    "1f1b", model=replace(load_model("llama3-8b"), name="small", layers=8, sequence=512),
    cluster="dgx-h100", implementation="current", pp=4, dp=4, tp=2, microbatches=8,
)  # fmt: skip
SPARSE = DENSE.changed(
    model=replace(load_model("deepseek-v3"), layers=8, dense_layers=1, sequence=512),
    cluster="dgx-b200", ep=8, sharding="fsdp", precision="mxfp8", cp=2,
)  # fmt: skip
OTHER = {
    "pp": 2, "dp": 8, "tp": 4, "cp": 4, "ep": 16, "dp_replicate": 2, "microbatches": 16,
    "microbatch_size": 2, "sharding": "none", "layers": 16, "seq_length": 1024,
    "prediction": False, "implementation": "paper", "precision": "fp8-current",
    "update_rule": "momentum", "moments": "bf16", "master_weights": "fp16",
    "main_gradients": "bf16", "recompute": "full", "tp_overlap": "chunked",
    "attention": "unfused", "sequence_parallel": False, "cp_comm": "all-gather",
    "capacity_factor": 1.25,
    "dispatch": "deduplicated", "cut": "3,2,2,1", "p2p": "fifo", "eager": True,
    "gather_per": "step", "reduce_per": "step", "run_length": 2, "weight_buffers": 4, "prefetch": 2,
    "offload": "all", "offload_share": 0.5, "offload_ahead": 2,
    "offload_modules": "core_attn,moe_act",
}  # fmt: skip
"""Another value of options that are no flags."""

BESIDE = {
    "eager": {"p2p": "fifo"}, "attention": {"cp": 1, "ep": 1, "sharding": "none"},
    "implementation": {"attention": "fused", "sequence_parallel": True},
    "capacity_factor": {"dispatch": "all-to-all"}, "offload_share": {"offload": "all"},
    "offload_modules": {"offload": "all"},
}  # fmt: skip
"""Conditions for another value to be allowed."""

NOT_CHOSEN = {
    *("model", "cluster", "constants", "expert_imbalance", "loops", "units_per_stage", "balance"),
    *of_group(ABSTRACT), *of_group(MEASURED), *of_group(UNEVEN),
}  # fmt: skip


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_nothing_is_left_out_in_silence(framework):
    """Whatever an experiment says changes the text, or is told to be missing."""
    for name in OPTIONS.keys() - NOT_CHOSEN:
        value = OTHER[name] if name in OTHER else not getattr(SPARSE, name)
        if name == "dp_replicate":
            continue  # has no costs so far
        usual = DENSE if name == "sequence_parallel" else SPARSE
        beside = usual.changed(**BESIDE.get(name, {}))
        known = framework_config(beside, framework)
        assert framework_config(beside.changed(**{name: value}), framework) != known, name


def test_a_writer_that_reads_nothing_says_so_of_all(monkeypatch):
    """A new writer lists what it forgets; what it reads, it no longer lists."""
    everything = SPARSE.changed(tp=2, recompute="selective", cut="3,2,2,1", gather_per="step")
    new = frameworks.Framework("torch", {(0, 0): lambda _: FrameworkConfig("train\n", ())})
    monkeypatch.setitem(frameworks.FRAMEWORKS, "new", new)

    def said(experiment):
        missing = framework_config(experiment, "new").missing
        return {each.partition(" = ")[0]: each for each in missing}

    missing = said(everything)
    assert [missing[name] for name in ("tp", "precision", "recompute", "cut", "pp", "model")] == [
        "tp = 2", "precision = mxfp8", "recompute = selective", "cut = 3,2,2,1", "pp = 4",
        "model = deepseek-v3",
    ]  # fmt: skip
    for name, value in OTHER.items():
        changed = everything.changed(**BESIDE.get(name, {})).changed(**{name: value})
        with suppress(InvalidConfiguration):
            alike = value in ("none", DEFAULTS[name])
            assert name in said(changed) or alike or name in NOT_CHOSEN | {"implementation"}, name
    read = lambda launch: FrameworkConfig(f"train --tp {launch.tp} {launch.precision}\n", ())  # noqa: E731
    new = frameworks.Framework("torch", {(0, 0): read})
    monkeypatch.setitem(frameworks.FRAMEWORKS, "new", new)
    assert said(everything).keys() == missing.keys() - {"tp", "precision"}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_no_experiment_decides_is_not_changed(framework):
    for clipping in (False, True):
        found = framework_config(DENSE.changed(clipping=clipping), framework)
        assert "clip" not in found.text
        assert any("clipping" in each for each in found.missing) != clipping


def test_a_single_rank_runs_micro_batches_one_by_one():
    for framework in FRAMEWORKS:
        for schedule, is_missing in (("gpipe", True), ("breadth-first", True), ("1f1b", False)):
            one = DENSE.changed(schedule=schedule, pp=1, loops=None)
            missing = framework_config(one, framework).missing
            assert any(f"schedule {schedule}" in each for each in missing) == is_missing


def test_what_overlap_gives_is_said_where_it_is_missing():
    missing = framework_config(DENSE, "megatron").missing
    [found] = [each for each in missing if "P2P overlap" in each]
    assert found.endswith("% longer")
    blocking = framework_config(DENSE.changed(pp_overlap=False), "megatron").missing
    assert not any("P2P overlap" in each for each in blocking)


def test_the_size_of_a_step_is_always_written():
    assert words(Experiment("1f1b")) == ["1f1b", "--pp", "4", "--microbatches", "8"]
    assert "pp = 4" in experiment_text(DENSE.changed(model="llama3-8b"))


@pytest.mark.parametrize("schedule", [each.name for each in BUILT_IN])
def test_every_schedule_is_run_or_said_to_be_missing(schedule):
    experiment = DENSE.changed(schedule=schedule)
    here = experiment.configuration
    flags = framework_config(experiment, "megatron")
    assert any(f"schedule {schedule}" in each for each in flags.missing) or schedule in (
        "1f1b", "depth-first", "breadth-first",
    )  # fmt: skip
    there = framework_config(experiment, "torchtitan", (0, 2))
    parallelism = tomllib.loads(there.text)["parallelism"]
    named = any(f"schedule {schedule}" in each for each in there.missing)
    by_file = "pipeline_parallel_schedule_csv" in parallelism
    if here.layout.copies or here.layout.slices > 1:
        assert named
        assert "pipeline_parallel_schedule" not in parallelism
    else:
        assert named == by_file
        modules = parallelism["module_fqns_per_model_part"]
        assert len(modules) == here.layout.stages


@pytest.mark.torch
def test_interleaved_1f1b_is_named_where_pytorch_runs_our_order(pipelining):
    sequences = [None, 3, 4, 6, 8, 12]
    for microbatches in range(3, 13):
        for sequence in sequences:
            schedule = find_schedule("depth-first", sequence=sequence)
            experiment = DENSE.changed(
                schedule=schedule, pp=3, loops=2, microbatches=microbatches, layers=12
            )
            try:
                layout = experiment.configuration.layout
                schedule.require(layout)
            except InvalidConfiguration:
                continue
            theirs = None
            with suppress(ValueError):  # its rounds are to be of equal length
                theirs = looped(pipelining, "Interleaved1F1B", 3, microbatches, 2)
            ours = action_rows("depth-first", layout, sequence=sequence)
            there = framework_config(experiment, "torchtitan", (0, 2))
            assert ("pipeline_parallel_schedule_csv" not in there.text) == (theirs == ours)


def flags_of(experiment):
    found: dict[str, list[str]] = {}
    name = ""
    for word in shlex.split(framework_config(experiment, "megatron").text.replace("\\\n", "")):
        if word.startswith("--"):
            name, _, value = word.partition("=")
            found[name] = [value] if value else []
        elif name:
            found[name].append(word)
    return found


def test_megatron_divides_and_cuts_alike():
    experiment = DENSE.changed(
        schedule="depth-first", loops=2, sequence=8, microbatches=16, cut="fewer-at-ends"
    )
    flags = flags_of(experiment)
    degrees = [int(flags[f"--{each}-model-parallel-size"][0]) for each in ("tensor", "pipeline")]
    devices = int(flags["--nnodes"][0]) * int(flags["--nproc-per-node"][0])
    assert devices == experiment.configuration.degrees.devices
    assert int(flags["--global-batch-size"][0]) == experiment.configuration.batch
    assert degrees == [experiment.tp, experiment.pp]
    layout = flags["--pipeline-model-parallel-layout"][0]
    assert given_cut(layout) == experiment.layers_of_stages
    assert flags["--microbatch-group-size-per-virtual-pipeline-stage"] == ["8"]
    even = flags_of(experiment.changed(cut=None))
    assert even["--num-virtual-stages-per-pipeline-rank"] == ["2"]
    assert "--pipeline-model-parallel-layout" not in even


@pytest.mark.parametrize(
    ("kv_heads", "groups"), [(None, None), (32, None), (8, ["8"]), (1, ["1"])], ids=str
)
def test_heads_are_groups_where_they_share_keys(kv_heads, groups):
    """A group of one head is no group: Megatron-LM's own flags have none then."""
    model = replace(load_model("llama3-8b"), layers=8, heads=32, kv_heads=kv_heads)
    flags = flags_of(DENSE.changed(model=model))
    assert flags["--num-attention-heads"] == ["32"]
    assert flags.get("--num-query-groups") == groups
    assert ("--group-query-attention" in flags) == (groups is not None)
    latents = flags_of(SPARSE.changed(model=replace(SPARSE.transformer, kv_heads=kv_heads)))
    assert "--multi-latent-attention" in latents
    assert latents.keys().isdisjoint({"--num-query-groups", "--group-query-attention"})


def test_torchtitan_takes_the_same_batch():
    for values in ({}, {"pp": 1, "dp": 4}, {"microbatch_size": 2}):
        experiment = DENSE.changed(**values)
        tables = tomllib.loads(framework_config(experiment, "torchtitan", (0, 2)).text)
        training, parallelism = tables["training"], tables["parallelism"]
        assert training["global_batch_size"] == experiment.configuration.batch
        of_pipeline = parallelism.get("pipeline_parallel_microbatch_size")
        assert of_pipeline == (experiment.microbatch_size if experiment.pp > 1 else None)
        replicas = (
            parallelism["data_parallel_replicate_degree"]
            * parallelism["data_parallel_shard_degree"]
        )
        passes = training["global_batch_size"] / (replicas * training["local_batch_size"])
        assert passes == (1 if experiment.pp > 1 else experiment.microbatches)


def test_the_command_prints_what_others_take(bfpp):
    given = "1f1b --model llama3-8b --cluster dgx-h100 --implementation current --pp 2 --tp 4"
    code, out, _ = bfpp(f"experiment {given} --format megatron")
    assert code == 0
    assert "--pipeline-model-parallel-size 2" in out
    assert out.startswith("# for megatron-core 0.20, ")
    assert "\n# add: data, tokenizer, " in out
    code, out, _ = bfpp(f"experiment {given} --format torchtitan --release 0.2 --json")
    assert code == 0
    assert '"torchtitan": {"text": "[model]' in out
    for release, text in (("0.3", "--training.seq_len"), ("0.4", "--training.max_context_length")):
        code, out, _ = bfpp(f"experiment {given} --format torchtitan --release {release}")
        assert out.startswith(f"# for torchtitan {release}, as asked for\n")
        assert text in out
    code, _, error = bfpp("experiment 1f1b --format megatron")
    assert code == 2
    assert "--model" in error
    assert DEFAULTS["model"] is None
