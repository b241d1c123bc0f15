"""The settings that train an experiment with torchtitan.

They are those of torchtitan 0.2, whose `--job.config_file` is TOML; later releases have nearly all
of them, by the same names, as options (`bfpp.launchers.torchtitan.command`). The optimizer and
the data are no part of an experiment.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from bfpp.launchers.launch import UNCLIPPED, FrameworkConfig, Launch
from bfpp.launchers.torchtitan import limits
from bfpp.launchers.torchtitan.flavors import flavor_of
from bfpp.schedules import Sharding, registered_name
from bfpp.schedules.layout.framework_cuts import OLDER_HEAD, module_names
from bfpp.schedules.settings.precision import Precision
from bfpp.schedules.settings.recomputation import LAYER

Settings = dict[str, Any]

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

STAGES = "module_fqns_per_model_part"

FLOAT8, MX = "quantize.linear.float8", "quantize.linear.mx"


def settings(launch: Launch) -> FrameworkConfig:
    """The tables of TOML, and the values that they cannot express."""
    tables = {name: table(launch) for name, table in TABLES.items()}
    if STAGES in (parallelism := tables["parallelism"]):
        parallelism[STAGES] = module_names(launch.layers_of_stages, head=OLDER_HEAD)
    text = "\n".join(
        f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
        for name, table in tables.items()
        if table
    )
    return FrameworkConfig(text, tuple(_missing(launch)))


def _model(launch: Launch) -> Settings:
    precision = launch.precision
    converters = {Precision.FP8_CURRENT: FLOAT8, Precision.MXFP8: MX}
    settings: Settings = {}
    if flavor := flavor_of(launch.transformer):
        settings["name"], settings["flavor"] = flavor
    if precision in converters:
        settings["converters"] = [converters[precision]]
    return settings


def _training(launch: Launch) -> Settings:
    """Batch sizes: the local batch is all micro-batches of a pipeline, else one."""
    precision = launch.precision
    microbatches = launch.microbatches if launch.pp > 1 else 1
    settings: Settings = {
        "local_batch_size": launch.microbatch_size * microbatches,
        "global_batch_size": launch.batch,
        "seq_len": launch.transformer.sequence,
    }
    if precision is Precision.FP32:
        settings["mixed_precision_param"] = "float32"
    return settings


def _parallelism(launch: Launch) -> Settings:
    sharded = launch.sharding is not Sharding.NONE
    replicas = launch.dp_replicate if sharded else launch.dp
    settings: Settings = {
        "data_parallel_replicate_degree": replicas,
        "data_parallel_shard_degree": launch.dp // replicas,
        "tensor_parallel_degree": launch.tp,
        "context_parallel_degree": launch.cp,
        "expert_parallel_degree": launch.ep,
        "pipeline_parallel_degree": launch.pp,
    }
    if launch.overlaps_chunks:  # which the compiler arranges
        settings["enable_async_tensor_parallel"] = True
    if sharded:
        gathers = launch.gathers_runs
        settings["fsdp_reshard_after_forward"] = "always" if gathers else "never"
    if launch.cp > 1 and (rotation := limits.ROTATIONS.get(launch.cp_comm)):
        settings["context_parallel_rotate_method"] = rotation
    if launch.ep > 1:
        settings["expert_tensor_parallel_degree"] = 1
        if launch.dispatch == "deduplicated":
            settings["expert_parallel_comm_backend"] = "deepep"
    return settings | _pipeline(launch) if launch.pp > 1 else settings


def _compile(launch: Launch) -> Settings:
    return {"enable": True} if launch.overlaps_chunks else {}


def _pipeline(launch: Launch) -> Settings:
    """The schedule, or a file of its orders; and which layers each stage has."""
    settings: Settings = {"pipeline_parallel_microbatch_size": launch.microbatch_size}
    if not limits.can_be_ordered(launch.layout):
        return settings
    if pytorchs := _pytorchs(launch):
        settings["pipeline_parallel_schedule"] = pytorchs
    else:
        # Stages are placed by this; the file says in which order they run.
        style = "Interleaved1F1B" if launch.layout.loops_around else "ZBVZeroBubble"
        settings["pipeline_parallel_schedule"] = style
        settings["pipeline_parallel_schedule_csv"] = ORDERS
    settings[STAGES] = module_names(launch.layers_of_stages)
    return settings


def _pytorchs(launch: Launch) -> str | None:
    """PyTorch's schedule that runs the same order, by its name there."""
    schedule, layout = launch.schedule, launch.layout
    name = registered_name(schedule)
    if name not in SCHEDULES or (schedule.looped and layout.loops == 1):
        return None
    if name == "depth-first":
        sequence = schedule.parameters["sequence"] or layout.pp
        if sequence * rounds_of(layout.microbatches, layout.pp) != layout.microbatches:
            return None
    return SCHEDULES[name]


def rounds_of(microbatches: int, pp: int) -> int:
    """PyTorch's rounds of Interleaved1F1B, of as many micro-batches each: our sequences."""
    return max(microbatches // pp, 1)


def _checkpointing(launch: Launch) -> Settings:
    modules, _ = launch.recompute
    return {"mode": "full" if LAYER in modules else "none"}


def _float8(launch: Launch) -> Settings:
    if launch.precision is not Precision.FP8_CURRENT:
        return {}
    gathered = launch.quantised_weights
    return {"recipe_name": "tensorwise", "enable_fsdp_float8_all_gather": gathered}


def _missing(launch: Launch) -> Iterator[str]:
    """Values without a setting."""
    model = launch.transformer
    if flavor_of(model) is None:
        yield f"name and flavor of the model: {model.name} with {model.layers} layers"
    if model.prediction_modules:
        yield "prediction modules (MTP)"
    yield from limits.of_pipeline(launch)
    if launch.pp > 1 and limits.can_be_ordered(launch.layout):
        yield from _orders(launch)
    yield from limits.of_communication(launch)
    yield from limits.of_offload(launch)
    if not launch.clipping:
        yield UNCLIPPED
    yield from limits.of_setting(launch)


def _orders(launch: Launch) -> Iterator[str]:
    """An order of a pipeline that a file is to say, or that differs."""
    name, pytorchs = launch.schedule.reference, _pytorchs(launch)
    if not pytorchs:
        yield (
            f"the schedule {name}, whose order is to be in {ORDERS}: bfpp orders {name} ... "
            f"--format torch > {ORDERS}"
        )
    elif pytorchs == SCHEDULES["breadth-first"]:
        yield "backward passes in the order of micro-batches: LoopedBFS runs them in reverse"


TABLES: dict[str, Callable[[Launch], Settings]] = {
    "model": _model,
    "training": _training,
    "parallelism": _parallelism,
    "activation_checkpoint": _checkpointing,
    "compile": _compile,
    FLOAT8: _float8,
}
"""The tables of the file."""
