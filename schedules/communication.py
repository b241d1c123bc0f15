"""What devices communicate: how the training state is sharded, and what overlaps with compute."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from bfpp.schedules.invalid import InvalidConfiguration


class Sharding(StrEnum):
    """How much of the training state each data-parallel device keeps.

    The paper's DP_0 (everything: DDP), DP_PS (its share of the optimizer state: ZeRO-1
    and 2, a distributed optimizer) and DP_FS (its share of everything: ZeRO-3, FSDP;
    weights are gathered before each use).
    """

    NONE = "none"
    PARTIAL = "partial"
    FULL = "full"

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """All names, the field's among them."""
        return (*cls, *_ALSO_CALLED)

    @classmethod
    def _missing_(cls, value: object) -> Sharding:
        if value in _ALSO_CALLED:
            return _ALSO_CALLED[str(value)]
        known = ", ".join(cls.names())
        raise InvalidConfiguration("sharding", f"{value!r} is not one of {known}")


_ALSO_CALLED = {
    "ddp": Sharding.NONE,
    "zero1": Sharding.PARTIAL,
    "zero2": Sharding.PARTIAL,
    "zero3": Sharding.FULL,
    "fsdp": Sharding.FULL,
}


@dataclass(frozen=True)
class Communication:
    """What is communicated, and whether it overlaps with compute or blocks it.

    Without `pp_overlap`, transfers take the compute lanes' time at both
    ends; without `dp_overlap`, gathers and reductions take the compute
    lane's time. With `clipping`, gradients are clipped by their norm over all
    ranks, so that no rank updates its weights before each has contributed its part.
    """

    sharding: Sharding = Sharding.NONE
    pp_overlap: bool = True
    dp_overlap: bool = True
    clipping: bool = False
