"""NeMo's YAML: its settings under the names that it has for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bfpp.launchers.launch_file import LaunchFile, read_launch_file

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
