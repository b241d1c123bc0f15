"""The physical numbers of a timeline, in the units of the paper's tables."""

from __future__ import annotations

from sim.memory import largest_memory, rank_memory
from sim.model import hardware_flops
from sim.physical import PhysicalCosts
from traces.timeline import Timeline


def predict(timeline: Timeline, physical: PhysicalCosts) -> dict[str, float]:
    """Throughput, and memory as the paper measures it, of one training step.

    `tflops_per_gpu` is in 1e12 flop/s by the paper's C_GPU. `memory_gb` is the
    peak of global rank zero, `memory_largest_gb` that of the rank that needs
    most; `memory_min_gb` is the first over infinitely many data-parallel ranks.
    All three in 2^30 bytes.
    """
    layout = timeline.graph.layout
    samples = physical.data_parallel * physical.microbatch_size * layout.microbatches
    devices = physical.data_parallel * physical.tensor_parallel * layout.pipeline_parallel
    flops = hardware_flops(physical.model, samples) / devices
    first = rank_memory(timeline, physical, 0)
    return {
        "tflops_per_gpu": flops / timeline.step_time / 1e12,
        "memory_gb": first.total_gb,
        "memory_min_gb": first.minimum.total_gb,
        "memory_largest_gb": largest_memory(timeline, physical).total_gb,
        "samples_per_second": samples / timeline.step_time,
    }
