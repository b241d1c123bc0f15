"""Models and clusters: the paper's worked numbers, presets and files."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.settings.attention import Attention
from bfpp.schedules.settings.precision import Format, Precision
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.cluster.network import Level
from bfpp.sim.cluster.software_profiles import PAPER
from bfpp.sim.models.model import Transformer, hardware_flops, load_model
from bfpp.sim.operators.layer import layer_operators
from bfpp.sim.operators.operators import Execution
from bfpp.sim.presets.files import PRESETS, preset_names

MEBIBYTE = 2**20


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("bert-52b", 52e9), ("bert-6.6b", 6.6e9), ("gpt3-175b", 175e9), ("gpt-1t", 1.008e12)],
)
def test_presets_have_the_parameters_they_are_named_for(name, parameters):
    model = load_model(name)
    assert model.parameters == pytest.approx(parameters, rel=0.01)
    assert model.parameters == pytest.approx(12 * model.layers * model.hidden**2, rel=0.03)


def test_the_vocabulary_is_padded_to_a_multiple_of_128_for_each_share():
    model = load_model("bert-52b")
    assert [model.padded_vocabulary(ranks) for ranks in (1, 2, 8)] == [30592, 30720, 30720]
    assert model.word_parameters(8) == 3840 * 8192


@pytest.mark.parametrize(("name", "mebibytes"), [("gpt3-175b", 552), ("gpt-1t", 1050)])
def test_activation_memory_is_the_papers(name, mebibytes):
    assert load_model(name).activation_bytes(1, 8) == mebibytes * MEBIBYTE


@pytest.mark.parametrize(("name", "mebibytes"), [("gpt3-175b", 576), ("gpt-1t", 1600)])
def test_checkpoint_memory_is_the_papers(name, mebibytes):
    """N_PP = N_mb = 4, N_TP = 8: all layers' checkpoints of one micro-batch."""
    model = load_model(name)
    assert model.layers * model.checkpoint_bytes(1, 8) == mebibytes * MEBIBYTE


@pytest.mark.parametrize("name", ["bert-52b", "bert-6.6b", "gpt3-175b", "gpt-1t"])
def test_hardware_flops_are_the_papers_equation_for_compute(name):
    model = load_model(name)
    widths = model.hidden + model.sequence / 6 + model.vocabulary / (16 * model.layers)
    per_token = 96 * model.layers * model.hidden * widths
    assert hardware_flops(model, 24) == pytest.approx(24 * model.sequence * per_token)


def test_intensities_are_the_papers():
    """Sections Network, Pipeline-parallel and Tensor-parallel, on an A100 with N_TP = 8."""
    cluster = load_cluster("dgx-a100")
    assert cluster.network_intensity == pytest.approx(6240)
    for name, non_looped, looped, tensor in (
        ("gpt3-175b", 7.1e6, 294_912, 3072),
        ("gpt-1t", 19.7e6, 614_400, 6400),
    ):
        model = load_model(name)
        layer = 96 * model.sequence * model.hidden**2 / 8
        both_passes = 2 * model.transfer_bytes(1, 8)
        assert layer / both_passes == pytest.approx(looped, rel=0.01)
        assert layer * model.layers / 4 / both_passes == pytest.approx(non_looped, rel=0.01)
        in_and_out = 6 * 2 * 2 * model.hidden_bytes(1)
        assert layer / in_and_out == pytest.approx(tensor)


def test_the_data_parallel_intensity_is_the_tokens_of_a_batch():
    """I_DP0 = N_mb S_mb S_seq: 8 bytes a parameter, in and out, over a large group."""
    model = load_model("gpt3-175b")
    both_ways = 2 * 2 * PAPER.gradient_bytes * model.layer_parameters()
    assert 96 * 3 * model.sequence * model.hidden**2 / both_ways == pytest.approx(
        3 * model.sequence, rel=0.001
    )


def test_the_ethernet_is_several_times_slower_between_the_same_nodes():
    """beta_net is about 4 with InfiniBand and about 32 without."""
    fast, slow = load_cluster("dgx1-v100"), load_cluster("dgx1-v100-ethernet")
    reached = [
        link.bandwidth * link.ring_efficiency
        for link in (fast.level("inter_node"), slow.level("inter_node"))
    ]
    assert 3 < reached[0] / reached[1] < 8
    assert slow.device == fast.device
    assert slow.level("intra_node") == fast.level("intra_node")


def test_smaller_groups_of_a_node_have_fewer_of_its_wires():
    mesh, switch = load_cluster("dgx1-v100"), load_cluster("dgx-a100")
    assert [mesh.levels[0].bandwidth_of(size) for size in (2, 3, 4, 8)] == [
        22.7e9, 91e9, 91e9, 136e9,
    ]  # fmt: skip
    assert {switch.levels[0].bandwidth_of(size) for size in (2, 4, 8)} == {227e9}


