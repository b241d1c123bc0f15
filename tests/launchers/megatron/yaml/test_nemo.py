"""NeMo's YAML: its settings under the names that it has for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bfpp.launchers.launch_file import LaunchFile, read_launch_file
from bfpp.schedules import InvalidConfiguration

FILE = """
name: megatron_llama
trainer: { devices: 8, num_nodes: 2, precision: bf16, max_steps: 100 }
exp_manager: { name: ours }
model:
  mcore_gpt: True
  micro_batch_size: 1
  global_batch_size: 64
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 4
  virtual_pipeline_model_parallel_size: null
  encoder_seq_length: 4096
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 14336
  num_attention_heads: 32
  normalization: 'rmsnorm'
  bias: False
  activation: 'fast-swiglu'
  position_embedding_type: 'rope'
  share_embeddings_and_output_weights: False
  optim: { name: fused_adam, lr: 2e-4 }
  data: { seq_length: 4096, num_workers: 2 }
"""


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def of(old: str = "", new: str = "") -> LaunchFile:
        path = tmp_path / "llama.yaml"
        path.write_text(FILE.replace(old, new))
        return read_launch_file(str(path))

    return of


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", {"pp": 4, "tp": 2, "dp": 2, "sharding": "none", "loops": None}),
        ("fused_adam", "distributed_fused_adam", {"sharding": "partial"}),
        ("parallel_size: null", "parallel_size: 4", {"loops": 4}),
        (
            "parallel_size: null",
            "parallel_size: 4\n  overlap_p2p_comm: False",
            {"loops": 4, "pp_overlap": False},
        ),
    ],
)
def test_settings_mean_what_nemo_makes_of_them(
    read: Any, old: str, new: str, expected: dict[str, object]
) -> None:
    launch = read(old, new)
    assert {name: getattr(launch.experiment, name) for name in expected} == expected
    assert not [each.name for each in launch.ignored if each.matters]


def test_groups_of_queries_need_no_other_setting(read: Any) -> None:
    groups = "num_attention_heads: 32\n  num_query_groups: 8"
    assert read().experiment.transformer.kv_heads is None
    assert read("num_attention_heads: 32", groups).experiment.transformer.kv_heads == 8


def test_values_that_are_worked_out_of_others_are_read(
    read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_NODES", "4")
    worked_out = FILE.replace("num_nodes: 2", 'num_nodes: "${oc.env:OUR_NODES}"').replace(
        "ffn_hidden_size: 14336",
        "ffn_hidden_size: ${multiply:${divide_floor:7, 2}, ${.hidden_size}}\n"
        "  max_position_embeddings: ${.encoder_seq_length}",
    )
    launch = read(FILE, worked_out)
    assert launch.experiment.transformer.mlp_width == 3 * 4096
    assert launch.experiment.dp == 4
    assert "--max-position-embeddings 4096" in launch.understood
    assert not [each.name for each in launch.ignored if each.matters]


def test_what_cannot_be_worked_out_is_named_with_its_reason(read: Any) -> None:
    launch = read(
        "mcore_gpt: True",
        "seed: ${ours:1}\n  moe: ${oc.env:NO_SUCH_NAME}\n  path: ${data_dir}/x",
    )
    said = {each.name: each.reason for each in launch.ignored if each.matters}
    assert said == {
        "model.seed": "ours: a resolver that is not known",
        "model.moe": "depends on $NO_SUCH_NAME, which is not set",
        "model.path": "data_dir is no setting of the file",
    }


@pytest.mark.parametrize(
    "settings", ["decoder: { num_layers: 4 }", "mm_cfg: { llm: { freeze: True } }"]
)
def test_models_that_no_experiment_has_are_refused(read: Any, settings: str) -> None:
    with pytest.raises(InvalidConfiguration, match="are not modelled"):
        read("mcore_gpt: True", settings)
