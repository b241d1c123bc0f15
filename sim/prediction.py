"""The physical numbers of a timeline, in the units of the paper's tables."""

from __future__ import annotations

from typing import TypedDict

from bfpp.sim.memory import GIGABYTE, rank_memories
from bfpp.sim.physical import PhysicalCosts
from bfpp.traces.timeline import Timeline


class Prediction(TypedDict):
    """Throughput, and memory as the paper measures it, of one training step.

    `tflops_per_gpu` is in 1e12 flop/s by the paper's C_GPU, with what is
    recomputed. `memory_gb` is the peak of global rank zero, `memory_largest_gb`
    that of the rank that needs most, by part in `memory_parts_gb`; `missing_gb`
    is by how much a device has less than that, if it has. `memory_min_gb` is the
    first over infinitely many data-parallel ranks. All in 2^30 bytes.
    """

    tflops_per_gpu: float
    memory_gb: float
    memory_min_gb: float
    memory_largest_gb: float
    memory_parts_gb: dict[str, float]
    device_memory_gb: float
    missing_gb: float
    samples_per_second: float


def predict(timeline: Timeline, physical: PhysicalCosts) -> Prediction:
    """The prediction of one training step; each rank's memory is priced once."""
    layout = timeline.graph.layout
    samples = physical.data_parallel * physical.microbatch_size * layout.microbatches
    memories = rank_memories(timeline, physical)
    first, fullest = memories[0], max(memories, key=lambda memory: memory.total)
    device_memory = physical.cluster.device.memory / GIGABYTE
    return {
        "tflops_per_gpu": physical.hardware_flops(layout) / timeline.step_time / 1e12,
        "memory_gb": first.total_gb,
        "memory_min_gb": first.minimum.total_gb,
        "memory_largest_gb": fullest.total_gb,
        "memory_parts_gb": fullest.parts_gb,
        "device_memory_gb": device_memory,
        "missing_gb": max(fullest.total_gb - device_memory, 0.0),
        "samples_per_second": samples / timeline.step_time,
    }
