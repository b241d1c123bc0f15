"""Flags of Megatron-LM as experiments: derived values, defaults, and what is left out."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.launchers.arguments import SWITCH
from bfpp.launchers.launch_file import LaunchFile, megatron_file, read_launch_file
from bfpp.launchers.megatron.flag_kinds import FLAGS, OTHER_NAMES
from bfpp.launchers.megatron.reading import REFUSED
from bfpp.schedules import InvalidConfiguration

SMALL = (
    "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 "
    "--max-position-embeddings 1024 --micro-batch-size 2 --vocab-size 50257"
)
OFFLOADING = f"{SMALL} --fine-grained-activation-offloading --offload-modules"
EXPERTS = f"{SMALL} --num-experts 8 --moe-grouped-gemm --moe-token-dispatcher-type alltoall"

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "defaults": (
        SMALL,
        {
            "pp": 1, "dp": 1, "microbatches": 1, "precision": "fp32", "recompute": "none",
            "sharding": "none", "clipping": True, "attention": "fused", "cluster": "dgx-h100",
            "model.mlp_width": 4096, "model.tied_embeddings": True, "model.has_dropout": True,
            "model.positions": "learned", "model.norm": "layer", "tied_embeddings": False,
        },
    ),
    "a gated MLP is narrower": (f"{SMALL} --swiglu", {"model.mlp_width": 2688}),
    "groups count only if they are asked for": (
        f"{SMALL} --num-query-groups 4", {"model.kv_heads": None},
    ),
    "groups": (
        f"{SMALL} --group-query-attention --num-query-groups 4", {"model.kv_heads": 4},
    ),
    "padding": (
        f"{SMALL} --make-vocab-size-divisible-by 3232 --tensor-model-parallel-size 2",
        {"model.vocabulary": 51712, "tp": 2, "sequence_parallel": False},
    ),
    "one rank has no sequence parallelism": (
        f"{SMALL} --sequence-parallel", {"sequence_parallel": None},
    ),
    "1F1B has no P2P overlap": (
        f"{SMALL} --pipeline-model-parallel-size 4 --global-batch-size 16",
        {"pp": 4, "schedule": "1f1b", "pp_overlap": False, "microbatches": 8,
         "tied_embeddings": True},
    ),
    "interleaved": (
        (f"{SMALL} --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2 "
        "--global-batch-size 16"),
        {"schedule": "depth-first", "loops": 3, "pp_overlap": True, "rule.sequence": None},
    ),
    "DeepSpeed counts an embedding and its tied head as layers": (
        (f"{SMALL} --pipeline-model-parallel-size 13 --pp-partition-method "
        "type:transformer|embedding --deepspeed"),
        {"cut": "1,2,2,2,2,2,2,2,2,2,2,2,1", "attention": "unfused"},
    ),
    "stages of an embedding alone": (
        (f"{SMALL} --pipeline-model-parallel-size 26 --pp-partition-method "
        "type:transformer|embedding --deepspeed --use-flash-attn-v2 --pad-vocab-size-to 65536"),
        {"cut": "0," + 24 * "1," + "0", "attention": "fused", "model.vocabulary": 65536},
    ),
    "DeepSpeed counts layers": (
        f"{SMALL} --pipeline-model-parallel-size 4 --pp-partition-method type:transformer",
        {"cut": None, "attention": "fused"},
    ),
    "groups of micro-batches": (
        (f"{SMALL} --pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 "
        "--microbatch-group-size-per-virtual-pipeline-stage 5 --no-overlap-p2p-communication"),
        {"loops": 2, "rule.sequence": 5, "pp_overlap": False},
    ),
    "first and last ranks": (
        (f"{SMALL} --pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 4 "
        "--decoder-last-pipeline-num-layers 2 --num-virtual-stages-per-pipeline-rank 1"),
        {"layers_of_stages": (4, 9, 9, 2)},
    ),
    "ends count as layers": (
        (f"{SMALL.replace('layers 24', 'layers 22')} --pipeline-model-parallel-size 4 "
        "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split "
        "--num-layers-per-virtual-pipeline-stage 3 --global-batch-size 8"),
        {"layers_of_stages": (2, 3, 3, 3, 3, 3, 3, 2), "loops": 2},
    ),
    "layout": (
        (f"{SMALL.replace('layers 24', 'layers 8')} --pipeline-model-parallel-size 2 "
        "--global-batch-size 8 --pipeline-model-parallel-layout Et*3|t*2|tt|tL"),
        {"layers_of_stages": (3, 2, 2, 1), "loops": 2},
    ),
    "Muon": (f"{SMALL} --optimizer muon", {"update_rule": "muon", "sharding": "none"}),
    "Muon and a distributed optimizer in one": (
        f"{SMALL} --optimizer dist_muon", {"update_rule": "muon", "sharding": "partial"},
    ),
    "FP16 accumulates in FP16": (f"{SMALL} --fp16", {"main_gradients": "bf16"}),
    "unless it is said": (
        f"{SMALL} --fp16 --accumulate-allreduce-grads-in-fp32", {"main_gradients": None},
    ),
    "FP8": (f"{SMALL} --bf16 --fp8-format hybrid", {"precision": "fp8-delayed"}),
    "the older name": (f"{SMALL} --bf16 --fp8 e4m3 --fp8-recipe mxfp8", {"precision": "mxfp8"}),
    "states count with the aware optimizer": (
        f"{SMALL} --bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16", {"moments": None},
    ),
    "aware": (
        (f"{SMALL} --bf16 --use-precision-aware-optimizer --exp-avg-dtype fp8 "
        "--exp-avg-sq-dtype fp8 --main-params-dtype fp16"),
        {"moments": "fp8", "master_weights": "fp16"},
    ),
    "block": (
        f"{SMALL} --recompute-granularity full --recompute-method block --recompute-num-layers 3",
        {"recompute": "3"},
    ),
    "core attention": (f"{SMALL} --recompute-activations", {"recompute": "core_attn"}),
    "local": (f"{SMALL} --transformer-impl local", {"attention": "unfused"}),
    "flash": (f"{SMALL} --transformer-impl local --use-flash-attn", {"attention": "fused"}),
    "FSDP": (
        f"{SMALL} --use-megatron-fsdp --overlap-grad-reduce --overlap-param-gather",
        {"sharding": "full"},
    ),
    "a strategy": (
        f"{SMALL} --use-megatron-fsdp --data-parallel-sharding-strategy optim",
        {"sharding": "partial"},
    ),
    "experts' tensor parallelism is that of all": (
        (f"{EXPERTS} --tensor-model-parallel-size 2 --sequence-parallel "
        "--expert-model-parallel-size 2"),
        {"ep": 4, "dp": 2},
    ),
    "unless it is none": (
        (f"{EXPERTS} --tensor-model-parallel-size 2 --sequence-parallel "
        "--expert-model-parallel-size 2 --expert-tensor-parallel-size 1"),
        {"ep": 2, "dp": 1, "model.experts.chosen": 2, "model.experts.width": 4096},
    ),
    "ZeRO-1": (f"{SMALL} --deepspeed --zero-stage 1", {"sharding": "partial"}),
    "ZeRO-3": (f"{SMALL} --zero-stage 3", {"sharding": "full", "dp_overlap": True}),
    "no ZeRO": (
        f"{SMALL} --zero-stage 0 --use-distributed-optimizer", {"sharding": "partial"},
    ),
    "DeepSpeed's one expert is none": (f"{SMALL} --num-experts 1", {"model.experts": None}),
    "DeepSpeed's experts": (
        f"{SMALL} --deepspeed --num-experts 8 8 --moe-expert-parallel-size 2",
        {"ep": 2, "model.experts.routed": 8, "model.experts.chosen": 1},
    ),
    "DeepSpeed's experts of a token": (
        f"{SMALL} --deepspeed --num-experts 8 --topk 2 --moe-train-capacity-factor 1.25",
        {"model.experts.chosen": 2, "capacity_factor": 1.25},
    ),
    "DeepSpeed's Ulysses": (
        f"{SMALL} --ds-sequence-parallel-size 2", {"cp": 2, "cp_comm": "all-to-all"},
    ),
    "DeepSpeed's norm": (f"{SMALL} --normalization rmsnorm", {"model.norm": "rms"}),
    "all is recomputed, by an older name": (
        f"{SMALL} --checkpoint-activations --checkpoint-num-layers 1", {"recompute": "full"},
    ),
    "all is recomputed, by another": (
        f"{SMALL} --activations-checkpoint-method block --activations-checkpoint-num-layers 2",
        {"recompute": "2"},
    ),
    "DeepSpeed's heads of keys": (f"{SMALL} --num-key-value-heads 4", {"model.kv_heads": 4}),
    "dense layers first": (f"{EXPERTS} --moe-layer-freq ([0]*3+[1]*21)", {"model.dense_layers": 3}),
    "BERT": (f"{SMALL} --bert-no-binary-head", {"model.causal": False, "model.head_layers": 1}),
    "latents": (
        f"{SMALL} --multi-latent-attention --q-lora-rank 192 --kv-channels 128",
        {"model.key_head_dim": 192, "model.value_dim": 128, "model.latent.kv_rank": 32},
    ),
    "offloading": (
        f"{OFFLOADING} core_attn mlp_norm other --activation-offload-fraction 0.5",
        {"offload": 1, "offload_modules": "core_attn,mlp_norm", "offload_share": 0.5},
    ),
    "nothing is offloaded": (
        f"{OFFLOADING} core_attn --activation-offload-fraction 0",
        {"offload": 0, "offload_modules": None, "offload_share": 1.0},
    ),
    "a window": (
        f"{SMALL} --window-size 127,0 --window-attn-skip-freq [1,1,0]*8",
        {"model.window": 128, "model.global_every": 3},
    ),
}  # fmt: skip


def read(text: str, gpus: str = "") -> LaunchFile:
    return read_launch_file(f"torchrun {gpus} pretrain_gpt.py {shlex.join(text.split())}")


@pytest.mark.parametrize("name", CASES)
def test_flags_mean_what_megatron_lm_makes_of_them(name: str) -> None:
    text, expected = CASES[name]
    experiment = read(text).experiment
    found = {}
    for path in expected:
        value: Any = experiment
        for part in path.replace("model.", "transformer.").split("."):
            value = getattr(value, part)
        found[path] = getattr(value, "name", value) if path == "schedule" else value
    assert found == expected


@pytest.mark.parametrize(
    ("gpus", "dp", "said"),
    [
        ("--nproc-per-node 8", 8, None),
        ("--nproc_per_node=4 --nnodes=2", 8, None),
        ("--nnodes 1:4 --nproc-per-node 2", 8, None),
        ("", 1, "1 GPUs, the fewest that the degrees allow"),
    ],
)
def test_gpus_are_those_of_torchrun(gpus: str, dp: int, said: str | None) -> None:
    launch = read(SMALL, gpus)
    assert launch.experiment.dp == dp
    assert any("GPUs" in each for each in launch.assumed) == (said is not None)
    assert said is None or any(each.startswith(said) for each in launch.assumed)


@pytest.mark.parametrize(
    ("words", "gpus"),
    [
        ("srun -N 2 --ntasks-per-node 4 python pretrain_gpt.py", 8),
        ("WORLD_SIZE=16 python pretrain_gpt.py", 16),
        ("mpirun -np 4 python3 pretrain_gpt.py", 4),
        ("python -m torch.distributed.run --nproc_per_node 2 pretrain_gpt.py", 2),
    ],
)
def test_gpus_are_those_of_other_launchers(words: str, gpus: int) -> None:
    assert read_launch_file(f"{words} {SMALL}").experiment.dp == gpus


def test_fewer_gpus_than_the_degrees_need_are_said() -> None:
    launch = read(f"{SMALL} --pipeline-model-parallel-size 4", "--nproc-per-node 2")
    assert launch.experiment.configuration.degrees.devices == 4
    assert any("not the 2 that are said" in each for each in launch.assumed)


NEEDED = dict(zip(SMALL.split()[::2], SMALL.split()[1::2], strict=True))


@given(
    known=st.sets(st.sampled_from(sorted(FLAGS.keys() - NEEDED.keys() - REFUSED.keys()))),
    unknown=st.sets(st.from_regex(r"--[a-z]{3,8}(-[a-z]{3,8}){0,2}", fullmatch=True)),
)
def test_nothing_is_ignored_in_silence(known: set[str], unknown: set[str]) -> None:
    """Each flag is understood or listed, whatever else is given; or the file is refused."""
    named: dict[str, tuple[str, ...]] = {name: (value,) for name, value in NEEDED.items()}
    for name in sorted(known):
        kind = FLAGS[name].kind
        named[name] = () if kind is SWITCH else ("2",)
    for name in sorted(unknown - FLAGS.keys() - OTHER_NAMES.keys() - REFUSED.keys()):
        named[name] = ("3",)
    try:
        launch = megatron_file("job", named, None)
    except InvalidConfiguration:
        return
    understood = {each.partition(" ")[0] for each in launch.understood}
    ignored = {each.name for each in launch.ignored}
    assert understood | ignored >= named.keys()
    assert not understood & ignored
    assert understood <= named.keys()


@pytest.mark.parametrize(
    ("flag", "matters"),
    [
        ("--lr 1e-4", False), ("--save-interval 10", False), ("--log-throughput", False),
        ("--data-path x", False), ("--no-rope-fusion", True), ("--new-idea", True),
        ("--deepspeed_config ds.json", True), ("--deepspeed", False),
        ("--partition-activations", True), ("--deterministic-mode", True),
        ("--rotary-base 500000", False),
    ],
)  # fmt: skip
def test_what_is_left_out_is_listed_and_whether_it_matters(flag: str, matters: bool) -> None:
    [ignored] = read(f"{SMALL} {flag}").ignored
    assert (ignored.name, ignored.matters) == (flag.partition(" ")[0], matters)
    assert ignored.reason


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (SMALL.replace("--num-layers 24", ""), "--num-layers: is missing"),
        (f"{SMALL} --num-layers many", "--num-layers: must be a whole number, not 'many'"),
        (f"{SMALL} --global-batch-size 7", "--global-batch-size: 2 x 1 replicas do not divide 7"),
        (f"{SMALL} --hybrid-layer-pattern M-M", "--hybrid-layer-pattern: Mamba layers"),
        (f"{EXPERTS} --moe-layer-freq ([0]*3+[1]*3)", "is a pattern of 6 layers, not 24"),
        (f"{EXPERTS} --moe-layer-freq no", "--moe-layer-freq: is no pattern such as"),
        (f"{SMALL} --pipeline-model-parallel-size 5 --num-layers-per-virtual-pipeline-stage 2",
         "do not divide 24 layers"),
        (f"{SMALL} --pipeline-model-parallel-size 4 --pipeline-model-parallel-layout Et|tL",
         "2 stages are not on 4 ranks"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_in_one_line(bfpp: Any, flags: str, reason: str) -> None:
    code, out, error = bfpp(f"simulate -- torchrun pretrain_gpt.py {flags}")
    assert (code, out) == (2, "")
    assert error.startswith("bfpp simulate: SCHEDULE: the command: ")
    assert error.count("\n") == 1
    assert reason in error
