"""YAML of nanotron: degrees, tokens and a model's sizes, as its examples say them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bfpp.launchers.launch_file import LaunchFile, read_launch_file
from bfpp.schedules import InvalidConfiguration

FILE = """
general:
  run: tiny_llama_%date_%jobid
model:
  ddp_bucket_cap_mb: 25
  dtype: bfloat16
  init_method: {std: 0.025}
  make_vocab_size_divisible_by: 1
  model_config:
    hidden_act: silu
    hidden_size: 2048
    intermediate_size: 11008
    is_llama_config: true
    num_attention_heads: 16
    num_hidden_layers: 28
    num_key_value_heads: 2
    rope_scaling: null
    tie_word_embeddings: true
    vocab_size: 128256
optimizer:
  accumulate_grad_in_fp32: true
  clip_grad: 1.0
  zero_stage: 0
parallelism:
  dp: 4
  pp: 2
  pp_engine: 1f1b
  tp: 2
  tp_mode: REDUCE_SCATTER
  tp_linear_async_communication: true
tokens:
  batch_accumulation_per_replica: 8
  micro_batch_size: 3
  sequence_length: 4096
  train_steps: 2000
"""


@pytest.fixture
def read(tmp_path: Path):
    def reader(**changes: str) -> LaunchFile:
        text = FILE
        for name, value in changes.items():
            [line] = [line for line in text.splitlines() if line.strip().startswith(f"{name}:")]
            text = text.replace(line, f"{line.partition(':')[0]}: {value}")
        (path := tmp_path / "config_tiny_llama.yaml").write_text(text)
        return read_launch_file(str(path))

    return reader


def test_a_file_says_the_whole_experiment(read) -> None:
    launch = read()
    experiment, model = launch.experiment, launch.experiment.transformer
    assert (launch.framework, experiment.schedule.name, model.name) == (
        "nanotron", "1f1b", "config_tiny_llama",
    )  # fmt: skip
    assert (experiment.dp, experiment.pp, experiment.tp, experiment.sharding) == (4, 2, 2, "none")
    assert (experiment.microbatches, experiment.microbatch_size) == (8, 3)
    assert (model.layers, model.hidden, model.heads, model.kv_heads) == (28, 2048, 16, 2)
    assert (model.sequence, model.vocabulary, model.mlp_width) == (4096, 128256, 11008)
    assert (model.gated, model.tied_embeddings, model.norm) == (True, True, "rms")
    assert (experiment.precision, experiment.recompute) == ("bf16", "none")
    assert (experiment.sequence_parallel, experiment.clipping) == (True, True)
    assert sum(experiment.layers_of_stages) == 28


def test_engines_and_settings_change_it(read) -> None:
    assert read(pp_engine="afab").experiment.schedule.name == "gpipe"
    assert read(pp="1").experiment.schedule.name == "1f1b"
    changed = read(
        zero_stage="1", accumulate_grad_in_fp32="false", tp_mode="ALL_REDUCE", dtype="float16"
    ).experiment
    assert (changed.sharding, changed.main_gradients) == ("partial", "bf16")
    assert (changed.sequence_parallel, changed.precision) == (False, "fp16")
    whole = read(make_vocab_size_divisible_by="1000").experiment.transformer
    assert whole.vocabulary == 130000
    recomputed = read(tp_mode="ALL_REDUCE\n  recompute_layer: true").experiment
    assert recomputed.recompute == "full"


def test_experts(read) -> None:
    experts = "true\n    moe_config: {num_experts: 8, top_k: 2, enable_shared_expert: true}"
    model = read(tie_word_embeddings=experts).experiment.transformer
    assert (model.experts.routed, model.experts.chosen) == (8, 2)
    assert (model.experts.width, model.experts.shared) == (1408, 5632)


def test_what_is_left_out_is_listed(read) -> None:
    matters = {each.name: each.matters for each in read().ignored}
    assert matters["model.ddp_bucket_cap_mb"]
    assert matters["parallelism.tp_linear_async_communication"]
    assert not matters["tokens.train_steps"]
    assert not matters["model.model_config.hidden_act"]
    assert "model.model_config.rope_scaling" not in matters


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pp_engine": "zb"}, "'zb' is not one of 1f1b, afab"),
        ({"zero_stage": "3"}, "must be 0 or 1"),
        ({"dtype": "int8"}, "'int8' is not one of"),
        ({"hidden_size": "null"}, "hidden_size: is missing"),
    ],
)
def test_what_it_cannot_be_is_refused_in_a_line(read, changes, reason) -> None:
    with pytest.raises(InvalidConfiguration, match=reason):
        read(**changes)
