"""Experiments of Primus: YAML over files of its checkout."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from bfpp.launchers.launch_file import LaunchFile, read_launch_file
from bfpp.schedules import InvalidConfiguration

FILES = {
    "primus/configs/models/megatron/base.yaml": """
        swiglu: true
        add_bias_linear: false
        untie_embeddings_and_output_weights: true
        normalization: RMSNorm
        position_embedding_type: rope
        hidden_dropout: 0.0
        attention_dropout: 0.0
        kv_lora_rank: 512
        max_position_embeddings: 4096
        """,
    "primus/configs/models/megatron/small.yaml": """
        extends: base.yaml
        num_layers: 16
        hidden_size: 2048
        ffn_hidden_size: 8192
        num_attention_heads: 32
        vocab_size: 32000
        """,
    "primus/configs/modules/megatron/trainer_base.yaml": """
        bf16: true
        seq_length: 1024
        overlap_grad_reduce: false
        log_interval: 1
        load: null
        """,
    "primus/configs/modules/megatron/pre_trainer.yaml": """
        extends:
          - trainer_base.yaml
        global_batch_size: 16
        use_distributed_optimizer: true
        """,
    "examples/configs/MI300X/job.yaml": """
        exp_name: ${PRIMUS_NAME:job}
        modules:
          pre_trainer:
            framework: megatron
            config: pre_trainer.yaml
            model: ${PRIMUS_MODEL:small}.yaml
            overrides:
              seq_length: ${PRIMUS_TOKENS:2048}
              micro_batch_size: 2
              global_batch_size: 64
              tensor_model_parallel_size: 2
              pipeline_model_parallel_size: 2
              overlap_grad_reduce: True
              overlap_param_gather: false
              overlap_p2p_comm: false
              num_virtual_stages_per_pipeline_rank: 2
              stderr_sink_level: DEBUG
              load: null
              use_turbo_attention: true
              invented: 3
        """,
}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (path := tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return tmp_path / "examples/configs/MI300X/job.yaml"


def matters(launch: LaunchFile) -> dict[str, bool]:
    return {each.name: each.matters for each in launch.ignored}


def test_an_experiment_overrides_its_trainer_and_its_model(job: Path) -> None:
    launch = read_launch_file(str(job))
    experiment, model = launch.experiment, launch.experiment.transformer
    assert (launch.framework, experiment.cluster) == ("Primus", "mi300x")
    assert (model.layers, model.hidden, model.sequence, model.mlp_width) == (16, 2048, 2048, 8192)
    assert (model.gated, model.norm, model.tied_embeddings) == (True, "rms", False)
    assert (experiment.tp, experiment.pp, experiment.dp, experiment.loops) == (2, 2, 2, 2)
    assert (experiment.microbatch_size, experiment.microbatches) == (2, 16)
    assert (experiment.precision, experiment.sharding) == ("bf16", "partial")
    assert (experiment.dp_overlap, experiment.pp_overlap) == (True, False)
    assert "8 GPUs, the fewest whole nodes of 8" in launch.assumed


def test_only_what_an_experiment_itself_says_is_listed(job: Path) -> None:
    listed = matters(read_launch_file(str(job)))
    assert listed["invented"]
    assert listed["use_turbo_attention"]
    assert not listed["stderr_sink_level"]
    assert {"load", "log_interval", "--log-interval", "--kv-lora-rank"}.isdisjoint(listed)


def test_variables_and_their_defaults_are_written_out(job: Path, monkeypatch) -> None:
    monkeypatch.setenv("PRIMUS_TOKENS", "4096")
    assert read_launch_file(str(job)).experiment.transformer.sequence == 4096
    monkeypatch.setenv("PRIMUS_MODEL", "large")
    with pytest.raises(InvalidConfiguration, match=r"cannot read .*large\.yaml"):
        read_launch_file(str(job))


@pytest.mark.parametrize(("tensor", "pipeline", "gpus"), [(1, 1, 8), (8, 2, 16), (4, 3, 24)])
def test_whole_nodes_are_taken(job: Path, tensor: int, pipeline: int, gpus: int) -> None:
    text = job.read_text().replace("tensor_model_parallel_size: 2", "")
    text = text.replace("num_virtual_stages_per_pipeline_rank: 2", "num_layers: 12")
    text = text.replace(
        "pipeline_model_parallel_size: 2",
        f"tensor_model_parallel_size: {tensor}\n      pipeline_model_parallel_size: {pipeline}",
    )
    job.write_text(text)
    experiment = read_launch_file(str(job)).experiment
    assert experiment.configuration.degrees.devices == gpus


def test_without_the_checkout_it_is_named(job: Path, tmp_path: Path) -> None:
    (tmp_path / "primus").rename(tmp_path / "elsewhere")
    with pytest.raises(InvalidConfiguration, match="is a file of Primus's checkout"):
        read_launch_file(str(job))


def test_files_that_extend_each_other_are_refused(job: Path, tmp_path: Path) -> None:
    base = tmp_path / "primus/configs/models/megatron/base.yaml"
    base.write_text("extends: small.yaml\n")
    with pytest.raises(InvalidConfiguration, match="extends others too deeply"):
        read_launch_file(str(job))


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("model: ${PRIMUS_MODEL:small}.yaml", "model: [small.yaml]", "names no file, but"),
        ("tensor_model_parallel_size: 2", "tensor_model_parallel_size: [2, 4]", "whole number"),
    ],
)
def test_what_is_no_file_or_number_is_refused_in_a_line(job: Path, before, after, reason) -> None:
    job.write_text(job.read_text().replace(before, after))
    with pytest.raises(InvalidConfiguration, match=reason):
        read_launch_file(str(job))
