"""Hugging Face configurations as models, and every way in which one can be wrong."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bfpp.schedules import InvalidConfiguration
from bfpp.sim.models.hugging_face import DIALECTS, read_config
from bfpp.sim.models.model import Transformer, load_model
from bfpp.sim.theory import compute

GPT2 = {
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}
BERT = {
    "_name_or_path": "google-bert/bert-large-uncased",
    "model_type": "bert",
    "hidden_act": "gelu",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "max_position_embeddings": 512,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "vocab_size": 30522,
}
LLAMA = {
    "_name_or_path": "meta-llama/Meta-Llama-3-8B",
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
MISTRAL = {
    **LLAMA,
    "_name_or_path": "mistralai/Mistral-7B-v0.1",
    "model_type": "mistral",
    "head_dim": 128,
    "max_position_embeddings": 32768,
    "vocab_size": 32000,
}


@pytest.fixture
def model_of(tmp_path):
    """Write a configuration, whole or in words, and read it as a model."""

    def read(config, name="config.json"):
        file = tmp_path / name
        file.write_text(config if isinstance(config, str) else json.dumps(config))
        name, sizes = read_config(file)
        return Transformer(name, **sizes)

    return read


def test_gpt2(model_of):
    model = model_of(GPT2, "gpt2.json")
    assert model == Transformer("gpt2", 12, 768, 12, 1024, 50257)
    assert model.parameters == pytest.approx(124.4e6, rel=0.002)


def test_gpt2_may_say_how_wide_its_mlp_is(model_of):
    assert model_of({**GPT2, "n_inner": None}).mlp is None
    assert model_of({**GPT2, "n_inner": 2048}).mlp == 2048


def test_bert(model_of):
    model = model_of(BERT)
    assert model == Transformer(
        "bert-large-uncased", 24, 1024, 16, 512, 30522, mlp=4096, causal=False
    )
    assert model.parameters == pytest.approx(335e6, rel=0.01)


def test_a_llama_has_a_gated_mlp_and_an_output_layer_of_its_own(model_of):
    model = model_of(LLAMA)
    assert (model.mlp, model.kv_heads, model.gated, model.tied_embeddings) == (
        14336,
        8,
        True,
        False,
    )
    attention, gated = 4096 * (2 * 4096 + 2 * 1024), 3 * 4096 * 14336
    assert compute.layer_parameters(model) == attention + gated


def test_it_is_the_preset(model_of):
    model, preset = model_of(LLAMA), load_model("llama3-8b")
    assert vars(model) | {"name": preset.name} == vars(preset)


@pytest.mark.parametrize("base", [GPT2, BERT, LLAMA, MISTRAL])
def test_a_file_may_say_whether_its_embeddings_are_tied(model_of, base):
    usual = DIALECTS[base["model_type"]].tied_embeddings
    for given, tied in ((None, usual), (True, True), (False, False)):
        assert model_of({**base, "tie_word_embeddings": given}).tied_embeddings is tied
    assert usual is (base in (GPT2, BERT))


def test_mistral(model_of):
    model = model_of(MISTRAL)
    assert (model.name, model.sequence, model.kv_heads) == ("Mistral-7B-v0.1", 32768, 8)


def test_heads_may_be_of_another_size_and_see_a_window(model_of):
    model = model_of({**MISTRAL, "head_dim": 64, "sliding_window": 4096})
    assert (model.query_width, model.key_width) == (2048, 512)
    assert model.attended == 4096 - 4096 / 16
    assert model_of({**MISTRAL, "sliding_window": None}).attended == 32768 / 2
    assert model_of(BERT).attended == 512


def test_heads_of_keys_are_as_many_as_heads_unless_it_says(model_of):
    config = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert model_of(config).kv_heads is None


def test_a_model_is_called_after_its_folder_if_it_has_no_name(tmp_path):
    (tmp_path / "mine").mkdir()
    for given in ({}, {"_name_or_path": ""}, {"_name_or_path": None}, {"_name_or_path": 3}):
        (tmp_path / "mine" / "config.json").write_text(json.dumps({**GPT2, **given}))
        assert read_config(tmp_path / "mine" / "config.json")[0] == "mine"


@pytest.mark.parametrize("base", [GPT2, BERT, LLAMA])
def test_each_size_that_is_missing_is_named(model_of, base):
    names = DIALECTS[base["model_type"]].names
    required = [names[key] for key in ("layers", "hidden", "heads", "sequence", "vocabulary")]
    for word in required:
        for wrong in ({key: base[key] for key in base if key != word}, {**base, word: None}):
            with pytest.raises(InvalidConfiguration, match=f"the key '{word}' is missing"):
                model_of(wrong)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("", "is not JSON: Expecting value"),
        ("{", "is not JSON: Expecting property name"),
        ('{"n_layer": ' + "9" * 5000 + "}", "is not JSON: Exceeds the limit"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "must be an object"),
        ("7", "must be an object"),
        ({}, "the key 'model_type' is missing; known are bert, deepseek_v2"),
        ({**GPT2, "model_type": "mamba"}, "model_type must be one of bert, .*not 'mamba'"),
        ({**GPT2, "model_type": ["gpt2"]}, r"model_type must be one of .*not \['gpt2'\]"),
        ({**GPT2, "n_layer": "12"}, "n_layer must be a whole number, not '12'"),
        ({**GPT2, "n_layer": 12.5}, "n_layer must be a whole number, not 12.5"),
        ({**GPT2, "n_layer": True}, "n_layer must be a whole number, not True"),
        ({**GPT2, "n_layer": float("nan")}, "n_layer must be a whole number, not nan"),
        ({**GPT2, "n_layer": 0}, "n_layer must be positive and finite, not 0"),
        ({**GPT2, "n_head": -12}, "n_head must be positive and finite, not -12"),
        ({**GPT2, "n_head": 7}, "7 heads do not divide 768"),
        ({**GPT2, "n_inner": "wide"}, "n_inner must be a whole number, not 'wide'"),
        ({**LLAMA, "num_key_value_heads": 5}, "5 heads do not divide 32"),
        ({**LLAMA, "num_key_value_heads": 0}, "num_key_value_heads must be positive"),
        ({**LLAMA, "intermediate_size": None}, "the key 'intermediate_size' is missing"),
        ({**LLAMA, "tie_word_embeddings": 1}, "tie_word_embeddings must be true or false, not 1"),
        ({**MISTRAL, "head_dim": "128"}, "head_dim must be a whole number, not '128'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(model_of, config, reason):
    with pytest.raises(InvalidConfiguration, match=reason) as caught:
        model_of(config)
    assert caught.value.field == "model"
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(InvalidConfiguration, match=r"cannot read .*No such file"):
        read_config(tmp_path / "config.json")
    (tmp_path / "config.json").write_bytes(b"\xff{}")
    with pytest.raises(InvalidConfiguration, match=r"is not JSON: .*decode"):
        read_config(str(tmp_path / "config.json"))


@pytest.mark.parametrize(
    ("base", "norm", "positions"),
    [
        (GPT2, "layer", "learned"),
        (BERT, "layer", "learned"),
        (LLAMA, "rms", "rotary"),
        (MISTRAL, "rms", "rotary"),
        ({**LLAMA, "model_type": "qwen2"}, "rms", "rotary"),
        ({**BERT, "model_type": "gpt_neox"}, "layer", "rotary"),
    ],
)
def test_norms_and_positions_go_by_the_dialect(model_of, base, norm, positions):
    model = model_of(base)
    assert (model.norm, model.positions) == (norm, positions)
    plain = replace(model, norm="layer", positions="learned")
    norms = 0 if norm == "layer" else 2 * model.layers * model.hidden
    places = 0 if positions == "learned" else model.sequence * model.hidden
    assert plain.parameters - model.parameters == norms + places


def test_a_model_file_of_a_config_is_the_same_model(model_of, tmp_path, bfpp):
    model = model_of(LLAMA)
    code, text, _ = bfpp("models", tmp_path / "config.json")
    (tmp_path / "mine.toml").write_text(text)
    assert code == 0
    assert vars(load_model(str(tmp_path / "mine.toml"))) | {"name": model.name} == vars(model)
    (tmp_path / "mine.toml").write_text(text.replace('"rms"', '"batch"'))
    with pytest.raises(InvalidConfiguration, match="mine: norm must be layer or rms, not 'batch'"):
        load_model(str(tmp_path / "mine.toml"))


MEASURED = ["calibrate", "--out", "profile.toml"]


@pytest.mark.parametrize(
    ("commands", "model", "told"),
    [
        ([MEASURED], "gpt-1.2b", "gpt-1.2b has tied embeddings, which a profile does not price"),
        ([["run", "gpipe"], MEASURED], "qwen3-30b-a3b", "qwen3-30b-a3b has experts, which the"),
    ],
)
def test_a_model_whose_layers_cannot_be_run_is_not_run(commands, model, told, bfpp):
    for command in commands:
        code, out, err = bfpp(*command, "--pp", 2, "--model", model)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"--model: {told}" in err
