"""Values of a model on a cluster: sizes, software, precision, recomputation, cut of layers."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from bfpp.schedules.layout.cut import Balance
from bfpp.schedules.settings.attention import Attention, ContextExchange
from bfpp.schedules.settings.precision import Precision
from bfpp.schedules.settings.recomputation import Recomputation
from bfpp.schedules.settings.tensor_overlap import TensorOverlap
from bfpp.sim.cluster.cluster import Cluster
from bfpp.sim.cluster.constants import Constants
from bfpp.sim.cluster.software_profiles import IMPLEMENTATIONS, Implementation
from bfpp.sim.experiment.values.option import (
    ACTIVATIONS,
    EXPERTS,
    LAYERS,
    MODEL,
    PRECISION,
    WITHIN_LAYERS,
    option,
)
from bfpp.sim.experiment.values.step import StepValues
from bfpp.sim.memory.optimizer_states import ADAM, MOMENTS, STATES
from bfpp.sim.models.model import Transformer


@dataclass(frozen=True)
class PhysicalValues(StepValues):
    """Values of a step whose costs are those of a model on a cluster."""

    _: KW_ONLY
    model: Transformer | str | None = option(
        None,
        MODEL,
        "name",
        "a preset, a TOML file, a Hugging Face config.json, or sizes (layers=24,hidden=1024,...)",
        "NAME|FILE",
    )
    layers: int | None = option(None, MODEL, "count", "number of layers (default: the model's)")
    seq_length: int | None = option(
        None,
        MODEL,
        "count",
        "tokens per sequence (default: the model's; a config.json only says the maximum)",
    )
    prediction: bool = option(
        True, MODEL, "flag", "leave out the model's multi-token prediction modules (MTP)"
    )
    cluster: Cluster | str | None = option(
        None, MODEL, "name", "a preset, or a TOML file", "NAME|FILE"
    )
    implementation: Implementation | str | None = option(
        None,
        MODEL,
        "choice",
        "training software: the paper's library (overlaps communication), Megatron-LM of 2022 "
        "(does not), today's Megatron-LM, PyTorch's FSDP of 2023, torchtitan, or bfpp's executor "
        "(default: the cluster's)",
        choices=tuple(IMPLEMENTATIONS),
    )
    precision: Precision | str | None = option(
        None,
        PRECISION,
        "name",
        "fp16, bf16, fp32 or fp64; or bf16 with low-precision GEMMs: fp8-delayed, fp8-current, "
        "fp8-block, mxfp8 or nvfp4 (default: the implementation's)",
        "NAME",
    )
    quantised_weights: bool = option(
        False,
        PRECISION,
        "flag",
        "store and all-gather the weights of low-precision GEMMs quantised (Megatron-LM's "
        "--fp8-param-gather)",
    )
    update_rule: str = option(
        ADAM,
        PRECISION,
        "choice",
        "what the optimizer keeps besides weights: two moments (adam), one (momentum, of SGD), "
        "none (sgd), or one of matrices, which are made orthogonal, and two of all else (muon) "
        "(default: adam)",
        choices=tuple(MOMENTS),
    )
    moments: str | None = option(
        None,
        PRECISION,
        "choice",
        "precision of the optimizer's moments (default: fp32)",
        choices=STATES["moments"],
    )
    master_weights: str | None = option(
        None,
        PRECISION,
        "choice",
        "precision of the optimizer's copy of the weights (default: fp32)",
        choices=STATES["master_weights"],
    )
    main_gradients: str | None = option(
        None,
        PRECISION,
        "choice",
        "precision in which gradients are accumulated and reduced (default: the implementation's)",
        choices=STATES["main_gradients"],
    )
    quantised_dispatch: bool = option(
        False,
        EXPERTS,
        "flag",
        "dispatch tokens, and the gradients of the experts' outputs, quantised (DeepEP)",
    )
    quantised_attention: bool = option(
        False, PRECISION, "flag", "attention's own GEMMs take 8-bit operands too"
    )
    quantised_head: bool = option(
        False, PRECISION, "flag", "the output layer's GEMMs are low-precision too"
    )
    quantised_activation: bool = option(
        False,
        PRECISION,
        "flag",
        "keep the input of a gated activation for the backward pass in 8 bits",
    )
    recompute: Recomputation | str | None = option(
        None,
        ACTIVATIONS,
        "name",
        "activation checkpointing: none, selective (core attention), full, the number of layers "
        "of each stage (or a list of these), or a list of modules (default: the implementation's)",
        "POLICY",
    )
    offload_share: float = option(
        1.0,
        ACTIVATIONS,
        "number",
        "share of a pass's activations that --offload moves; the rest stay on the device",
        "X",
    )
    offload_modules: str | None = option(
        None,
        ACTIVATIONS,
        "name",
        "modules whose inputs --offload moves, a list of attn_norm, qkv_linear, core_attn, "
        "attn_proj, mlp_norm, expert_fc1 and moe_act (default: all that a pass saves)",
        "MODULES",
    )
    attention: Attention | str | None = option(
        None,
        ACTIVATIONS,
        "choice",
        "whether attention is fused, so that scores and probabilities stay on the chip "
        "(default: the implementation's)",
        choices=tuple(Attention),
    )
    sequence_parallel: bool | None = option(
        None,
        WITHIN_LAYERS,
        "flag",
        "shard the activations between layers over tensor-parallel devices too "
        "(default: the implementation's)",
    )
    tp_overlap: TensorOverlap | str | None = option(
        None,
        WITHIN_LAYERS,
        "choice",
        "tensor-parallel communication that GEMMs hide: none; in the backward pass, with the GEMM "
        "that does not wait for it (bulk); that and, in chunks, with the GEMM that it feeds or "
        "follows (chunked: Megatron-LM's --tp-comm-overlap) (default: the implementation's)",
        choices=tuple(TensorOverlap),
    )
    cp_comm: ContextExchange | str = option(
        ContextExchange.RING,
        WITHIN_LAYERS,
        "choice",
        "context-parallel communication: keys and values around a ring, overlapped with attention; "
        "an all-to-all of heads and sequence; or an all-gather of keys and values",
        choices=tuple(ContextExchange),
    )
    capacity_factor: float | None = option(
        None,
        EXPERTS,
        "number",
        "capacity of each expert over the mean load, padded to it (default: dropless)",
        "X",
    )
    expert_imbalance: float = option(
        1.0,
        EXPERTS,
        "number",
        "load of the busiest expert-parallel device over the mean, without a capacity",
        "X",
    )
    dispatch: str = option(
        "all-to-all",
        EXPERTS,
        "choice",
        "how tokens are sent: once per chosen expert, or once per device that has any of them, and "
        "once per node over the network (DeepEP, HybridEP)",
        choices=("all-to-all", "deduplicated"),
    )
    shared_overlap: bool = option(
        False, EXPERTS, "flag", "overlap dispatch and combine with the shared experts"
    )
    microbatch_overlap: bool = option(
        False,
        EXPERTS,
        "flag",
        "overlap dispatch and combine with another micro-batch (Megatron-LM's "
        "--overlap-moe-expert-parallel-comm, DualPipe)",
    )
    fused_experts: bool = option(
        False,
        EXPERTS,
        "flag",
        "one kernel per GEMM for all experts, fused with the activation and casts after it "
        "(Transformer Engine's grouped MLP)",
    )
    fused_router: bool = option(
        False,
        EXPERTS,
        "flag",
        "fused routing kernels (Megatron-LM's --moe-router-fusion)",
    )
    cuda_graphs: bool = option(
        False, MODEL, "flag", "launch kernels as CUDA graphs, at less cost to the host"
    )
    cut: str | None = option(
        None,
        LAYERS,
        "text",
        "layers of each stage: even, fewer-at-ends, a list such as 7,8,8,7, Megatron-LM's layout "
        "(Et*7|(t*8|)*2t*7L), or torchtitan's lists of module names; the last two also set --loops "
        "(default: even)",
        "CUT",
    )
    balance: Balance | None = option(
        None,
        LAYERS,
        "choice",
        "choose the layers of each stage to minimise the fullest rank's time or peak memory",
        choices=tuple(Balance),
    )
    constants: Constants | str | None = option(
        None,
        MODEL,
        "name",
        "constants of clusters and implementations, as bfpp fit writes them (default: as shipped)",
        "FILE",
    )
