"""What devices communicate: how the training state is sharded, and what overlaps with compute."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Sharding(StrEnum):
    """How much of the training state each data-parallel device keeps.

    The paper's DP_0 (everything: DDP), DP_PS (its share of the optimizer state: ZeRO-1
    and 2, a distributed optimizer) and DP_FS (its share of everything: ZeRO-3, FSDP;
    weights are gathered before each use).
    """

    NONE = "none"
    PARTIAL = "partial"
    FULL = "full"


@dataclass(frozen=True)
class Communication:
    """What is communicated, and whether it overlaps with compute or blocks it.

    Without `pipeline_overlap`, transfers take the compute lanes' time at both
    ends; without `data_overlap`, gathers and reductions take the compute
    lane's time. With `clipping`, gradients are clipped by their norm over all
    ranks, so that no rank updates its weights before each has contributed its part.
    """

    sharding: Sharding = Sharding.NONE
    pipeline_overlap: bool = True
    data_overlap: bool = True
    clipping: bool = False
