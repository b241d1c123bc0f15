"""Whose code runs: what the paper's library and Megatron-LM do differently, as one table.

What the hardware does is in the cluster's file. The numbers in `FITTED` come
from `bfpp fit`, as shipped in `sim/presets/fitted.toml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from bfpp.schedules import Communication, InvalidConfiguration, Sharding
from bfpp.schedules.invalid import did_you_mean
from bfpp.sim.preset_files import Table, fitted_settings


@dataclass(frozen=True)
class Implementation:
    """What an implementation overlaps, keeps and sends.

    Bytes are for each parameter. `state_bytes` is what sharding divides;
    `update_bytes` is allocated for the optimizer step alone, on top of it.
    `buffers_stages` says that half-precision weights and gradients are kept for
    two of a rank's stages (one on a rank of one stage) instead of for all of
    them, `shards_tied_embedding` that an embedding which two pipeline ranks
    share is sharded like the rest. `optimizer_traffic` is what the update moves
    through memory, `accumulation_traffic` what it takes to add the gradients of
    one micro-batch to those before.

    `blocking_transfers` says that compute waits for transfers: all that a rank
    has at one moment are posted together, in both directions, and the step that
    needs one is longer by what it takes. `transfer_seconds` is what a transfer
    between two devices takes besides its latency and bytes, and as much again
    for each doubling of the tensor-parallel groups at its ends.
    `overlap_slowdown` is the share of the time of an overlapped transfer by
    which it slows the compute at its ends.
    """

    name: str
    pp_overlap: bool
    dp_overlap: bool
    blocking_transfers: bool
    state_bytes: float
    update_bytes: float
    weight_bytes: float
    gradient_bytes: float
    buffers_stages: bool
    shards_tied_embedding: bool
    optimizer_traffic: float
    accumulation_traffic: float
    transfer_seconds: float
    overlap_slowdown: float

    def communication(self, sharding: Sharding) -> Communication:
        """Which operations have lanes of their own, with this sharding."""
        return Communication(sharding, self.pp_overlap, self.dp_overlap)


PAPER = Implementation(
    name="paper",
    # Appendix Implementation, Distributed training: all of it overlapped, double-buffered.
    pp_overlap=True,
    dp_overlap=True,
    blocking_transfers=False,
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
    # Assumed: a half-precision sum; two reads and a write.
    accumulation_traffic=6,
    # Fitted, it is less than its standard error; what is fitted is the slowdown.
    transfer_seconds=0.0,
    overlap_slowdown=0.16,
)

MEGATRON = Implementation(
    name="megatron",
    # Section Evaluation: no data-parallel or pipeline-parallel network overlap. Transfers still
    # have lanes of their own: one rank's are under way at the same time.
    pp_overlap=True,
    dp_overlap=False,
    blocking_transfers=True,
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
    accumulation_traffic=6,
    transfer_seconds=1e-3,
    overlap_slowdown=0.0,
)

FITTED = ("transfer_seconds", "overlap_slowdown")


def with_fitted(fitted: Mapping[str, Table]) -> dict[str, Implementation]:
    """The implementations by name, with the constants that `bfpp fit` wrote for them."""
    known = {each.name: each for each in (PAPER, MEGATRON)}
    return {
        name: replace(each, **{key: fitted[name][key] for key in FITTED if key in fitted[name]})
        if name in fitted
        else each
        for name, each in known.items()
    }


IMPLEMENTATIONS = with_fitted(fitted_settings("implementations"))
PAPER, MEGATRON = IMPLEMENTATIONS["paper"], IMPLEMENTATIONS["megatron"]


def find_implementation(name: str, fitted: Mapping[str, Table] | None = None) -> Implementation:
    """The implementation of that name, or `InvalidConfiguration`; with fitted constants."""
    known = IMPLEMENTATIONS if fitted is None else with_fitted(fitted)
    if name not in known:
        names, meant = ", ".join(known), did_you_mean(name, known)
        raise InvalidConfiguration("implementation", f"{name!r} is not one of {names}{meant}")
    return known[name]