def test_fitted_constants_replace_those_of_a_preset_and_of_no_file(tmp_path):
    fitted = {"dgx1-v100": {"inter_node": {"ring_efficiency": 0.25}}}
    assert load_cluster("dgx1-v100", fitted).level("inter_node").ring_efficiency == 0.25
    assert load_cluster("dgx1-v100", {}).level("inter_node").ring_efficiency == 0.48
    path = tmp_path / "dgx1-v100.toml"
    path.write_text(CLUSTER_FILE)
    assert load_cluster(str(path), fitted).level("inter_node").ring_efficiency == 1


def test_fewer_key_and_value_heads_and_a_narrow_mlp_have_fewer_parameters():
    wide = Transformer("wide", 2, 64, 8, 32, 128)
    assert wide.layer_parameters() == 12 * 64**2 + 13 * 64
    narrow = replace(wide, mlp=64, kv_heads=2)
    assert narrow.layer_parameters() == (2 + 0.5 + 2) * 64**2 + (1 + 0.5 + 1 + 6) * 64
    assert narrow.layer_flops(1) == 32 * (2 * 4.5 * 64**2 + 4 * 32 * 64)


sizes = st.builds(
    lambda heads, shared, wide, tokens: Transformer(
        "any", 4, 64 * heads * shared, heads * shared, tokens, 1000, 128 * wide, heads
    ),
    *(st.integers(1, 8) for _ in range(3)),
    st.integers(1, 512),
)


@given(sizes, st.integers(1, 4))
def test_a_gated_mlp_weighs_and_works_as_a_plain_one_half_again_as_wide(plain, size):
    """Three matrices where it has two, and three widths of activations where it has two."""
    gated, wider = replace(plain, gated=True), replace(plain, mlp=3 * plain.mlp // 2)
    assert gated.layer_flops(size) == pytest.approx(wider.layer_flops(size))
    assert gated.activation_bytes(size, 2) == pytest.approx(wider.activation_bytes(size, 2))
    biases = plain.mlp / 2
    assert gated.layer_parameters() - wider.layer_parameters() == pytest.approx(biases)
    for model in (gated, plain):
        execution = Execution(model, size, attention=Attention.UNFUSED)
        flops = sum(each.forward.flops for each in layer_operators(execution))
        assert flops == pytest.approx(model.layer_flops(size))


@given(sizes)
def test_an_untied_output_layer_has_as_many_parameters_as_the_word_embedding(tied):
    untied = replace(tied, tied_embeddings=False)
    assert untied.parameters == tied.parameters + tied.word_parameters()
    assert hardware_flops(untied, 1) == hardware_flops(tied, 1)


def test_presets_are_listed_and_can_all_be_read():
    assert {"bert-52b", "bert-6.6b", "gpt-1t", "gpt3-175b"} <= set(preset_names("model"))
    assert {"dgx-a100", "dgx-h100", "dgx1-v100"} <= set(preset_names("cluster"))
    assert [load_model(name).name for name in preset_names("model")] == preset_names("model")
    clusters = [load_cluster(name) for name in preset_names("cluster")]
    joined = {(each.gpus_per_node, each.domain) for each in clusters}
    assert joined == {(8, 8), (4, 72), (8, 256), (4, 8960), (16, 16)}


MODEL_FILE = "layers = 2\nhidden = 64\nheads = 8\nsequence = 32\nvocabulary = 128\n"


def test_a_model_is_read_from_a_file(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(MODEL_FILE + "mlp = 128\nkv_heads = 2\n")
    small = Transformer("small", 2, 64, 8, 32, 128, 128, 2)
    assert load_model(str(path)) == small
    with path.open("a") as file:
        file.write("gated = true\ntied_embeddings = false\n")
    assert load_model(str(path)) == replace(small, gated=True, tied_embeddings=False)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (MODEL_FILE + "depth = 3", "unknown key 'depth'"),
        (MODEL_FILE.replace("layers = 2\n", ""), "the key 'layers' is missing"),
        (MODEL_FILE.replace("64", "64.5"), "hidden must be a whole number, not 64.5"),
        (MODEL_FILE.replace("= 2", "= true"), "layers must be a whole number, not True"),
        (MODEL_FILE.replace("= 2", "= 0"), "layers must be positive"),
        (MODEL_FILE.replace("= 2", f"= {10**309}"), "a whole number is of more than 64 bits"),
        (MODEL_FILE.replace("= 2", f"= -{10**309}"), "a whole number is of more than 64 bits"),
        (MODEL_FILE.replace("= 2", f"= 0x{'f' * 5000}"), "a whole number is of more than 64 bits"),
        (
            MODEL_FILE.replace("= 2", f"= {'9' * 5000}"),
            "small.toml' is not TOML: Exceeds the limit",
        ),
        (MODEL_FILE + "scaled_rotary = true", "scaled_rotary needs rotary positions"),
        (MODEL_FILE + "gated = 1", "gated must be true or false, not 1"),
        (MODEL_FILE + "tied_embeddings = 'no'", "tied_embeddings must be true or false, not 'no'"),
        ("layers = ", "is not TOML"),
    ],
)
def test_a_malformed_file_is_refused_with_its_key(tmp_path, text, reason):
    path = tmp_path / "small.toml"
    path.write_text(text)
    with pytest.raises(InvalidConfiguration, match=r"^model: ") as refusal:
        load_model(str(path))
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


