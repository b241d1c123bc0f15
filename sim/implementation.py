"""Whose code runs: what the paper's library and Megatron-LM do differently, as one table.

A calibration changes these numbers and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from schedules import Communication, InvalidConfiguration, Sharding


@dataclass(frozen=True)
class Implementation:
    """What an implementation overlaps, keeps and sends.

    Bytes are for each parameter. `state_bytes` is what sharding divides;
    `update_bytes` is allocated for the optimizer step alone, on top of it.
    `buffers_stages` says that half-precision weights and gradients are kept for
    two of a rank's stages (one on a rank of one stage) instead of for all of
    them, `shards_tied_embedding` that an embedding which two pipeline ranks
    share is sharded like the rest. `optimizer_traffic` is what the update moves through memory.
    `transfer_seconds` is what a transfer takes besides its latency and bytes.
    """

    name: str
    pipeline_overlap: bool
    data_overlap: bool
    state_bytes: float
    update_bytes: float
    weight_bytes: float
    gradient_bytes: float
    buffers_stages: bool
    shards_tied_embedding: bool
    optimizer_traffic: float
    transfer_seconds: float

    def communication(self, sharding: Sharding) -> Communication:
        """What is overlapped, with this sharding."""
        return Communication(sharding, self.pipeline_overlap, self.data_overlap)


PAPER = Implementation(
    name="paper",
    # Appendix Implementation, Distributed training: all of it overlapped, double-buffered.
    pipeline_overlap=True,
    data_overlap=True,
    buffers_stages=True,
    # Tables E.1 and E.2: of 6.6 B over 4 x 1 ranks with partial sharding over 16, 16 bytes for all
    # 130 M parameters of the embedding are on rank 0, and for a sixteenth of the layers'.
    shards_tied_embedding=False,
    # Appendix Details: "exactly 16" bytes; weights, two moments, gradients in full precision.
    state_bytes=16,
    update_bytes=0,
    # Appendix Memory efficiency: "fp16 weight and gradient buffers".
    weight_bytes=2,
    gradient_bytes=2,
    # Assumed: Adam reads 16 bytes (state_bytes), writes 12, and 2 in half precision.
    optimizer_traffic=30,
    # Assumed: what Megatron-LM's take, but beside the compute.
    transfer_seconds=0.4e-3,
)

MEGATRON = Implementation(
    name="megatron",
    # Section Evaluation: no data-parallel or pipeline-parallel network overlap.
    pipeline_overlap=False,
    data_overlap=False,
    buffers_stages=False,
    shards_tied_embedding=True,
    # Appendix Details: "approximately 12" bytes; weights and two moments in full precision.
    state_bytes=12,
    # There, footnote: full-precision gradients "are allocated on the fly".
    update_bytes=4,
    weight_bytes=2,
    gradient_bytes=2,
    # Assumed: as above, and gradients are copied (6 bytes), unscaled (8) and normed (4).
    optimizer_traffic=48,
    # Section "Bubble and network overheads": 30 % of the peak at 8 loops against 43 % at one (52 B
    # model, 64 micro-batches, 8 x 8 ranks). Simulated, that ratio needs this much.
    transfer_seconds=0.4e-3,
)

IMPLEMENTATIONS = {each.name: each for each in (PAPER, MEGATRON)}


def find_implementation(name: str) -> Implementation:
    """The implementation of that name, or `InvalidConfiguration`."""
    if name not in IMPLEMENTATIONS:
        known = ", ".join(IMPLEMENTATIONS)
        raise InvalidConfiguration("implementation", f"{name!r} is not one of {known}")
    return IMPLEMENTATIONS[name]
