"""Llama, Mistral and Qwen: our transformer with their layers and weights.

Where `transformers` is installed, its own logits are what ours must be.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bfpp.executor.checkpoint import TensorPieces, load
from bfpp.executor.checkpoint.manifest import read_manifest
from bfpp.executor.model.transformer.hugging_face_config import config_of, details_of
from bfpp.executor.model.transformer.transformer import (
    Block,
    Embedding,
    OutputHead,
    Rotary,
    SelfAttention,
    TransformerSizes,
    turned,
)
from bfpp.schedules import InvalidConfiguration
from bfpp.sim.models.model import load_model
from tests.helpers.run_program import run_here

pytestmark = pytest.mark.usefixtures("one_thread")

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
SCALED = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "llama 3.1": {**LLAMA, "head_dim": 16, "rope_parameters": SCALED},
    "mistral": {**LLAMA, "model_type": "mistral", "sliding_window": 5},
    "qwen2": {**LLAMA, "model_type": "qwen2"},
    "qwen3": {**LLAMA, "model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True},
    "biased": {**LLAMA, "attention_bias": True},
}


def sizes_of(config: Path, context: int = 12) -> TransformerSizes:
    model = load_model(str(config))
    assert model.mlp is not None
    assert model.kv_heads is not None
    return TransformerSizes(
        layers=model.layers,
        hidden=model.hidden,
        heads=model.heads,
        context=context,
        vocabulary=model.vocabulary,
        mlp=model.mlp,
        kv_heads=model.kv_heads,
        gated=model.gated,
        norm=model.norm,
        positions=model.positions,
        head_dim=model.head_dim,
        window=model.window,
        biases=False,
        tied=model.tied_embeddings,
        **details_of(config),
    )


def layers_of(sizes: TransformerSizes) -> list[Callable[[], nn.Module]]:
    blocks = [partial(Block, sizes) for _ in range(sizes.layers)]
    return [partial(Embedding, sizes), *blocks, partial(OutputHead, sizes)]


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    hugging_face = pytest.importorskip("bfpp.executor.model.transformer.hugging_face")
    torch.manual_seed(0)
    config = {**CONFIGS[name]}
    theirs = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(config.pop("model_type"), **config)
    ).eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    theirs.save_pretrained(tmp_path)
    tokens = torch.randint(0, 300, (2, 12))
    sizes = sizes_of(tmp_path / "config.json")
    weights = hugging_face.Weights(tmp_path, sizes)
    value: Tensor = tokens
    for number, make in enumerate(layers_of(sizes)):
        value = weights.fill(number, make)(value)
    torch.testing.assert_close(value, theirs(tokens).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "tp"),
    [
        *(pytest.param(name, 1, marks=pytest.mark.slow) for name in ("mistral", "qwen2", "qwen3")),
        pytest.param("biased", 1, marks=pytest.mark.slow),
        ("qwen3", 2),
    ],
)
@pytest.mark.usefixtures("one_process")
def test_it_is_trained_written_and_read_again(
    name: str, tp: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hugging_face = pytest.importorskip("bfpp.executor.model.transformer.hugging_face")
    from bfpp.command_line import main

    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIGS[name]))
    words = (
        f"run breadth-first --pp 2 --tp {tp} --steps 2 --microbatches 2 --microbatch-size 1 "
        f"--model {config}"
    )
    told = ["--context", "12", "--backend", "local", "--precision", "float64", "--verify", "--json"]
    code = main([*words.split(), *told, "--checkpoint", str(tmp_path / "saved")])
    assert code == 0, capsys.readouterr().err
    assert json.loads(capsys.readouterr().out)["max_weight_error"] < 1e-10
    (saved,) = (tmp_path / "saved").glob("save-*")
    sizes, directory = sizes_of(config), tmp_path / "exported"
    exported = main(f"export {saved} --config {config} --precision fp64 --out {directory}".split())
    assert exported == 0, capsys.readouterr().err
    capsys.readouterr()
    assert sizes_of(directory / "config.json") == sizes
    (directory / hugging_face.INDEX).write_text('{"weight_map": {}}')  # of what was there before
    weights = hugging_face.Weights(directory, sizes)
    stored = {
        name: torch.empty(each.size, dtype=each.dtype)
        for name, each in read_manifest(saved).tensors.items()
    }
    load(saved, {name: TensorPieces(len(each), [(0, each)]) for name, each in stored.items()}, None)
    for number, make in enumerate(layers_of(sizes)):
        with torch.device("cpu"):
            layer = weights.fill(number, lambda make=make: make().double())
        for key, parameter in layer.named_parameters():
            is_tied = sizes.tied and key == "scores.weight"
            own = stored["0.tokens.weight" if is_tied else f"{number}.{key}"]
            assert torch.equal(parameter.flatten(), own)
    again = main([*words.split(), *told, "--weights", str(directory)])
    assert again == 0, capsys.readouterr().err
    assert json.loads(capsys.readouterr().out)["max_weight_error"] < 1e-10


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_is_written_that_says_the_same(name: str, tmp_path: Path) -> None:
    for file in (original := tmp_path / "config.json", again := tmp_path / "again.json"):
        config = CONFIGS[name] if file is original else config_of(sizes_of(original))
        file.write_text(json.dumps(config))
    sizes = sizes_of(original)
    assert sizes_of(again) == replace(sizes, head_dim=sizes.head_width)
    assert json.loads(again.read_text())["model_type"] == CONFIGS[name]["model_type"]


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"norm": "layer", "biases": True}, "it has LayerNorm and biases"),
        ({"causal": False}, "it has attention to later tokens"),
        ({"query_biases": True, "norms_queries": True}, "a mixture"),
        ({"output_biases": True}, "a mixture"),
        ({"query_biases": True, "output_biases": True, "window": 4}, "a mixture"),
    ],
)
def test_no_config_is_written_for_another_transformer(
    other: dict[str, Any], told: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    with pytest.raises(InvalidConfiguration, match=told):
        config_of(replace(sizes_of(tmp_path / "config.json"), **other))


def test_weights_that_are_not_the_models_are_refused(tmp_path: Path) -> None:
    hugging_face = pytest.importorskip("bfpp.executor.model.transformer.hugging_face")
    from safetensors.torch import save_file

    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    sizes = sizes_of(tmp_path / "config.json")
    fill = partial(hugging_face.Weights(tmp_path, sizes).fill, 0, partial(Embedding, sizes))
    for tensors, told in (
        ({}, "cannot be read"),
        ({"other": torch.zeros(1)}, "has no model.embed_tokens.weight"),
        ({"model.embed_tokens.weight": torch.zeros(2, 3)}, r"of shape \(2, 3\)"),
    ):
        if tensors:
            save_file(tensors, tmp_path / "model.safetensors")
        with pytest.raises(InvalidConfiguration, match=told):
            hugging_face.Weights(tmp_path, sizes).fill(*fill.args)


def test_what_lies_in_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    hugging_face = pytest.importorskip("bfpp.executor.model.transformer.hugging_face")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    weights = hugging_face.Weights(tmp_path, sizes_of(tmp_path / "config.json"))
    with pytest.raises(InvalidConfiguration, match=r"nor \.metadata is there; there is config"):
        _ = weights.names
    for name, file in (("step-10", ".metadata"), ("step-20", "model.safetensors")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
    with pytest.raises(InvalidConfiguration, match=r"checkpoints are: step-10 \(and 1 more\)"):
        _ = weights.names


INDEXES = {
    "": "cannot be read",
    "[" * 10**5: "cannot be read",
    "[1]": "has no weight_map",
    '{"weight_map": 1}': "has no weight_map",
    '{"weight_map": {"a": ["b"]}}': "has no weight_map",
    '{"weight_map": {"a": "../other/model.safetensors"}}': "is no file of its folder",
    '{"weight_map": {"a": "/etc/passwd"}}': "is no file of its folder",
    '{"weight_map": {"a": ".."}}': "is no file of its folder",
    '{"weight_map": {"a": "a\\u0000b"}}': "is no file of its folder",
    '{"weight_map": {"model.embed_tokens.weight": "absent.safetensors"}}': "cannot be read",
    '{"weight_map": {"model.embed_tokens.weight": "part.safetensors"}}': "cannot be read",
}


@pytest.mark.parametrize("index", INDEXES, ids=INDEXES.values())
def test_an_index_names_files_of_its_own_folder_or_is_refused(index: str, tmp_path: Path) -> None:
    hugging_face = pytest.importorskip("bfpp.executor.model.transformer.hugging_face")
    from safetensors.torch import save_file

    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    sizes = sizes_of(tmp_path / "config.json")
    save_file({"another": torch.zeros(1)}, tmp_path / "part.safetensors")
    (tmp_path / hugging_face.INDEX).write_text(index)
    with pytest.raises(InvalidConfiguration, match=INDEXES[index]):
        hugging_face.Weights(tmp_path, sizes).fill(0, partial(Embedding, sizes))


def test_a_file_of_the_folder_may_be_a_link_as_those_of_a_cache_are(tmp_path: Path) -> None:
    hugging_face = pytest.importorskip("bfpp.executor.model.transformer.hugging_face")
    from safetensors.torch import save_file

    (snapshot := tmp_path / "snapshot").mkdir()
    (snapshot / "config.json").write_text(json.dumps(LLAMA))
    name, part = "model.embed_tokens.weight", "part.safetensors"
    save_file({name: torch.ones(300, 32)}, tmp_path / "blob")
    (snapshot / part).symlink_to(tmp_path / "blob")
    (snapshot / hugging_face.INDEX).write_text(json.dumps({"weight_map": {name: part}}))
    sizes = sizes_of(snapshot / "config.json")
    filled = hugging_face.Weights(snapshot, sizes).fill(0, partial(Embedding, sizes))
    assert bool((filled.tokens.weight == 1).all())


@pytest.mark.parametrize("shapes", [((), ()), ((4, 5), (4, 6)), ((4,), (4, 32))])
def test_halves_that_do_not_fit_each_other_are_told_in_one_line(
    shapes: tuple[tuple[int, ...], ...], tmp_path: Path
) -> None:
    hugging_face = pytest.importorskip("bfpp.executor.model.transformer.hugging_face")
    from safetensors.torch import save_file

    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    sizes = sizes_of(tmp_path / "config.json")
    names = ["input_layernorm", *(f"self_attn.{each}_proj" for each in "qkv")]
    due = [(32,), (32, 32), *shapes]
    layer = {
        f"model.layers.0.{name}.weight": torch.zeros(shape)
        for name, shape in zip(names, due, strict=True)
    }
    save_file(layer, tmp_path / "model.safetensors")
    with pytest.raises(InvalidConfiguration, match=r"k_proj\.weight and model\.layers"):
        hugging_face.Weights(tmp_path, sizes).fill(1, partial(Block, sizes))


# Parts


def test_scores_depend_on_how_far_apart_places_are() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 8, dtype=torch.float64)
    angles = Rotary(100.0).cosines_and_sines(10, 8, query)
    queries = turned(query.expand(1, 10, 1, 8), *angles)[0, :, 0]
    keys = turned(key.expand(1, 10, 1, 8), *angles)[0, :, 0]
    scores = queries @ keys.T
    for apart in range(1, 9):
        along = scores.diagonal(apart)
        torch.testing.assert_close(along, along[:1].expand_as(along), rtol=1e-6, atol=1e-6)
    assert not torch.allclose(scores[0], scores[0, 0].expand(10))


def test_a_window_hides_what_is_farther_away(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["mistral"]))
    sizes = sizes_of(tmp_path / "config.json")
    torch.manual_seed(0)
    attention = SelfAttention(sizes)
    value = torch.randn(1, 12, 32)
    changed = value.clone()
    changed[:, 3] += 1
    differs = (attention(value) - attention(changed)).abs().amax(dim=(0, 2)) > 1e-6
    assert differs.tolist() == [3 <= place < 8 for place in range(12)]
    with pytest.raises(InvalidConfiguration, match="kv_heads: 3 must divide heads 4"):
        replace(sizes, kv_heads=3)


def test_other_scales_of_frequencies_are_refused(tmp_path: Path) -> None:
    config = {**LLAMA, "rope_scaling": {"type": "yarn", "factor": 4.0}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidConfiguration, match="rotary positions scaled by 'yarn'"):
        details_of(tmp_path / "config.json")


def test_weights_of_another_layout_are_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"model_type": "gpt2", "vocab_size": 257, "n_positions": 16, "n_embd": 16,
              "n_layer": 2, "n_head": 2}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = ("--model", tmp_path / "config.json", "--weights", tmp_path)
    ended = run_here(capsys, "1f1b", "--pp", 2, *model, "--steps", 1)
    assert ended.code == 2
    assert ended.line.startswith("bfpp run: --weights: are read of models laid out as Llama")
    assert "layer 0 of this one has places" in ended.line
