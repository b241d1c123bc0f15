"""The command that trains an experiment with Megatron-LM.

Flags are those of Megatron-LM 0.20 (`megatron/training/arguments.py`, and the fields of its
configurations). Flags that would only repeat a default are left out. Data, tokenizer and learning
rate are no part of an experiment.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from bfpp.frameworks import FrameworkConfig, loops_around, unsaid
from bfpp.schedules import Per, Sharding
from bfpp.schedules.attention import Attention, ContextExchange
from bfpp.schedules.cut_formats import layout_text
from bfpp.schedules.offload import ALL, OFF
from bfpp.schedules.precision import Precision
from bfpp.schedules.recomputation import CORE_ATTENTION, LAYER
from bfpp.schedules.tensor_overlap import TensorOverlap
from bfpp.sim.experiment import Experiment
from bfpp.sim.model import Transformer

Flag = tuple[str, ...]
"""A flag, and its values."""

OWN = "1f1b", "depth-first"
"""Megatron-LM's schedules: 1F1B, and interleaved 1F1B."""

NARROW: dict[Precision, Flag] = {
    Precision.FP8_DELAYED: ("--fp8-recipe", "delayed"),
    Precision.FP8_CURRENT: ("--fp8-recipe", "tensorwise"),
    Precision.FP8_BLOCK: ("--fp8-recipe", "blockwise"),
    Precision.MXFP8: ("--fp8-recipe", "mxfp8"),
}
"""Recipes of Transformer Engine."""

EXCHANGES = {
    ContextExchange.RING: "p2p",
    ContextExchange.ALL_TO_ALL: "a2a",
    ContextExchange.ALL_GATHER: "all_gather",
}

SAID = frozenset(
    {
        "pp_overlap", "dp_overlap", "gather_per", "reduce_per", "moments", "master_weights",
        "main_gradients", "quantised_weights", "quantised_dispatch", "cp_comm", "capacity_factor",
        "offload", "offload_share", "offload_modules", "dispatch", "shared_overlap", "fused_router",
        "cuda_graphs", "tied_embeddings",
    }
)  # fmt: skip
"""Values that flags set, in addition to those that every framework sets."""


