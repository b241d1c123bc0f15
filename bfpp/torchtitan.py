"""The settings that train an experiment with torchtitan.

They are those of torchtitan 0.2, whose `--job.config_file` is TOML; versions after 0.2.2 have
nearly all of them, by the same names, as fields of `Trainer.Config` in Python. The optimizer and
the data are no part of an experiment.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from bfpp.frameworks import FrameworkConfig, loops_around, unsaid
from bfpp.schedules import Configuration, Sharding, registered_name
from bfpp.schedules.attention import Attention, ContextExchange
from bfpp.schedules.cut_formats import module_names
from bfpp.schedules.layout import Layout
from bfpp.schedules.precision import Precision
from bfpp.schedules.recomputation import LAYER
from bfpp.schedules.tensor_overlap import TensorOverlap
from bfpp.sim.experiment import Experiment

Settings = dict[str, Any]

SAID = frozenset({"gather_per", "cp_comm", "dispatch", "quantised_weights"})
"""Values that settings set, in addition to those that every framework sets."""

SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "depth-first": "Interleaved1F1B",
    "breadth-first": "LoopedBFS",
    "zb1p": "InterleavedZeroBubble",
    "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}
"""The schedules of torch.distributed.pipelining, by its names."""

ORDERS = "orders.csv"
"""The file of a compute order that PyTorch's pipelining does not have."""

FLOAT8, MX = "quantize.linear.float8", "quantize.linear.mx"

ROTATIONS = {ContextExchange.RING: "alltoall", ContextExchange.ALL_GATHER: "allgather"}
"""How keys and values are exchanged. Ulysses (all-to-all) is not supported."""


def settings(experiment: Experiment) -> FrameworkConfig:
    """The tables of TOML, and what they cannot express."""
    tables = {name: table(experiment) for name, table in TABLES.items()}
    text = "\n".join(
        f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
        for name, table in tables.items()
        if table
    )
    return FrameworkConfig(text, (*_missing(experiment), *unsaid(experiment, SAID)))


def _model(experiment: Experiment) -> Settings:
    precision = experiment.require_physical().execution.precision
    converters = {Precision.FP8_CURRENT: FLOAT8, Precision.MXFP8: MX}
    return {"converters": [converters[precision]]} if precision in converters else {}


def _training(experiment: Experiment) -> Settings:
    """Batch sizes: the local batch is all micro-batches of a pipeline, else one."""
    precision = experiment.require_physical().execution.precision
    microbatches = experiment.microbatches if experiment.pp > 1 else 1
    found: Settings = {
        "local_batch_size": experiment.microbatch_size * microbatches,
        "global_batch_size": experiment.configuration.batch,
        "seq_len": experiment.transformer.sequence,
    }
    if precision is Precision.FP32:
        found["mixed_precision_param"] = "float32"
    return found


def _parallelism(experiment: Experiment) -> Settings:
    configuration, physical = experiment.configuration, experiment.require_physical()
    degrees, communication = configuration.degrees, configuration.communication
    sharded = communication.sharding is not Sharding.NONE
    replicas = degrees.dp_replicate if sharded else degrees.dp
    found: Settings = {
        "data_parallel_replicate_degree": replicas,
        "data_parallel_shard_degree": degrees.dp // replicas,
        "tensor_parallel_degree": degrees.tp,
        "context_parallel_degree": degrees.cp,
        "expert_parallel_degree": degrees.ep,
        "pipeline_parallel_degree": degrees.pp,
    }
    if physical.overlaps_chunks:  # which the compiler arranges
        found["enable_async_tensor_parallel"] = True
    if sharded:
        gathers = communication.gathers_runs
        found["fsdp_reshard_after_forward"] = "always" if gathers else "never"
    if degrees.cp > 1 and (rotation := ROTATIONS.get(physical.exchange)):
        found["context_parallel_rotate_method"] = rotation
    if degrees.ep > 1:
        found["expert_tensor_parallel_degree"] = 1
        if physical.routing.deduplicated:
            found["expert_parallel_comm_backend"] = "deepep"
    return found | _pipeline(experiment) if degrees.pp > 1 else found


def _compile(experiment: Experiment) -> Settings:
    return {"enable": True} if experiment.require_physical().overlaps_chunks else {}


def _pipeline(experiment: Experiment) -> Settings:
    """The schedule, or a file of its orders; and which layers each stage has."""
    configuration = experiment.configuration
    found: Settings = {"pipeline_parallel_microbatch_size": configuration.microbatch_size}
    if not _can_be_ordered(configuration.layout):
        return found
    if pytorchs := _pytorchs(configuration):
        found["pipeline_parallel_schedule"] = pytorchs
    else:
        # Stages are placed by this; the file says in which order they run.
        style = "Interleaved1F1B" if loops_around(configuration.layout) else "ZBVZeroBubble"
        found["pipeline_parallel_schedule"] = style
        found["pipeline_parallel_schedule_csv"] = ORDERS
    found["module_fqns_per_model_part"] = module_names(experiment.layers_of_stages)
    return found


