"""Terms of modern models as they come out by hand, from sizes of layers and published tables.

No number here is computed by what is tested: each stands as it was worked out, with its arithmetic.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from bfpp.schedules import Degrees, Layout
from bfpp.schedules.operations.row import Group
from bfpp.schedules.settings.attention import ContextExchange
from bfpp.schedules.settings.precision import parse_precision
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.cluster.group_location import GroupPlace
from bfpp.sim.cluster.nccl import options
from bfpp.sim.cluster.network import Level
from bfpp.sim.cluster.software_profiles import CURRENT
from bfpp.sim.costs.communication.collectives import collective_seconds, crossing_share
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.costs.units.activations import head_transient, layer_gradients, workspace_bytes
from bfpp.sim.costs.units.seconds import blocked_seconds
from bfpp.sim.memory.peak_memory import PeakMemory
from bfpp.sim.models.model import load_model
from bfpp.sim.operators.checkpointing import Checkpointed
from bfpp.sim.operators.experts import expert_rows
from bfpp.sim.operators.layer import layer_operators
from bfpp.sim.operators.operators import Collective, Copies, Execution, Routing, Way

DEEPSEEK = Execution(load_model("deepseek-v3").last_kind, ep=8)
"""A layer with experts of DeepSeek-V3, 4,096 tokens in BF16, its 256 experts on eight devices:
hidden 7,168, 128 heads of 128 + 64 and 128, latents of 1,536 and 512, 8 experts of 2,048."""

PASSES = ("forward", "backward_input", "backward_weight")


def layer(execution):
    return {each.name: each for each in layer_operators(execution)}


def works(operator):
    return [getattr(operator, name) for name in PASSES]


# Columns: flop of a token forward, 2 in x out; bytes forward and of the input's gradient,
# 2 (T in + in out + T out); bytes of the weights' gradient, which is read and written in full
# precision, 2 (T in + T out) + 8 in out. T is 4,096.
PRODUCTS = {
    # 7,168 x 1,536: 11,010,048 weights
    "q down": (22_020_096, 93_323_264, 159_383_552),
    # 1,536 x 128 x 192: 37,748,736
    "q up": (75_497_472, 289_406_976, 515_899_392),
    # 7,168 x (512 + 64): 4,128,768
    "kv down": (8_257_536, 71_696_384, 96_468_992),
    # 512 x 128 x (128 + 128): 16,777,216
    "kv up": (33_554_432, 306_184_192, 406_847_488),
    # 128 x 128 x 7,168: 117,440,512
    "projection": (234_881_024, 427_819_008, 1_132_462_080),
    # 7,168 x 256: 1,835,008
    "router": (3_670_016, 64_487_424, 75_497_472),
    # 7,168 x 2 x 2,048: 29,360,128
    "shared up": (58_720_256, 150_994_944, 327_155_712),
    # 2,048 x 7,168: 14,680,064
    "shared down": (29_360_128, 104_857_600, 192_937_984),
    # 32 experts of a device, each 8 x 8 x 4,096 / 256 = 1,024 rows, with weights of its own:
    # 32 x 2 (1,024 x 7,168 + 29,360,128 + 1,024 x 4,096), and 32 x (2 (...) + 8 x 29,360,128)
    "experts up": (469_762_048, 2_617_245_696, 8_254_390_272),
    "experts down": (234_881_024, 1_543_503_872, 4_362_076_160),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_deepseek_v3(name):
    of_token, moved, accumulated = PRODUCTS[name]
    found = works(layer(DEEPSEEK)[name])
    assert [each.flops for each in found] == [4096 * of_token] * 3
    assert [each.bytes for each in found] == [moved, moved, accumulated]
    assert [each.kernels for each in found] == [32 if "experts" in name else 1] * 3


def test_attention_of_deepseek_v3():
    """Half of a square of 4,096 tokens, 128 heads: keys are 192 wide and values 128.

    Forward 4,096^2 x 128 x (192 + 128), backward x (3 x 192 + 2 x 128): five products, three of
    them as wide as keys.
    """
    forward, backward, weight = works(layer(DEEPSEEK)["attention"])
    assert (forward.flops, backward.flops, weight.flops) == (
        687_194_767_360,
        1_786_706_395_136,
        0,
    )
    # Queries and keys of 49,152 bytes a token, values and what comes out of 32,768: 163,840.
    assert (forward.bytes, backward.bytes) == (671_088_640, 1_342_177_280)
    assert (forward.kernels, backward.kernels) == (1, 3)


# Bytes of a token, forward and backward, and kernels.
MOVED = {
    # in and out, 2 x 14,336; backward the gradient of the residual too
    "attention norm": ((28_672, 57_344), (1, 2)),
    "q norm": ((6_144, 12_288), (1, 2)),
    # of 512 and not 576: the part that is turned is not normed
    "kv norm": ((2_048, 4_096), (1, 2)),
    # 64 of each head turned, read and written twice (4 x 16,384), both halves of the latents'
    # product read (65,536), keys (49,152) and values (32,768) written. Backward also the sum of
    # two gradients of what is 14,336 wide, 43,008.
    "heads": ((212_992, 256_000), (6, 9)),
    "attention residual": ((43_008, 28_672), (1, 1)),
    # 256 scores in full precision, 20 times
    "routing": ((20_480, 20_480), (60, 60)),
    # a row of 14,336 becomes eight
    "permute": ((129_024, 129_024), (2, 2)),
    # eight rows read and written, to be sorted
    "dispatch": ((229_376, 229_376), (2, 2)),
    "combine": ((229_376, 229_376), (2, 2)),
    "unpermute": ((129_024, 129_024), (2, 2)),
    # eight times 8,192 in and 4,096 out; backward 8,192 twice
    "experts activation": ((98_304, 163_840), (1, 1)),
    "experts probabilities": ((0, 98_304), (0, 1)),
    "shared activation": ((12_288, 20_480), (1, 1)),
    # routed and shared read, their sum written; backward two sums
    "branches": ((43_008, 86_016), (1, 2)),
}


@pytest.mark.parametrize("name", MOVED)
def test_what_deepseek_v3_moves_through_memory(name):
    forward, backward, _ = works(layer(DEEPSEEK)[name])
    moved, kernels = MOVED[name]
    assert (forward.bytes / 4096, backward.bytes / 4096) == moved
    assert (forward.kernels, backward.kernels) == kernels


KEPT = {
    "layer input": 14_336,
    "attention normed": 14_336,
    "q latent": 3_072,
    "q normed": 3_072,
    "kv latent": 1_152,  # 2 x (512 + 64)
    "kv normed": 1_024,
    "q": 49_152,  # 2 x 128 x 192
    "k": 49_152,
    "v": 32_768,
    "context": 32_768,
    "log sum exp": 512,  # 4 x 128
    "mlp input": 14_336,
    "mlp normed": 14_336,
    "routing maps": 6_144,  # six numbers of 4 bytes of each of 256 experts
    "rows received": 114_688,  # 8 x 14,336
    "experts expanded": 65_536,  # 8 x 2 x 2 x 2,048
    "experts active": 32_768,
    "shared expanded": 8_192,
    "shared active": 4_096,
}


def test_what_a_layer_of_deepseek_v3_keeps_of_a_token():
    saved = {
        each.name: each.bytes / 4096
        for each in Checkpointed(layer_operators(DEEPSEEK), frozenset()).saved
    }
    statistics = [size for name, size in saved.items() if name.endswith("statistics")]
    assert statistics == [4.0] * 4
    assert {name: size for name, size in saved.items() if "statistics" not in name} == KEPT
    assert sum(KEPT.values()) == 461_440


def test_tensor_parallelism_divides_heads_and_leaves_latents_whole():
    """With sequence parallelism each of 8 devices makes the latents of its own 512 tokens."""
    divided = layer(replace(DEEPSEEK, tp=8, sequence_parallel=True))
    # Of 512 tokens: 512 x 22,020,096; of a share of the width, 4,096 x 75,497,472 / 8.
    assert divided["q down"].forward.flops == 11_274_289_152
    assert divided["q up"].forward.flops == 38_654_705_664
    assert divided["kv up"].forward.bytes == 2 * (4096 * 512 + 512 * 4096 + 4096 * 4096)
    kept = {tensor.name: tensor.bytes for each in divided.values() for tensor in each.saves}
    names = ("attention normed", "q latent", "kv latent", "k", "context", "log sum exp")
    assert [kept[name] for name in names] == [
        7_340_032,  # 512 x 14,336
        1_572_864,  # 512 x 3,072
        589_824,  # 512 x 1,152
        25_165_824,  # 4,096 x 49,152 / 8
        16_777_216,
        262_144,  # 4,096 x 4 x 16
    ]
    # Latents are gathered for their way up, q of 1,536 and keys' and values' of 512: 4,096 x 3,072
    # and 4,096 x 1,024. Down, nothing is.
    gathered = {
        name: [(each.way, each.bytes) for each in divided[name].forward.collectives]
        for name in ("q down", "q up", "kv down", "kv up", "projection")
    }
    assert gathered == {
        "q down": [],
        "q up": [(Way.ALL_GATHER, 12_582_912)],
        "kv down": [],
        "kv up": [(Way.ALL_GATHER, 4_194_304)],
        "projection": [(Way.REDUCE_SCATTER, 58_720_256)],
    }


def test_scaled_rotary_positions_are_many_kernels():
    """GPT-OSS: 64 heads of 64, 8 of keys. Queries take 8,192 bytes of a token, and keys 1,024.

    Twelve kernels more than a fused one on each, so 14 passes over both, 14 x 9,216; backward 16 of
    queries and 18 of keys, as seven more.
    """
    model = load_model("gpt-oss-120b").last_kind
    forward, backward, _ = works(layer(Execution(model, ep=8))["heads"])
    assert (forward.bytes / 4096, backward.bytes / 4096) == (129_024, 149_504)
    assert (forward.kernels, backward.kernels) == (26, 17)
    plain = layer(Execution(replace(model, scaled_rotary=False), ep=8))["heads"]
    # 4 x 8,192 + 4 x 1,024, and 4 x 8,192 + 6 x 1,024
    assert (plain.forward.bytes / 4096, plain.backward_input.bytes / 4096) == (36_864, 38_912)
    assert (plain.forward.kernels, plain.backward_input.kernels) == (4, 5)


def test_chains_of_kernels_of_gpt_oss_experts():
    """Four experts a token, 2,880 wide: rows of 23,040 bytes a token, twice that expanded.

    Of 128 experts 16 on a device, each with two kernels forward for its bias, and seven backward.
    """
    found = layer(Execution(load_model("gpt-oss-120b").last_kind, ep=8))
    chains = {
        name: [(each.bytes / 4096, each.kernels) for each in works(found[name])[:2]]
        for name in ("clamp", "experts bias", "experts up")
    }
    assert chains == {
        "clamp": [(4 * 46_080, 3), (5 * 46_080, 5)],
        "experts bias": [(14 * 23_040, 2 + 16 * 2), (20 * 23_040, 3 + 16 * 7)],
        "experts up": [(198_720, 16), (198_720, 16)],
    }


def exchanged(execution):
    """Bytes of a token that each exchange of experts sends, forward and backward, and its calls."""
    operators = layer_operators(execution)
    return [
        [
            (each.bytes / 4096, each.calls)
            for operator in operators
            for each in getattr(operator, direction).collectives
            if each.group is Group.EP
        ]
        for direction in PASSES[:2]
    ]


def test_rows_that_experts_of_deepseek_v3_receive():
    """Eight rows of 14,336 bytes, there and back; counts first, probabilities after the rows."""
    row = 114_688
    assert exchanged(DEEPSEEK) == [[(row, 3), (row, 1)], [(row, 2), (row, 1)]]
    busy = replace(DEEPSEEK, routing=Routing(imbalance=1.25))
    assert exchanged(busy)[0] == [(143_360, 3), (143_360, 1)]
    assert expert_rows(busy, busy.model.experts) == 40_960
    # A capacity of 1.2 times 128 rows is 153.6, so 154: 256 x 154 rows of 14,336 bytes.
    padded = replace(DEEPSEEK, routing=Routing(capacity=1.2))
    assert expert_rows(padded, padded.model.experts) == 39_424
    assert exchanged(padded)[0] == [(137_984, 2), (137_984, 1)]
    dropping = replace(padded, routing=Routing(capacity=1.2, dropping_seconds=1e-9))
    # 4,096 tokens and 256 experts
    assert layer(dropping)["routing"].forward.seconds == pytest.approx(1.048576e-3)


def test_rows_that_are_sent_in_8_bits():
    """Forward to the experts, backward the gradients of what they made; what comes back is not.

    A scale of 4 bytes for 128 numbers: 57,344 + 1,792.
    """
    quantised = PhysicalCosts(
        load_model("deepseek-v3"),
        load_cluster("dgx-h100"),
        Degrees(dp=8, ep=8),
        1,
        CURRENT,
        precision=parse_precision("fp8-block"),
        routing=Routing(quantised=True, deduplicated=True),
    ).execution
    execution = replace(quantised, model=quantised.model.last_kind)
    sent = exchanged(execution)
    assert [[size for size, _ in way] for way in sent] == [[59_136, 114_688], [114_688, 59_136]]


@pytest.mark.parametrize(
    ("number", "share", "places", "expected"),
    [
        # Of 8 rows to 4 of 8 nodes: 4 (1 - (3/4)^8) / 8 = (1 - 0.100113) / 2
        (8, 0.5, 8, 0.4499435424804688),
        # to 8 devices: 1 - (7/8)^8
        (8, 1.0, 8, 0.6563910841941833),
        # to one
        (8, 0.5, 2, 0.125),
        (2, 1.0, 2, 0.75),
    ],
)
def test_the_share_of_rows_that_cross_once(number, share, places, expected):
    assert crossing_share(Copies(number, share), places) == pytest.approx(expected, rel=1e-12)
    assert crossing_share(None, places) == 1


NODE = Level(
    "node", 400e9, 3.4e-6, size=8, link="nvlink", switch_bandwidth=275e9, flag_bandwidth=141e9
)
NET = Level("net", 40e9, 14e-6)
EVERY = ("ring", "tree", "nvls", "pat")


def tuned(directions, members, levels, stride=1):
    place = GroupPlace.of(members, stride, levels)
    found = options(directions, place, levels, EVERY)
    return {
        (each.algorithm, each.protocol): (each.latency * 1e6, each.per_byte * 1e12, each.level)
        for each in found
    }


def close(expected):
    return {key: pytest.approx(each, rel=1e-6) for key, each in expected.items()}


# NCCL 2.30, src/graph/tuning.cc. Base latencies of a ring: 6.6 (LL), 14.0 (LL128), 8.4 (Simple) us;
# of a tree 6.8, 14.0, 8.4; of PAT 8.0. Steps over NVLink of a ring 0.6, 1.9, 3.4, of a tree
# 0.6, 1.25, 4.0; over PCIe of a ring 1.0, 2.5, 5.7, of a tree 1.0, 1.9, 4.0; over the network of a
# ring 2.7, 4.0, 14.0, of a tree 5.0, 8.5, 14.0. NVLS 25.0, and 20.9 over the network. Shares of the
# bandwidth: LL 1/2 of a ring, 1/3.8 of a tree; LL128 0.92 of a ring, 120/128 of a tree, 7/9 in a
# node; trees 0.92 of all.
def test_an_all_reduce_in_a_node_as_nccl_has_it():
    """Eight devices, 14 steps of a ring. Picoseconds a byte: 1.75 / 0.4 TB/s is 4.375."""
    assert tuned(2, 8, (NODE, NET)) == close(
        {
            ("ring", "Simple"): (8.4 + 47.6, 4.375, 0),
            ("ring", "LL128"): (14.0 + 26.6, 4.7554348, 0),  # / 0.92
            ("ring", "LL"): (6.6 + 8.4, 12.4113475, 0),  # 1.75 / 0.141, less than half of 0.4
            # a chain of seven, there and back: 2 / 0.4 is 5
            ("tree", "Simple"): (8.4 + 56.0, 5.4347826, 0),  # / 0.92
            ("tree", "LL128"): (14.0 + 17.5, 6.9875776, 0),  # / (0.92 x 7 / 9)
            ("tree", "LL"): (6.8 + 8.4, 20.6521739, 0),  # x 3.8 / 0.92
            ("nvls", "Simple"): (25.0, 3.6363636, 0),  # 1 / 0.275
        }
    )


def test_an_all_reduce_over_two_nodes_as_nccl_has_it():
    """28 steps inside and 2 between; eight ports of 40 GB/s are 0.32 TB/s.

    LL reaches 20.4 GB/s at most. Half of a tree's data leaves a node, which 0.32 TB/s do not limit.
    """
    assert tuned(2, 16, (NODE, NET)) == close(
        {
            ("ring", "Simple"): (8.4 + 95.2 + 28.0, 5.859375, 1),  # 1.875 / 0.32
            ("ring", "LL128"): (14.0 + 53.2 + 8.0, 6.3688859, 1),
            ("ring", "LL"): (6.6 + 16.8 + 5.4, 91.9117647, 1),  # 1.875 / 0.0204
            ("tree", "Simple"): (8.4 + 56.0 + 28.0, 5.4347826, 0),
            ("tree", "LL128"): (14.0 + 17.5 + 17.0, 5.7971014, 0),  # / (0.92 x 120 / 128)
            ("tree", "LL"): (6.8 + 8.4 + 10.0, 98.0392157, 0),  # 2 / 0.0204
            ("nvls", "Simple"): (25.0 + 41.8, 5.859375, 1),  # 1.875 / 0.32, more than 1 / 0.275
        }
    )


def test_gathers_of_one_device_a_node_as_nccl_has_them():
    """Sixteen nodes, whose 15 steps are exposed: as long as a tree's. A tree and NVLS only add.

    PAT takes 8 us, 2.8 of each device, and log2(16) steps of 14 / 3.5; 3/4 of the bandwidth.
    """
    assert tuned(1, 16, (NODE, NET), stride=8) == close(
        {
            ("ring", "Simple"): (8.4 + 210.0, 23.4375, 1),  # 0.9375 / 0.04
            ("ring", "LL128"): (14.0 + 127.5, 25.4755435, 1),
            ("ring", "LL"): (6.6 + 75.0, 46.875, 1),  # half of 40 GB/s is less than 20.4
            ("pat", "Simple"): (8.0 + 44.8 + 16.0, 31.25, 1),
        }
    )


def test_steps_over_pcie_as_nccl_has_them():
    pcie = (Level("pcie", 24e9, 5.7e-6, size=8, link="pcie"), NET)
    found = {key: latency for key, (latency, _, _) in tuned(2, 8, pcie).items()}
    assert found == close(
        {
            ("ring", "Simple"): 8.4 + 79.8,
            ("ring", "LL128"): 14.0 + 35.0,
            ("ring", "LL"): 6.6 + 14.0,
            ("tree", "Simple"): 8.4 + 56.0,
            ("tree", "LL128"): 14.0 + 26.6,
            ("tree", "LL"): 6.8 + 14.0,
        }
    )


def test_an_all_to_all_of_experts_on_h100():
    """448 MiB of DeepSeek-V3's rows: 7/8 over NVLink at 370 GB/s, and a step of 3.4 us.

    Of 64 devices 56/64 leave a node at 0.9 x 50 GB/s, and a step of the network takes 14 us.
    """
    cluster = load_cluster("dgx-h100")
    rows = Collective(Way.ALL_TO_ALL, 469_762_048.0, group=Group.EP)

    def seconds(members, collective=rows):
        return collective_seconds(collective, GroupPlace.of(members, 1, cluster.levels), cluster)

    assert seconds(8) == pytest.approx(3.4e-6 + 1.110923e-3, rel=1e-5)
    assert seconds(64) == pytest.approx(14e-6 + 9.134262e-3, rel=1e-5)
    # Once to each node of at most four of eight: 0.4499435 of them.
    once = rows._replace(copies=Copies(8, 0.5))
    assert seconds(64, once) == pytest.approx(14e-6 + 4.109902e-3, rel=1e-5)


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_calls_of_an_exchange_wait_each(calls):
    """Of eight devices each call waits three times 22 us; all but one send a byte, in 3.4 us."""
    costing = PhysicalCosts(
        load_model("deepseek-v3"), load_cluster("dgx-h100"), Degrees(dp=8, ep=8), 1, CURRENT
    )
    rows = Collective(Way.ALL_TO_ALL, 469_762_048.0, group=Group.EP, calls=calls)
    expected = 1.110923e-3 + calls * (3.4e-6 + 66e-6)
    assert blocked_seconds(costing, rows) == pytest.approx(expected, rel=1e-5)


def test_what_of_eight_devices_is_reserved():
    """40 GiB allocated: 5 % more and 0.75 GiB; e^(1.2816 x 0.1) = 1.1367 at each end."""
    memory = PeakMemory(10 * 2.0**30, 2.0**30, 2.0**30, 24 * 2.0**30, 3 * 2.0**30, 0.0, 2.0**30)
    assert memory.total_gb == 40
    assert memory.reserved_gb == pytest.approx(42.75)
    assert memory.reserved_range_gb == pytest.approx((37.608, 48.596), rel=1e-4)


def test_what_sequence_parallelism_gathers_for_a_while():
    """Llama-3-70B on eight devices, 4,096 tokens: the hidden state is 64 MiB, of a device 8 MiB.

    Backward a layer has its gradient, the activation's gradient of 2 x 2 x 28,672 / 8 bytes a token
    and the gathered input. The head has 2 x 8,192 x 129,024 / 8 bytes of a weight's gradient (the
    vocabulary is padded to multiples of 1,024), and three hidden states. For good there are 64 MiB
    of cuBLAS, a gathered input, a gradient of each shape of weights (1,280 x 8,192, 8,192 x 1,024,
    7,168 x 8,192, 8,192 x 3,584), and in a pipeline two hidden states of a device.
    """
    model = replace(load_model("llama3-70b"), layers=12, sequence=4096)
    alone, divided = (
        PhysicalCosts(model, load_cluster("b200-simumax"), Degrees(tp=tp), 1, CURRENT)
        for tp in (1, 8)
    )
    assert divided.execution.sequence_parallel
    mebibyte = 2**20
    assert layer_gradients(divided.execution, 1) == (8 + 56 + 64) * mebibyte
    assert layer_gradients(alone.execution, 1) == (64 + 448) * mebibyte
    assert head_transient(divided.setting) == 264_241_152 + 3 * 64 * mebibyte
    # 128,256 is a multiple of 128 already.
    assert head_transient(alone.setting) == 2_101_346_304 + 64 * mebibyte
    shapes = 213_909_504
    assert workspace_bytes(divided, Layout(1, 4)).tolist() == [(64 + 64) * mebibyte + shapes]
    assert (
        workspace_bytes(divided, Layout(2, 4)).tolist()
        == [(64 + 64 + 2 * 8) * mebibyte + shapes] * 2
    )


def test_layers_with_experts_have_their_rows_gradients_and_workspaces():
    """Two of 32,768 rows of 14,336 bytes; four streams of grouped products take 128 MiB."""
    assert layer_gradients(DEEPSEEK, 1) == 939_524_096
    assert CURRENT.experts_workspace_bytes == 128 * 2**20


@pytest.mark.parametrize("exchange", [ContextExchange.RING, ContextExchange.ALL_GATHER])
def test_keys_and_values_of_llama_go_around_four_devices(exchange):
    """32,768 tokens, 8 heads of 128 for keys and values: 2 x 2 x 1,024 bytes of each token."""
    model = replace(load_model("llama3-70b"), sequence=32768)
    found = layer(Execution(model, cp=4, exchange=exchange))["attention"]
    assert [each.bytes for each in found.forward.collectives] == [134_217_728]
    assert [each.bytes for each in found.backward_input.collectives] == [134_217_728] * 2
    # 8,192 x 32,768 / 2 pairs of each of 64 heads, 4 x 128 flop of a pair: a kernel for each block.
    blocks = 4 if exchange is ContextExchange.RING else 2
    assert found.forward.flops == pytest.approx(4_398_046_511_104, rel=1e-12)
    assert found.forward.kernels == len(found.forward.attention) == blocks
    assert found.backward_input.kernels == 3 * blocks
