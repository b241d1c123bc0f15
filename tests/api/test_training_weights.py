"""`bfpp.train` begins with given weights, in every form that `bfpp run --weights` reads."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import bfpp
from bfpp.executor.model.model import build
from bfpp.executor.settings import Optimization
from tests.helpers.small_models import chain

pytestmark = pytest.mark.usefixtures("one_thread", "forked_processes")

TWO = bfpp.Experiment("1f1b", pp=2, microbatches=2)
STILL = Optimization(0.0, 0.0)
"""Nothing moves: weights stay those that a run begins with."""

SIZES = {"layers": 2, "hidden": 16, "heads": 2, "sequence": 8, "vocabulary": 257}
LLAMA = bfpp.Transformer(
    "tiny", **SIZES, mlp=24, gated=True, norm="rms", positions="rotary", tied_embeddings=False
)  # type: ignore[arg-type]


def weights_after(model: object, weights: Path | str | None) -> dict[str, torch.Tensor]:
    outcome = bfpp.train(
        model,  # type: ignore[arg-type]
        TWO,
        steps=1,
        weights=weights,
        optimization=STILL,
        collects_weights=True,
    )
    return dict(outcome.weights)


def test_a_model_of_ones_own_begins_with_a_state_dict(tmp_path: Path) -> None:
    source = tmp_path / "own.py"
    source.write_text(
        "from tests.helpers.small_models import chain\n\n\ndef make(seed):\n    return chain(4)\n"
    )
    layers = build(chain(4), range(4), 7)
    state: dict[str, Any] = {
        f"{number}.{name}": value + 1
        for number, layer in layers.items()
        for name, value in layer.state_dict().items()
    }
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        dcp.save(dict(state), checkpoint_id=tmp_path / "saved")
    found = weights_after(f"{source}:make", str(tmp_path / "saved"))
    assert {name: value.tolist() for name, value in found.items()} == {
        name: value.flatten().tolist() for name, value in state.items()
    }
    with pytest.raises(bfpp.InvalidConfiguration, match=r"the only form in which .* can be given"):
        weights_after(f"{source}:make", tmp_path)


def test_a_transformer_begins_with_safetensors_of_a_folder_or_a_file(tmp_path: Path) -> None:
    files = pytest.importorskip("safetensors.torch")
    random = weights_after(LLAMA, None)
    hidden, mlp, words = 16, 24, 257
    shapes = {"model.embed_tokens.weight": (words, hidden), "model.norm.weight": (hidden,),
              "lm_head.weight": (words, hidden)}  # fmt: skip
    for layer in range(2):
        own = {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (hidden, hidden),
               "self_attn.v_proj": (hidden, hidden), "self_attn.o_proj": (hidden, hidden),
               "mlp.gate_proj": (mlp, hidden), "mlp.up_proj": (mlp, hidden),
               "mlp.down_proj": (hidden, mlp), "input_layernorm": (hidden,),
               "post_attention_layernorm": (hidden,)}  # fmt: skip
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in own.items()}
    state = {name: torch.randn(shape) for name, shape in shapes.items()}
    files.save_file(state, tmp_path / "model.safetensors")
    of_folder, of_file = (
        weights_after(LLAMA, path) for path in (tmp_path, tmp_path / "model.safetensors")
    )
    assert of_folder.keys() == of_file.keys() == random.keys()
    assert all(torch.equal(of_folder[name], of_file[name]) for name in random)
    assert torch.equal(of_file["0.tokens.weight"], state["model.embed_tokens.weight"].flatten())
    pair = [state[f"model.layers.1.self_attn.{each}_proj.weight"].flatten() for each in "kv"]
    assert torch.equal(of_file["2.attention.key_value.weight"], torch.cat(pair))