def _pytorchs(configuration: Configuration) -> str | None:
    """PyTorch's schedule that runs the same order, by its name there."""
    schedule, layout = configuration.schedule, configuration.layout
    name = registered_name(schedule)
    if name not in SCHEDULES or (schedule.looped and layout.loops == 1):
        return None
    if name == "depth-first":
        rounds = max(layout.microbatches // layout.pp, 1)
        sequence = schedule.parameters["sequence"] or layout.pp
        if sequence * rounds != layout.microbatches:
            return None
    return SCHEDULES[name]


def _can_be_ordered(layout: Layout) -> bool:
    """Whether torchtitan can place the stages: looped, or on a V."""
    there = tuple(range(layout.pp))
    vee = layout.placement == there + there[::-1]
    return not layout.copies and layout.slices == 1 and (vee or loops_around(layout))


def _checkpointing(experiment: Experiment) -> Settings:
    modules, _ = experiment.require_physical().recomputation
    return {"mode": "full" if LAYER in modules else "none"}


def _float8(experiment: Experiment) -> Settings:
    physical = experiment.require_physical()
    if physical.execution.precision is not Precision.FP8_CURRENT:
        return {}
    gathered = physical.quantised_weights
    return {"recipe_name": "tensorwise", "enable_fsdp_float8_all_gather": gathered}


def _missing(experiment: Experiment) -> Iterator[str]:
    """What no setting expresses."""
    configuration, physical = experiment.configuration, experiment.require_physical()
    layout, communication = configuration.layout, configuration.communication
    model = experiment.transformer
    yield f"name and flavor of the model: {model.name} with {model.layers} layers"
    if model.prediction_modules:
        yield "prediction modules (MTP)"
    if layout.pp > 1:
        yield from _missing_of_pipeline(configuration)
    if communication.sharding is Sharding.PARTIAL:
        yield "ZeRO-1 and ZeRO-2: this is FSDP whose weights stay gathered for the step"
    elif communication.sharding is Sharding.NONE and configuration.degrees.cp > 1:
        yield "replicas with context parallelism whose weights are not sharded over its devices"
    if not communication.clipping:
        yield "training without clipping gradients by their norm"
    execution = physical.execution
    if execution.tp > 1 and not execution.sequence_parallel:
        yield "tensor parallelism without sequence parallelism"
    if execution.tp > 1 and physical.implementation.tp_overlap is TensorOverlap.BULK:
        yield "tensor-parallel communication that overlaps GEMMs of the backward pass alone"
    if execution.attention is Attention.UNFUSED:
        yield "unfused attention"
    if configuration.degrees.cp > 1 and physical.exchange not in ROTATIONS:
        yield f"context parallelism that exchanges by {physical.exchange}"
    if execution.precision not in THEIRS:
        yield f"training in {execution.precision}; this is in bf16"
    modules, layers = physical.recomputation
    if layers is not None or modules - {LAYER}:
        instead = "all layers are recomputed" if LAYER in modules else "nothing is recomputed"
        yield f"--recompute {physical.recomputation}; here {instead}"
    if physical.quantised_weights and execution.precision is not Precision.FP8_CURRENT:
        yield f"gathering weights in {execution.precision}"


def _missing_of_pipeline(configuration: Configuration) -> Iterator[str]:
    name, layout = configuration.schedule.reference, configuration.layout
    if not _can_be_ordered(layout):
        reason = "slices of micro-batches" if layout.slices > 1 else "such a placement of stages"
        yield f"the schedule {name}: PyTorch's pipelining has no {reason}"
    elif not (pytorchs := _pytorchs(configuration)):
        yield (
            f"the schedule {name}, whose order is to be in {ORDERS}: bfpp orders {name} ... "
            f"--format torch > {ORDERS}"
        )
    elif pytorchs == SCHEDULES["breadth-first"]:
        yield "backward passes in the order of micro-batches: LoopedBFS runs them in reverse"


THEIRS = (Precision.BF16, Precision.FP32, Precision.FP8_CURRENT, Precision.MXFP8)
"""The precisions that torchtitan trains in."""

TABLES: dict[str, Callable[[Experiment], Settings]] = {
    "model": _model,
    "training": _training,
    "parallelism": _parallelism,
    "activation_checkpoint": _checkpointing,
    "compile": _compile,
    FLOAT8: _float8,
}
"""The tables of the file."""
