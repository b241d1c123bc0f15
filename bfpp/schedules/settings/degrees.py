"""Parallel degrees: devices of each parallel dimension."""

from __future__ import annotations

from dataclasses import dataclass, fields

from bfpp.schedules.errors import InvalidConfiguration


@dataclass(frozen=True, order=True)
class Degrees:
    """The degrees of parallelism.

    `dp` data-parallel replicas in `dp_replicate` groups, each of which keeps all of the sharded
    training state (HSDP); `ep` divides `dp / dp_replicate * cp * tp`. Raises
    `InvalidConfiguration` for degrees that do not divide so.

    >>> Degrees(pp=8, dp=4, tp=2).devices
    64
    """

    pp: int = 1
    dp: int = 1
    tp: int = 1
    cp: int = 1
    ep: int = 1
    dp_replicate: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            if (value := getattr(self, field.name)) < 1:
                raise InvalidConfiguration(field.name, f"must be at least 1, not {value}")
        if self.dp % self.dp_replicate:
            raise InvalidConfiguration(
                "dp_replicate", f"{self.dp_replicate} does not divide {self.dp} replicas"
            )
        if (sharing := self.dp_shard * self.cp * self.tp) % self.ep:
            replicas = "dp / dp_replicate" if self.is_hybrid else "dp"
            raise InvalidConfiguration(
                "ep", f"{self.ep} does not divide {replicas} x cp x tp = {sharing}"
            )

    @property
    def dp_shard(self) -> int:
        """Replicas that shard their training state together, if it is sharded."""
        return self.dp // self.dp_replicate

    @property
    def is_hybrid(self) -> bool:
        """True if there are several such groups of replicas (HSDP)."""
        return self.dp_replicate > 1

    @property
    def devices(self) -> int:
        """All devices (N_GPU)."""
        return self.pp * self.dp * self.cp * self.tp
