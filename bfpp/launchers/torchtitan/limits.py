"""Limits of torchtitan: what none of its settings can launch, and how it communicates.

Each limit reads of a `Launch` the values that it is about, and no others: a search asks it of these
alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bfpp.launchers.launch import Launch, missing_without_pipeline
from bfpp.schedules import Communication, Layout, Per, Sharding
from bfpp.schedules.settings.attention import Attention, ContextExchange
from bfpp.schedules.settings.offloading import OFF
from bfpp.schedules.settings.precision import Precision
from bfpp.schedules.settings.recomputation import LAYER
from bfpp.schedules.settings.tensor_overlap import TensorOverlap

ROTATIONS = {ContextExchange.RING: "alltoall", ContextExchange.ALL_GATHER: "allgather"}
"""Exchange of keys and values. Ulysses (all-to-all) is not supported."""

THEIRS = (Precision.BF16, Precision.FP32, Precision.FP8_CURRENT, Precision.MXFP8)
"""The precisions that torchtitan trains in."""


def of_pipeline(launch: Launch) -> Iterator[str]:
    """Placements of stages that PyTorch's pipelining does not have; a file may say any order."""
    if launch.pp == 1:
        yield from missing_without_pipeline(launch)
    elif not can_be_ordered(launch.layout):
        name, sliced = launch.schedule.reference, launch.layout.slices > 1
        reason = "slices of micro-batches" if sliced else "such a placement of stages"
        yield f"the schedule {name}: PyTorch's pipelining has no {reason}"


def can_be_ordered(layout: Layout) -> bool:
    """True if torchtitan can place the stages: looped, or on a V."""
    there = tuple(range(layout.pp))
    vee = layout.placement == there + there[::-1]
    return not layout.copies and layout.slices == 1 and (vee or layout.loops_around)


def of_communication(launch: Launch) -> Iterator[str]:
    """Sharding without a setting."""
    if launch.sharding is Sharding.PARTIAL:
        yield "ZeRO-1 and ZeRO-2: this is FSDP whose weights stay gathered for the step"
    elif launch.sharding is Sharding.NONE and launch.cp > 1:
        yield "replicas with context parallelism whose weights are not sharded over its devices"
    elif launch.sharding is Sharding.FULL and launch.layout.microbatches > 1:
        if launch.pp > 1 and launch.reduce_per is Per.RUN:
            yield "reducing gradients after each run: with a pipeline, once a step"
        elif launch.pp == 1 and launch.reduce_per is Per.STEP:
            yield "reducing gradients once a step, not for each micro-batch: here, with a pipeline"


def of_setting(launch: Launch) -> Iterator[str]:
    """Precisions, kernels and what is recomputed, without a setting."""
    if launch.tp > 1 and not launch.sequence_parallel:
        yield "tensor parallelism without sequence parallelism"
    if launch.tp > 1 and launch.tp_overlap is TensorOverlap.BULK:
        yield "tensor-parallel communication that overlaps GEMMs of the backward pass alone"
    if launch.attention is Attention.UNFUSED:
        yield "unfused attention"
    if launch.cp > 1 and launch.cp_comm not in ROTATIONS:
        yield f"context parallelism that exchanges by {launch.cp_comm}"
    if launch.precision not in THEIRS:
        yield f"training in {launch.precision}; this is in bf16"
    modules, layers = launch.recompute
    if layers is not None or modules - {LAYER}:
        instead = "all layers are recomputed" if LAYER in modules else "nothing is recomputed"
        yield f"--recompute {launch.recompute}; here {instead}"
    if launch.quantised_weights and launch.precision is not Precision.FP8_CURRENT:
        yield f"gathering weights in {launch.precision}"


def of_offload(launch: Launch) -> Iterator[str]:
    """Offloading of activations: it has none."""
    if launch.offload != OFF:
        yield "offloading of activations"


def as_run(layout: Layout, communication: Communication) -> Communication:
    """Communication as torchtitan has it.

    PyTorch's pipelining adds up the gradients of all micro-batches, before FSDP reduces them.
    """
    if communication.sharding is not Sharding.FULL:
        return communication
    return replace(communication, reduce_per=Per.STEP if layout.pp > 1 else Per.RUN)