def command(experiment: Experiment) -> FrameworkConfig:
    """The command, a flag a line, and what it cannot express."""
    physical = experiment.require_physical()
    flags = [flag for part in PARTS for flag in part(experiment)]
    devices, node = physical.degrees.devices, physical.cluster.domain
    nodes = -(-devices // node)
    program = ["torchrun", f"--nnodes={nodes}", f"--nproc-per-node={min(devices, node)}"]
    lines = [" ".join((*program, "pretrain_gpt.py")), *(shlex.join(flag) for flag in flags)]
    missing = (*_missing(experiment), *unsaid(experiment, SAID))
    return FrameworkConfig(" \\\n    ".join(lines) + "\n", missing)


def _of_model(experiment: Experiment) -> Iterator[Flag]:
    model = experiment.transformer
    yield "--num-layers", str(model.layers)
    yield "--hidden-size", str(model.hidden)
    yield "--ffn-hidden-size", str(model.mlp_width)
    yield "--num-attention-heads", str(model.heads)
    if model.kv_heads not in (None, model.heads):
        yield ("--group-query-attention",)
        yield "--num-query-groups", str(model.kv_heads)
    if model.head_dim is not None and model.latent is None:
        yield "--kv-channels", str(model.head_dim)
    yield "--seq-length", str(model.sequence)
    yield "--max-position-embeddings", str(model.sequence)
    yield "--vocab-size", str(model.vocabulary)
    if model.positions == "rotary":
        yield "--position-embedding-type", "rope"
    if model.norm == "rms":
        yield "--normalization", "RMSNorm"
        yield ("--disable-bias-linear",)
    if model.gated:
        yield ("--swiglu",)
    if not model.has_dropout:
        yield "--attention-dropout", "0"
        yield "--hidden-dropout", "0"
    if not (model.tied_embeddings or experiment.tied_embeddings):
        yield ("--untie-embeddings-and-output-weights",)
    if model.prediction_modules:
        yield "--mtp-num-layers", str(model.prediction_modules)
    if model.window is not None:
        yield "--window-size", f"({model.window - 1},0)"
        if model.global_every is not None:
            yield "--window-attn-skip-freq", str(model.global_every)
    yield from _of_latents(model)
    yield from _of_experts(experiment)


def _of_latents(model: Transformer) -> Iterator[Flag]:
    """Multi-latent attention."""
    if (latent := model.latent) is None:
        return
    yield ("--multi-latent-attention",)
    if latent.q_rank is not None:
        yield "--q-lora-rank", str(latent.q_rank)
    yield "--kv-lora-rank", str(latent.kv_rank)
    yield "--qk-head-dim", str(model.key_head_dim - latent.rope_dim)
    yield "--qk-pos-emb-head-dim", str(latent.rope_dim)
    yield "--v-head-dim", str(model.value_dim)


def _of_experts(experiment: Experiment) -> Iterator[Flag]:
    """A mixture of experts, and how tokens are dispatched."""
    model = experiment.transformer
    if (experts := model.experts) is None:
        return
    yield "--num-experts", str(experts.routed)
    yield "--moe-router-topk", str(experts.chosen)
    yield "--moe-ffn-hidden-size", str(experts.width)
    yield ("--moe-grouped-gemm",)
    if experts.shared:
        yield "--moe-shared-expert-intermediate-size", str(experts.shared)
    if dense := model.dense_layers:
        yield "--moe-layer-freq", f"([0]*{dense}+[1]*{model.layers - dense})"
    if experiment.dispatch == "deduplicated":
        yield "--moe-token-dispatcher-type", "flex"
        yield "--moe-flex-dispatcher-backend", "deepep"
    else:
        yield "--moe-token-dispatcher-type", "alltoall"
    if experiment.capacity_factor is not None:
        yield "--moe-expert-capacity-factor", f"{experiment.capacity_factor:g}"
        yield ("--moe-pad-expert-input-to-capacity",)
    if experiment.shared_overlap:
        yield ("--moe-shared-expert-overlap",)
    if experiment.fused_router:
        yield ("--moe-router-fusion",)


def _of_groups(experiment: Experiment) -> Iterator[Flag]:
    degrees = experiment.configuration.degrees
    yield "--tensor-model-parallel-size", str(degrees.tp)
    yield "--pipeline-model-parallel-size", str(degrees.pp)
    if experiment.require_physical().execution.sequence_parallel:
        yield ("--sequence-parallel",)
    overlap = experiment.require_physical().implementation.tp_overlap
    if degrees.tp > 1 and overlap is TensorOverlap.CHUNKED:
        yield ("--tp-comm-overlap",)
    if degrees.cp > 1:
        yield "--context-parallel-size", str(degrees.cp)
        yield "--cp-comm-type", EXCHANGES[ContextExchange(experiment.cp_comm)]
    if degrees.ep > 1:
        yield "--expert-model-parallel-size", str(degrees.ep)
        yield "--expert-tensor-parallel-size", "1"
    yield "--micro-batch-size", str(experiment.microbatch_size)
    yield "--global-batch-size", str(experiment.configuration.batch)


def _of_stages(experiment: Experiment) -> Iterator[Flag]:
    """Virtual stages, or a layout where stages are uneven; and groups of micro-batches."""
    configuration, layout = experiment.configuration, experiment.configuration.layout
    if layout.pp == 1 or not loops_around(layout):
        return
    layers = experiment.layers_of_stages
    if len(set(layers)) > 1:
        predictions = experiment.transformer.prediction_modules
        yield "--pipeline-model-parallel-layout", layout_text(layers, predictions)
    elif layout.loops > 1:
        yield "--num-virtual-stages-per-pipeline-rank", str(layout.loops)
    if layout.loops > 1:
        sequence = configuration.schedule.parameters.get("sequence")
        if configuration.schedule.name == "breadth-first":
            sequence = layout.microbatches
        if sequence not in (None, layout.pp):
            yield "--microbatch-group-size-per-virtual-pipeline-stage", str(sequence)
        if not configuration.communication.pp_overlap:
            yield ("--no-overlap-p2p-communication",)


def _of_replicas(experiment: Experiment) -> Iterator[Flag]:
    """How data parallelism shards, and which of its communication overlaps."""
    configuration = experiment.configuration
    degrees, communication = configuration.degrees, configuration.communication
    if communication.sharding is Sharding.FULL:
        yield ("--use-megatron-fsdp",)
        yield "--data-parallel-sharding-strategy", "optim_grads_params"
        yield "--ckpt-format", "fsdp_dtensor"
    if communication.sharding is not Sharding.NONE:
        yield ("--use-distributed-optimizer",)
        if degrees.dp_replicate > 1:
            yield "--num-distributed-optimizer-instances", str(degrees.dp_replicate)
    if communication.dp_overlap and degrees.dp * degrees.cp > 1:
        yield ("--overlap-grad-reduce",)
        if communication.sharding is not Sharding.NONE:
            yield ("--overlap-param-gather",)
    if not communication.clipping:
        yield "--clip-grad", "0"


def _of_precision(experiment: Experiment) -> Iterator[Flag]:
    physical = experiment.require_physical()
    precision = physical.execution.precision
    if precision is Precision.FP16:
        yield ("--fp16",)
    elif precision.is_mixed:
        yield ("--bf16",)
    if precision in NARROW:
        yield "--fp8-format", "e4m3" if precision is Precision.MXFP8 else "hybrid"
        yield NARROW[precision]
    if precision is Precision.NVFP4:
        yield "--fp4-format", "e2m1"
    if physical.quantised_weights:
        narrow = "fp4" if precision is Precision.NVFP4 else "fp8"
        yield (f"--{narrow}-param-gather",)
    states = {
        "exp-avg": experiment.moments,
        "exp-avg-sq": experiment.moments,
        "main-params": experiment.master_weights,
        "main-grads": experiment.main_gradients,
    }
    if any(states.values()):
        yield ("--use-precision-aware-optimizer",)
        yield from ((f"--{name}-dtype", kind) for name, kind in states.items() if kind)
    if experiment.main_gradients == "bf16":
        yield ("--grad-reduce-in-bf16",)


def _of_compute(experiment: Experiment) -> Iterator[Flag]:
    """What is recomputed, and which kernels run."""
    physical = experiment.require_physical()
    modules, layers = physical.recomputation
    if LAYER in modules:
        of_each = layers if isinstance(layers, int) else None
        yield "--recompute-granularity", "full"
        yield "--recompute-method", "uniform" if of_each is None else "block"
        yield "--recompute-num-layers", str(of_each or 1)
    elif modules:
        yield "--recompute-granularity", "selective"
        if modules != {CORE_ATTENTION}:
            yield "--recompute-modules", *sorted(modules)
    if experiment.offload_modules:
        yield ("--fine-grained-activation-offloading",)
        yield "--offload-modules", *sorted(physical.offload_modules)
        if physical.offload_share < 1:
            yield "--activation-offload-fraction", f"{physical.offload_share:g}"
    if physical.execution.attention is Attention.UNFUSED:
        yield "--attention-backend", "unfused"
    if physical.implementation.cuda_graphs:
        yield "--cuda-graph-impl", "local"


def _missing(experiment: Experiment) -> Iterator[str]:
    """What no flag expresses."""
    configuration, physical = experiment.configuration, experiment.require_physical()
    layout, communication = configuration.layout, configuration.communication
    name, parallel = configuration.schedule.name, layout.pp > 1
    if isinstance(physical.recomputation.layers, tuple):
        yield f"--recompute {physical.recomputation}; here all layers are recomputed"
    if parallel and layout.loops > 1 and layout.microbatches < layout.pp:
        yield "fewer micro-batches than pipeline ranks: interleaved 1F1B takes no fewer"
    elif parallel and name == "breadth-first" and layout.loops > 1:
        yield (
            "breadth-first; a group of all micro-batches runs their forward passes in its order, "
            "and backward passes begin as soon as the last stage has one to run"
        )
    elif parallel and (name not in OWN or (name == "depth-first" and layout.loops == 1)):
        runs = "interleaved 1F1B" if loops_around(layout) and layout.loops > 1 else "1F1B"
        yield f"the schedule {name}; these flags run {runs}"
    elif parallel and layout.loops == 1 and communication.pp_overlap:
        yield "P2P overlap in 1F1B: Megatron-LM overlaps P2P in interleaved 1F1B only"
    if experiment.offload != OFF:
        yield from _missing_of_offload(experiment)
    if not experiment.transformer.causal:
        yield "attention to later tokens: pretrain_gpt.py masks them"
    full = communication.sharding is Sharding.FULL
    if full and Per.STEP in (communication.gather_per, communication.reduce_per):
        yield "gathering or reducing once a step: Megatron-FSDP does for each micro-batch"
    elif full and layout.microbatches > 1:
        yield "gathering once for a run of micro-batches: Megatron-FSDP does for each"
    if physical.execution.precision is Precision.FP64:
        yield "training in fp64"
    if physical.routing.quantised:
        yield "dispatch in the precision of products (--moe-dispatch-fwd-dtype has mxfp8 alone)"


def _missing_of_offload(experiment: Experiment) -> Iterator[str]:
    modules = experiment.require_physical().offload_modules
    if not modules:
        yield f"offloading all that a pass saves, or {experiment.offload_share:g} of it"
    elif experiment.offload != ALL:
        yield f"--offload {experiment.offload}; here every pass is offloaded"
    if "attn_proj" in modules and "core_attn" not in modules:
        yield "attn_proj without core_attn, which needs the same tensor"


PARTS: tuple[Callable[[Experiment], Iterator[Flag]], ...] = (
    _of_model, _of_groups, _of_stages, _of_replicas, _of_precision, _of_compute,
)  # fmt: skip
"""The groups of flags, in the order of the command."""
