"""The command that trains an experiment with Megatron-LM.

Flags are those of Megatron-LM 0.20 (`megatron/training/arguments.py`, and the fields of its
configurations). Flags that would only repeat a default are left out. Data, tokenizer and learning
rate are no part of an launch.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping

from bfpp.launchers.launch import (
    UNCLIPPED,
    FrameworkConfig,
    Launch,
    loops_around,
    missing_without_pipeline,
)
from bfpp.schedules import InvalidConfiguration, Per, Sharding, registered_name
from bfpp.schedules.layout.framework_cuts import layout_text
from bfpp.schedules.settings.attention import Attention, ContextExchange
from bfpp.schedules.settings.offloading import ALL, OFF
from bfpp.schedules.settings.precision import Precision
from bfpp.schedules.settings.recomputation import CORE_ATTENTION, LAYER
from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.memory.optimizer_states import ADAM

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


def command(launch: Launch) -> FrameworkConfig:
    """The command, a flag a line, and what it cannot express."""
    devices, node = launch.devices, launch.node
    nodes = -(-devices // node)
    program = ["torchrun", f"--nnodes={nodes}", f"--nproc-per-node={min(devices, node)}"]
    flags = [flag for part in PARTS for flag in part(launch).items()]
    lines = [shlex.join((name, *_values(value))) for name, value in flags if _is_given(value)]
    text = " \\\n    ".join([" ".join((*program, "pretrain_gpt.py")), *lines]) + "\n"
    return FrameworkConfig(text, tuple(_missing(launch)))


def _is_given(value: object) -> bool:
    return value is not None and value is not False


def _values(value: object) -> tuple[str, ...]:
    if value is True:
        return ()
    return tuple(map(str, value)) if isinstance(value, tuple) else (str(value),)


def _of_model(launch: Launch) -> Flags:
    model = launch.transformer
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
            model.tied_embeddings or launch.tied_embeddings
        ),
        "--mtp-num-layers": model.prediction_modules or None,
        "--window-size": None if window is None else f"({window - 1},0)",
        "--window-attn-skip-freq": None if window is None else model.global_every,
    }


def _of_latents(launch: Launch) -> Flags:
    """Multi-latent attention."""
    model = launch.transformer
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


def _of_experts(launch: Launch) -> Flags:
    """A mixture of experts, and how tokens are dispatched."""
    model, capacity = launch.transformer, launch.capacity_factor
    if (experts := model.experts) is None:
        return {}
    dense, deduplicated = model.dense_layers, launch.dispatch == "deduplicated"
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
        "--moe-shared-expert-overlap": launch.shared_overlap,
        "--moe-router-fusion": launch.fused_router,
    }


def _of_groups(launch: Launch) -> Flags:
    contexts, experts = launch.cp > 1, launch.ep > 1
    return {
        "--tensor-model-parallel-size": launch.tp,
        "--pipeline-model-parallel-size": launch.pp,
        "--sequence-parallel": launch.sequence_parallel,
        "--tp-comm-overlap": launch.overlaps_chunks,
        "--context-parallel-size": launch.cp if contexts else None,
        "--cp-comm-type": EXCHANGES[launch.cp_comm] if contexts else None,
        "--expert-model-parallel-size": launch.ep if experts else None,
        "--expert-tensor-parallel-size": 1 if experts else None,
        "--micro-batch-size": launch.microbatch_size,
        "--global-batch-size": launch.batch,
    }


def _of_stages(launch: Launch) -> Flags:
    """Virtual stages, or a layout where stages are uneven; and groups of micro-batches."""
    layout = launch.layout
    if layout.pp == 1 or not loops_around(layout):
        return {}
    layers, loops = launch.layers_of_stages, layout.loops > 1
    uneven = len(set(layers)) > 1
    text = layout_text(layers, launch.transformer.prediction_modules) if uneven else None
    name, sequence = registered_name(launch.schedule), None
    if name == "depth-first":
        sequence = launch.schedule.parameters["sequence"]
    elif name == "breadth-first":
        sequence = layout.microbatches
    grouped = loops and sequence not in (None, layout.pp)
    return {
        "--pipeline-model-parallel-layout": text,
        "--num-virtual-stages-per-pipeline-rank": layout.loops if loops and not uneven else None,
        "--microbatch-group-size-per-virtual-pipeline-stage": sequence if grouped else None,
        "--no-overlap-p2p-communication": loops and not launch.pp_overlap,
    }


def _of_replicas(launch: Launch) -> Flags:
    """Data parallelism: sharding, and overlap of its communication."""
    full = launch.sharding is Sharding.FULL
    sharded = launch.sharding is not Sharding.NONE
    overlaps = launch.dp_overlap and launch.dp * launch.cp > 1
    instances = launch.dp_replicate if sharded and launch.dp_replicate > 1 else None
    return {
        "--use-megatron-fsdp": full,
        "--data-parallel-sharding-strategy": "optim_grads_params" if full else None,
        "--ckpt-format": "fsdp_dtensor" if full else None,
        "--use-distributed-optimizer": sharded,
        "--num-distributed-optimizer-instances": instances,
        "--overlap-grad-reduce": overlaps,
        "--overlap-param-gather": overlaps and sharded,
    }


def _of_precision(launch: Launch) -> Flags:
    precision = launch.precision
    fp4, half = precision is Precision.NVFP4, precision is Precision.FP16
    fp8 = "e4m3" if precision is Precision.MXFP8 else "hybrid"
    rule = launch.update_rule
    states = {
        "--exp-avg-dtype": launch.moments,
        "--exp-avg-sq-dtype": launch.moments,
        "--main-params-dtype": launch.master_weights,
        "--main-grads-dtype": launch.main_gradients,
    }
    return {
        "--fp16": half,
        "--bf16": precision.is_mixed and not half,
        "--fp8-format": fp8 if precision in RECIPES else None,
        "--fp8-recipe": RECIPES.get(precision),
        "--fp4-format": "e2m1" if fp4 else None,
        f"--{'fp4' if fp4 else 'fp8'}-param-gather": launch.quantised_weights,
        "--optimizer": None if rule == ADAM else "sgd",
        "--sgd-momentum": 0.0 if rule == "sgd" else None,
        "--use-precision-aware-optimizer": any(states.values()),
        **{name: kind or None for name, kind in states.items()},
        "--grad-reduce-in-bf16": launch.main_gradients == "bf16",
    }


def _of_compute(launch: Launch) -> Flags:
    """Activation checkpointing and kernels."""
    modules, layers = launch.recompute
    full, of_each = LAYER in modules, layers if isinstance(layers, int) else None
    selected = bool(modules) and not full and modules != {CORE_ATTENTION}
    granularity = "full" if full else "selective" if modules else None
    unfused = launch.attention is Attention.UNFUSED
    offloaded, share = launch.offload_modules, launch.offload_share
    offloads = bool(offloaded)
    return {
        "--recompute-granularity": granularity,
        "--recompute-method": ("uniform" if of_each is None else "block") if full else None,
        "--recompute-num-layers": of_each or 1 if full else None,
        "--recompute-modules": tuple(sorted(modules)) if selected else None,
        "--fine-grained-activation-offloading": offloads,
        "--offload-modules": tuple(sorted(offloaded)) if offloads else None,
        "--activation-offload-fraction": f"{share:g}" if offloads and share < 1 else None,
        "--activation-func-fp8-input-store": launch.quantised_activation,
        "--attention-backend": "unfused" if unfused else None,
        "--cuda-graph-impl": "local" if launch.cuda_graphs else None,
    }


def _missing(launch: Launch) -> Iterator[str]:
    """Settings without a flag."""
    layout, recompute = launch.layout, launch.recompute
    name, parallel = registered_name(launch.schedule), layout.pp > 1
    yield from missing_without_pipeline(launch)
    if not launch.clipping:
        yield UNCLIPPED
    if isinstance(recompute.layers, tuple):
        yield f"--recompute {recompute}; here all layers are recomputed"
    if parallel and layout.loops > 1 and layout.microbatches < layout.pp:
        yield "fewer micro-batches than pipeline ranks: interleaved 1F1B takes no fewer"
    elif parallel and name == "breadth-first" and layout.loops > 1:
        yield (
            "breadth-first; a group of all micro-batches runs their forward passes in its order, "
            "and backward passes begin as soon as the last stage has one to run"
        )
    elif parallel and (name not in OWN or (name == "depth-first" and layout.loops == 1)):
        runs = "interleaved 1F1B" if loops_around(layout) and layout.loops > 1 else "1F1B"
        yield f"the schedule {launch.schedule.reference}; these flags run {runs}"
    elif parallel and layout.loops == 1 and launch.pp_overlap:
        yield _missing_overlap(launch.experiment)
    if launch.offload != OFF:
        yield from _missing_of_offload(launch)
    if not launch.transformer.causal:
        yield "attention to later tokens: pretrain_gpt.py masks them"
    full = launch.sharding is Sharding.FULL
    if full and Per.STEP in (launch.gather_per, launch.reduce_per):
        yield "gathering or reducing once a step: Megatron-FSDP does for each micro-batch"
    elif full and layout.microbatches > 1:
        yield "gathering once for a run of micro-batches: Megatron-FSDP does for each"
    if launch.precision is Precision.FP64:
        yield "training in fp64"
    if launch.quantised_dispatch:
        yield "dispatch in the precision of GEMMs (--moe-dispatch-fwd-dtype has mxfp8 alone)"


def _missing_overlap(experiment: Experiment) -> str:
    """The loss without P2P overlap, if that can be predicted."""
    reason = "P2P overlap in 1F1B: Megatron-LM overlaps P2P in interleaved 1F1B only"
    try:
        without = _step_time(experiment.changed(pp_overlap=False))
    except InvalidConfiguration:  # of posts in the order of queues, which overlap
        return reason
    longer = without / _step_time(experiment) - 1
    return f"{reason}; without it (--no-pp-overlap) the step takes {longer:.1%} longer"


def _step_time(experiment: Experiment) -> float:
    return simulate(experiment.graph(), experiment.costs).step_time


def _missing_of_offload(launch: Launch) -> Iterator[str]:
    modules = launch.offload_modules
    if not modules:
        yield f"offloading all that a pass saves, or {launch.offload_share:g} of it"
    elif launch.offload != ALL:
        yield f"--offload {launch.offload}; here every pass is offloaded"
    if "attn_proj" in modules and "core_attn" not in modules:
        yield "attn_proj without core_attn, which needs the same tensor"


PARTS: tuple[Callable[[Launch], Flags], ...] = (
    _of_model, _of_latents, _of_experts, _of_groups, _of_stages, _of_replicas, _of_precision,
    _of_compute,
)  # fmt: skip
"""The groups of flags, in the order of the command."""
