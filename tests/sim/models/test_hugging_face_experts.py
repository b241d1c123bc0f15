"""Hugging Face configurations of models with experts: they are the presets, of published sizes."""

from __future__ import annotations

import json

import pytest

from bfpp.schedules import InvalidConfiguration
from bfpp.sim.models.model import load_model

ROTARY = {"tie_word_embeddings": False, "sliding_window": None}
MIXTRAL = {
    **ROTARY,
    "_name_or_path": "mistralai/Mixtral-8x22B-v0.1",
    "model_type": "mixtral",
    "hidden_size": 6144,
    "intermediate_size": 16384,
    "max_position_embeddings": 65536,
    "num_attention_heads": 48,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 56,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "vocab_size": 32000,
}
QWEN = {
    **ROTARY,
    "_name_or_path": "Qwen/Qwen3-235B-A22B",
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "mlp_only_layers": [],
    "moe_intermediate_size": 1536,
    "num_attention_heads": 64,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 94,
    "num_key_value_heads": 4,
    "vocab_size": 151936,
}
DEEPSEEK = {
    "_name_or_path": "deepseek-ai/DeepSeek-V3",
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "topk_group": 4,
    "v_head_dim": 128,
    "vocab_size": 129280,
}
DEEPSEEK_2 = {
    **DEEPSEEK,
    "_name_or_path": "deepseek-ai/DeepSeek-V2",
    "model_type": "deepseek_v2",
    "first_k_dense_replace": 1,
    "hidden_size": 5120,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "n_routed_experts": 160,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 60,
    "num_nextn_predict_layers": None,
    "topk_group": 3,
    "vocab_size": 102400,
}
KIMI = {
    **DEEPSEEK,
    "_name_or_path": "moonshotai/Kimi-K2-Base",
    "model_type": "kimi_k2",
    "first_k_dense_replace": 1,
    "n_group": 1,
    "n_routed_experts": 384,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "num_nextn_predict_layers": 0,
    "topk_group": 1,
    "vocab_size": 163840,
}
GPT_OSS = {
    "_name_or_path": "openai/gpt-oss-120b",
    "model_type": "gpt_oss",
    "head_dim": 64,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "max_position_embeddings": 131072,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "num_local_experts": 128,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0},
    "sliding_window": 128,
    "vocab_size": 201088,
}

PRESETS = {
    "mixtral-8x22b": MIXTRAL,
    "qwen3-235b": QWEN,
    "deepseek-v2": DEEPSEEK_2,
    "deepseek-v3": DEEPSEEK,
    "gpt-oss-120b": GPT_OSS,
}


@pytest.fixture
def model_of(tmp_path):
    def read(config):
        file = tmp_path / "config.json"
        file.write_text(json.dumps(config))
        return load_model(str(file))

    return read


@pytest.mark.parametrize("name", PRESETS)
def test_it_is_the_preset(model_of, name):
    model, preset = model_of(PRESETS[name]), load_model(name)
    assert vars(model) | {"name": name, "sequence": preset.sequence} == vars(preset)


@pytest.mark.parametrize(
    ("config", "total", "active"),
    [
        # mistral.ai/news/mixtral-8x22b
        (MIXTRAL, 141e9, 39e9),
        # arXiv 2505.09388, table 2
        (QWEN, 235e9, 22e9),
        # arXiv 2405.04434 and 2412.19437
        (DEEPSEEK_2, 236e9, 21e9),
        (DEEPSEEK, 671e9, 37e9),
        # arXiv 2507.20534
        (KIMI, 1.04e12, 32.6e9),
        # arXiv 2508.10925, table 1; what is active, without the embedding's 0.58 B
        (GPT_OSS, 116.83e9, 5.13e9 + 0.58e9),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_parameters_are_those_that_are_published(model_of, config, total, active):
    model = model_of(config)
    assert model.parameters == pytest.approx(total, rel=0.015)
    assert model.active_parameters == pytest.approx(active, rel=0.02)


def test_layers_are_of_the_kinds_that_the_file_says(model_of):
    dense, experts = model_of(DEEPSEEK).kinds.items()
    assert (dense[0].experts, dense[1]) == (None, (0, 1, 2))
    assert experts[0].experts.shared == 2048
    assert experts[1] == tuple(range(3, 61))
    narrow, whole = model_of(GPT_OSS).kinds.items()
    assert (narrow[0].window, whole[0].window) == (128, None)
    assert narrow[1] == tuple(range(0, 36, 2))
    assert narrow[0].attended < 128 < whole[0].attended
    [alike] = model_of(MIXTRAL).kinds
    assert alike == model_of(MIXTRAL)


def test_a_model_file_of_a_config_is_the_same_model(model_of, tmp_path, bfpp):
    model = model_of(DEEPSEEK)
    code, text, _ = bfpp("models", tmp_path / "config.json")
    (tmp_path / "mine.toml").write_text(text)
    assert code == 0
    assert vars(load_model(str(tmp_path / "mine.toml"))) | {"name": model.name} == vars(model)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({**QWEN, "num_experts": None}, "the key 'num_experts' is missing"),
        ({**QWEN, "decoder_sparse_step": 2}, "decoder_sparse_step must be 1, not 2"),
        ({**QWEN, "mlp_only_layers": [3]}, r"mlp_only_layers must be \[\], not \[3\]"),
        ({**MIXTRAL, "num_experts_per_tok": 9}, "9 experts cannot be chosen of 8"),
        (
            {**MIXTRAL, "num_local_experts": "8"},
            "num_local_experts must be a whole number, not '8'",
        ),
        ({**DEEPSEEK, "moe_layer_freq": 2}, "moe_layer_freq must be 1, not 2"),
        ({**DEEPSEEK, "q_lora_rank": -1}, "q_lora_rank must be positive"),
        ({**GPT_OSS, "layer_types": ["full_attention", "sliding_attention"]}, "layer_types must"),
        ({**GPT_OSS, "layer_types": 7}, "layer_types must be a list"),
        ({**QWEN, "model_type": "qwen2_moe"}, "model_type must be one of .*not 'qwen2_moe'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(model_of, config, reason):
    with pytest.raises(InvalidConfiguration, match=reason) as caught:
        model_of(config)
    assert caught.value.field == "model"
    assert "\n" not in str(caught.value)
