"""The command that trains an experiment with Megatron-LM.

Flags are those of Megatron-LM 0.20 (`megatron/training/arguments.py`, and the fields of its
configurations). Flags that would only repeat a default are left out. Data, tokenizer and learning
rate are no part of an experiment.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping

from bfpp.frameworks import FrameworkConfig, loops_around, unsaid
from bfpp.schedules import Per, Sharding, registered_name
from bfpp.schedules.attention import Attention, ContextExchange
from bfpp.schedules.cut_formats import layout_text
from bfpp.schedules.offload import ALL, OFF
from bfpp.schedules.precision import Precision
from bfpp.schedules.recomputation import CORE_ATTENTION, LAYER
from bfpp.sim.experiment import Experiment
from bfpp.sim.optimizer_states import ADAM

Flags = Mapping[str, object]
"""Flags by name. `True` is a flag alone, a tuple one of several values; None and False are none."""

OWN = "1f1b", "depth-first"
"""Megatron-LM's schedules: 1F1B, and interleaved 1F1B."""

RECIPES = {
    Precision.FP8_DELAYED: "delayed",
    Precision.FP8_CURRENT: "tensorwise",
    Precision.FP8_BLOCK: "blockwise",
    Precision.MXFP8: "mxfp8",
}
"""Recipes of Transformer Engine for FP8."""

EXCHANGES = {
    ContextExchange.RING: "p2p",
    ContextExchange.ALL_TO_ALL: "a2a",
    ContextExchange.ALL_GATHER: "all_gather",
}

SAID = frozenset(
    {
        "pp_overlap", "dp_overlap", "gather_per", "reduce_per", "update_rule", "moments",
        "master_weights", "main_gradients", "quantised_weights", "quantised_dispatch", "cp_comm",
        "capacity_factor", "offload", "offload_share", "offload_modules", "dispatch",
        "shared_overlap", "fused_router", "cuda_graphs", "tied_embeddings", "quantised_activation",
    }
)  # fmt: skip
"""Values that flags set, in addition to those that every framework sets."""