CLUSTER_FILE = """
gpus_per_node = 4
[device]
peak = 100
memory_bandwidth = 10
memory = 5.5
matmul_efficiency = 0.5
[intra_node]
bandwidth = 20
latency = 1
[inter_node]
bandwidth_per_node = 8
latency = 2
"""


def test_a_cluster_is_read_from_a_file_and_its_network_is_shared(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(CLUSTER_FILE)
    cluster = load_cluster(str(path))
    assert cluster.levels == (
        Level("intra_node", 20, 1, size=4, link="nvlink"),
        Level("inter_node", 2, 2),
    )


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("= 0.5", "= 1.5", "matmul_efficiency must be at most 1"),
        ("= 20", "= 'fast'", "intra_node: bandwidth must be a number, not 'fast'"),
        ("= 20", f"= {10**309}", "a whole number is of more than 64 bits"),
        ("= 4", f"= {10**309}", "a whole number is of more than 64 bits"),
        ("= 20", "= inf", "intra_node: bandwidth must be positive and finite"),
        ("[device]", "[gpu]", "unknown key 'gpu'"),
        ("latency = 2", "latency = 2\nring_efficiency = 2", "ring_efficiency must be at most 1"),
        ("latency = 1", "latency = 1\ngroup_bandwidths = { two = 1 }", "not a number of devices"),
        ("_per_node = 8", " = 8", "inter_node: unknown key 'bandwidth'"),
    ],
)
def test_a_malformed_cluster_is_refused_with_its_key(tmp_path, old, new, reason):
    path = tmp_path / "small.toml"
    path.write_text(CLUSTER_FILE.replace(old, new))
    with pytest.raises(InvalidConfiguration, match=r"^cluster: ") as refusal:
        load_cluster(str(path))
    assert reason in str(refusal.value)


def test_products_of_narrow_operands_have_a_rate_of_their_own():
    device = load_cluster("dgx-b200").device
    assert device.product_rate(Precision.BF16) == device.peak * device.matmul_efficiency
    rates = [device.product_rate(each) for each in (Precision.BF16, Format.MXFP8, Format.FP8)]
    assert rates == sorted(rates)
    assert device.product_rate(Format.NVFP4) > device.product_rate(Format.MXFP8)
    with pytest.raises(InvalidConfiguration, match="has no peak for mxfp8"):
        load_cluster("dgx-h100").device.product_rate(Format.MXFP8)


@pytest.mark.parametrize("line", ["{ fp8 = 2 }", "{ bf16 = 0.5 }", "{ fp8 = 'fast' }", "0.5"])
def test_efficiencies_of_formats_are_shares(tmp_path, line):
    preset = (PRESETS / "clusters" / "dgx-h100.toml").read_text(encoding="utf-8")
    old = "format_efficiencies = { fp8 = 0.883, fp8-block = 0.883 }"
    assert old in preset
    path = tmp_path / "own.toml"
    path.write_text(preset.replace(old, f"format_efficiencies = {line}"), encoding="utf-8")
    with pytest.raises(InvalidConfiguration, match="format_efficiencies") as refusal:
        load_cluster(str(path))
    assert refusal.value.field == "cluster"


def test_a_cluster_that_is_like_a_preset_has_all_else_of_it(tmp_path):
    path = tmp_path / "slow.toml"
    path.write_text('like = "dgx-h100"\n[device]\nmatmul_efficiency = 0.5\n')
    slow, usual = load_cluster(str(path)), load_cluster("dgx-h100")
    assert replace(slow, name=usual.name, device=usual.device) == usual
    assert slow.device == replace(usual.device, matmul_efficiency=0.5)


def test_a_cluster_is_like_a_preset_alone(tmp_path):
    path = tmp_path / "slow.toml"
    for like in ('"slow.toml"', '"dgx-h10"', "1"):
        path.write_text(f"like = {like}\n")
        with pytest.raises(InvalidConfiguration, match="like must be one of a100-800g"):
            load_cluster(str(path))


def test_the_slow_node_is_slower_in_its_products_and_attention_alone():
    slow, usual = load_cluster("b200-simumax").device, load_cluster("dgx-b200").device
    assert slow.matmul_efficiency < 0.85 * usual.matmul_efficiency
    own = {"matmul_efficiency": slow.matmul_efficiency, "attention": slow.attention}
    assert slow == replace(usual, **own)
