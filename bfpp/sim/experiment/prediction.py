"""The physical numbers of a timeline, in the units of the paper's tables."""

from __future__ import annotations

from typing import NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt

from bfpp.schedules import Layout
from bfpp.schedules.columns import Seconds
from bfpp.sim.cluster.cluster import Device
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.memory.device_memory import memories_of
from bfpp.sim.memory.peak_memory import Memories, fits_probability
from bfpp.traces.timeline.timeline import Timeline
from bfpp.traces.timeline.units import GIGABYTE

Counts = npt.NDArray[np.integer]


class StepPrediction(TypedDict):
    """Throughput, and memory as the paper measures it, of one training step.

    `tflops_per_gpu` is in 1e12 FLOP/s by the paper's C_GPU, with what is
    recomputed, `model_tflops_per_gpu` without. `memory_reserved_gb` decides what fits: the peak of
    the rank that needs most, `memory_largest_gb`, by part in `memory_parts_gb`, with what
    allocator, context and communicators add to it; its 80 % interval is from
    `memory_reserved_low_gb` to `memory_reserved_high_gb`. `missing_gb` is by how much that is more
    than a job may reserve (`Device.memory_limit`, or all of `device_memory_gb`), or 0, and
    `fits_probability` how sure it is not to be more. `memory_gb` is the peak of global rank zero,
    as the paper measures it, `memory_min_gb` the same over infinitely many data-parallel ranks. All
    in GiB. `mfu` and `hfu` are shares of the device's peak, without and with what is recomputed.
    """

    tflops_per_gpu: float
    model_tflops_per_gpu: float
    mfu: float
    hfu: float
    memory_reserved_gb: float
    memory_reserved_low_gb: float
    memory_reserved_high_gb: float
    memory_largest_gb: float
    memory_parts_gb: dict[str, float]
    device_memory_gb: float
    missing_gb: float
    fits_probability: float
    memory_gb: float
    memory_min_gb: float
    samples_per_second: float
    tokens_per_second_per_gpu: float


class SampleWork(NamedTuple):
    """Tokens of the mean sample that are no padding, and its operations over a full sample's."""

    tokens: float
    model_flops: float = 1.0
    hardware_flops: float = 1.0


def predict(
    timeline: Timeline, physical: PhysicalCosts, work: SampleWork | None = None
) -> StepPrediction:
    """The prediction of one training step, of full sequences unless their work is given."""
    graph = timeline.graph
    memories = memories_of(graph, physical)
    return prediction(
        timeline.step_time, graph.layout, physical, memories, trains=graph.trains, work=work
    )


def prediction(
    step_time: float,
    layout: Layout,
    physical: PhysicalCosts,
    memories: Memories,
    *,
    trains: bool = True,
    work: SampleWork | None = None,
) -> StepPrediction:
    """The prediction of a step of this time, with its ranks' memory."""
    of_model, of_hardware = physical.step_flops(layout, trains=trains)
    work = work or SampleWork(physical.model.sequence)
    columns = step_columns(
        np.array([step_time]),
        StepWork(
            np.array([physical.batch(layout)]),
            np.array([physical.devices(layout)]),
            np.array([work.model_flops * of_model]),
            np.array([work.hardware_flops * of_hardware]),
            np.array([physical.cluster.device.peak_of(physical.execution.precision)]),
            work.tokens,
        ),
        Memories(*np.array(memories.fullest)[:, np.newaxis]),
        Memories(*np.array(memories.of(0))[:, np.newaxis]),
        physical.cluster.device,
    )
    parts = {title: each.item() for title, each in columns.memory_parts_gb.items()}
    numbers = {name: each.item() for name, each in columns.numbers.items()}
    return {**numbers, "memory_parts_gb": parts}  # type: ignore[typeddict-item]


class StepWork(NamedTuple):
    """Work of some steps: samples of so many tokens on all devices, and flop of one device."""

    samples: Counts
    devices: Counts
    model_flops: Seconds
    hardware_flops: Seconds
    peak: Seconds
    tokens: float


class StepColumns(NamedTuple):
    """Numbers of `StepPrediction`, as columns over steps."""

    numbers: dict[str, Seconds]
    memory_parts_gb: dict[str, Seconds]


def step_columns(
    step_time: Seconds, work: StepWork, fullest: Memories, first: Memories, device: Device
) -> StepColumns:
    """The predictions of steps that take so long, with their fullest and their first ranks."""
    samples_per_second = work.samples / step_time
    reserved, (low, high) = fullest.reserved_gb, fullest.reserved_range_gb
    numbers = {
        "tflops_per_gpu": work.hardware_flops / step_time / 1e12,
        "model_tflops_per_gpu": work.model_flops / step_time / 1e12,
        "mfu": work.model_flops / step_time / work.peak,
        "hfu": work.hardware_flops / step_time / work.peak,
        "memory_reserved_gb": reserved,
        "memory_reserved_low_gb": low,
        "memory_reserved_high_gb": high,
        "memory_largest_gb": fullest.total_gb,
        "device_memory_gb": np.full(len(step_time), device.memory / GIGABYTE),
        "missing_gb": np.maximum(reserved - device.usable_memory / GIGABYTE, 0.0),
        "fits_probability": fits_probability(fullest.reserved, device.usable_memory),
        "memory_gb": first.total_gb,
        "memory_min_gb": first.minimum.total_gb,
        "samples_per_second": samples_per_second,
        "tokens_per_second_per_gpu": samples_per_second * work.tokens / work.devices,
    }
    return StepColumns(numbers, fullest.parts_gb)