def command(experiment: Experiment) -> FrameworkConfig:
    """The command, a flag a line, and what it cannot express."""
    physical = experiment.require_physical()
    devices, node = physical.degrees.devices, physical.cluster.domain
    nodes = -(-devices // node)
    program = ["torchrun", f"--nnodes={nodes}", f"--nproc-per-node={min(devices, node)}"]
    flags = [flag for part in PARTS for flag in part(experiment).items()]
    lines = [shlex.join((name, *_values(value))) for name, value in flags if _is_given(value)]
    missing = (*_missing(experiment), *unsaid(experiment, SAID))
    text = " \\\n    ".join([" ".join((*program, "pretrain_gpt.py")), *lines]) + "\n"
    return FrameworkConfig(text, missing)


def _is_given(value: object) -> bool:
    return value is not None and value is not False


def _values(value: object) -> tuple[str, ...]:
    if value is True:
        return ()
    return tuple(map(str, value)) if isinstance(value, tuple) else (str(value),)


def _of_model(experiment: Experiment) -> Flags:
    model = experiment.transformer
    grouped = model.kv_heads not in (None, model.heads)
    rms, window = model.norm == "rms", model.window
    no_dropout = None if model.has_dropout else 0
    return {
        "--num-layers": model.layers,
        "--hidden-size": model.hidden,
        "--ffn-hidden-size": model.mlp_width,
        "--num-attention-heads": model.heads,
        "--group-query-attention": grouped,
        "--num-query-groups": model.kv_heads if grouped else None,
        "--kv-channels": model.head_dim if model.latent is None else None,
        "--seq-length": model.sequence,
        "--max-position-embeddings": model.sequence,
        "--vocab-size": model.vocabulary,
        "--position-embedding-type": "rope" if model.positions == "rotary" else None,
        "--normalization": "RMSNorm" if rms else None,
        "--disable-bias-linear": rms,
        "--swiglu": model.gated,
        "--attention-dropout": no_dropout,
        "--hidden-dropout": no_dropout,
        "--untie-embeddings-and-output-weights": not (
            model.tied_embeddings or experiment.tied_embeddings
        ),
        "--mtp-num-layers": model.prediction_modules or None,
        "--window-size": None if window is None else f"({window - 1},0)",
        "--window-attn-skip-freq": None if window is None else model.global_every,
    }


def _of_latents(experiment: Experiment) -> Flags:
    """Multi-latent attention."""
    model = experiment.transformer
    if (latent := model.latent) is None:
        return {}
    return {
        "--multi-latent-attention": True,
        "--q-lora-rank": latent.q_rank,
        "--kv-lora-rank": latent.kv_rank,
        "--qk-head-dim": model.key_head_dim - latent.rope_dim,
        "--qk-pos-emb-head-dim": latent.rope_dim,
        "--v-head-dim": model.value_dim,
    }


def _of_experts(experiment: Experiment) -> Flags:
    """A mixture of experts, and how tokens are dispatched."""
    model, capacity = experiment.transformer, experiment.capacity_factor
    if (experts := model.experts) is None:
        return {}
    dense, deduplicated = model.dense_layers, experiment.dispatch == "deduplicated"
    return {
        "--num-experts": experts.routed,
        "--moe-router-topk": experts.chosen,
        "--moe-ffn-hidden-size": experts.width,
        "--moe-grouped-gemm": True,
        "--moe-shared-expert-intermediate-size": experts.shared or None,
        "--moe-layer-freq": f"([0]*{dense}+[1]*{model.layers - dense})" if dense else None,
        "--moe-token-dispatcher-type": "flex" if deduplicated else "alltoall",
        "--moe-flex-dispatcher-backend": "deepep" if deduplicated else None,
        "--moe-expert-capacity-factor": None if capacity is None else f"{capacity:g}",
        "--moe-pad-expert-input-to-capacity": capacity is not None,
        "--moe-shared-expert-overlap": experiment.shared_overlap,
        "--moe-router-fusion": experiment.fused_router,
    }


def _of_groups(experiment: Experiment) -> Flags:
    degrees = experiment.configuration.degrees
    contexts, experts = degrees.cp > 1, degrees.ep > 1
    physical = experiment.require_physical()
    return {
        "--tensor-model-parallel-size": degrees.tp,
        "--pipeline-model-parallel-size": degrees.pp,
        "--sequence-parallel": physical.execution.sequence_parallel,
        "--tp-comm-overlap": physical.overlaps_chunks,
        "--context-parallel-size": degrees.cp if contexts else None,
        "--cp-comm-type": EXCHANGES[ContextExchange(experiment.cp_comm)] if contexts else None,
        "--expert-model-parallel-size": degrees.ep if experts else None,
        "--expert-tensor-parallel-size": 1 if experts else None,
        "--micro-batch-size": experiment.microbatch_size,
        "--global-batch-size": experiment.configuration.batch,
    }


def _of_stages(experiment: Experiment) -> Flags:
    """Virtual stages, or a layout where stages are uneven; and groups of micro-batches."""
    configuration, layout = experiment.configuration, experiment.configuration.layout
    if layout.pp == 1 or not loops_around(layout):
        return {}
    layers, loops = experiment.layers_of_stages, layout.loops > 1
    uneven = len(set(layers)) > 1
    text = layout_text(layers, experiment.transformer.prediction_modules) if uneven else None
    name, sequence = registered_name(configuration.schedule), None
    if name == "depth-first":
        sequence = configuration.schedule.parameters["sequence"]
    elif name == "breadth-first":
        sequence = layout.microbatches
    grouped = loops and sequence not in (None, layout.pp)
    return {
        "--pipeline-model-parallel-layout": text,
        "--num-virtual-stages-per-pipeline-rank": layout.loops if loops and not uneven else None,
        "--microbatch-group-size-per-virtual-pipeline-stage": sequence if grouped else None,
        "--no-overlap-p2p-communication": loops and not configuration.communication.pp_overlap,
    }


def _of_replicas(experiment: Experiment) -> Flags:
    """How data parallelism shards, and which of its communication overlaps."""
    configuration = experiment.configuration
    degrees, communication = configuration.degrees, configuration.communication
    full = communication.sharding is Sharding.FULL
    sharded = communication.sharding is not Sharding.NONE
    overlaps = communication.dp_overlap and degrees.dp * degrees.cp > 1
    instances = degrees.dp_replicate if sharded and degrees.dp_replicate > 1 else None
    return {
        "--use-megatron-fsdp": full,
        "--data-parallel-sharding-strategy": "optim_grads_params" if full else None,
        "--ckpt-format": "fsdp_dtensor" if full else None,
        "--use-distributed-optimizer": sharded,
        "--num-distributed-optimizer-instances": instances,
        "--overlap-grad-reduce": overlaps,
        "--overlap-param-gather": overlaps and sharded,
        "--clip-grad": None if communication.clipping else 0,
    }


def _of_precision(experiment: Experiment) -> Flags:
    physical = experiment.require_physical()
    precision = physical.execution.precision
    fp4, half = precision is Precision.NVFP4, precision is Precision.FP16
    fp8 = "e4m3" if precision is Precision.MXFP8 else "hybrid"
    rule = experiment.update_rule
    states = {
        "--exp-avg-dtype": experiment.moments,
        "--exp-avg-sq-dtype": experiment.moments,
        "--main-params-dtype": experiment.master_weights,
        "--main-grads-dtype": experiment.main_gradients,
    }
    return {
        "--fp16": half,
        "--bf16": precision.is_mixed and not half,
        "--fp8-format": fp8 if precision in RECIPES else None,
        "--fp8-recipe": RECIPES.get(precision),
        "--fp4-format": "e2m1" if fp4 else None,
        f"--{'fp4' if fp4 else 'fp8'}-param-gather": physical.quantised_weights,
        "--optimizer": None if rule == ADAM else "sgd",
        "--sgd-momentum": 0.0 if rule == "sgd" else None,
        "--use-precision-aware-optimizer": any(states.values()),
        **{name: kind or None for name, kind in states.items()},
        "--grad-reduce-in-bf16": experiment.main_gradients == "bf16",
    }


def _of_compute(experiment: Experiment) -> Flags:
    """What is recomputed, and which kernels run."""
    physical = experiment.require_physical()
    modules, layers = physical.recomputation
    full, of_each = LAYER in modules, layers if isinstance(layers, int) else None
    selected = bool(modules) and not full and modules != {CORE_ATTENTION}
    granularity = "full" if full else "selective" if modules else None
    unfused = physical.execution.attention is Attention.UNFUSED
    offloaded, share = physical.offload_modules, physical.offload_share
    offloads = bool(experiment.offload_modules)
    return {
        "--recompute-granularity": granularity,
        "--recompute-method": ("uniform" if of_each is None else "block") if full else None,
        "--recompute-num-layers": of_each or 1 if full else None,
        "--recompute-modules": tuple(sorted(modules)) if selected else None,
        "--fine-grained-activation-offloading": offloads,
        "--offload-modules": tuple(sorted(offloaded)) if offloads else None,
        "--activation-offload-fraction": f"{share:g}" if offloads and share < 1 else None,
        "--activation-func-fp8-input-store": physical.quantised_activation,
        "--attention-backend": "unfused" if unfused else None,
        "--cuda-graph-impl": "local" if physical.implementation.cuda_graphs else None,
    }


def _missing(experiment: Experiment) -> Iterator[str]:
    """What no flag expresses."""
    configuration, physical = experiment.configuration, experiment.require_physical()
    layout, communication = configuration.layout, configuration.communication
    name, parallel = registered_name(configuration.schedule), layout.pp > 1
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
        yield f"the schedule {configuration.schedule.reference}; these flags run {runs}"
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


PARTS: tuple[Callable[[Experiment], Flags], ...] = (
    _of_model, _of_latents, _of_experts, _of_groups, _of_stages, _of_replicas, _of_precision,
    _of_compute,
)  # fmt: skip
"""The groups of flags, in the order of the command."""
