"""A cluster as your own runs show it, where they are too few to fit its constants."""

from __future__ import annotations

from dataclasses import dataclass

from bfpp.sim.presets.files import require_fields


@dataclass(frozen=True)
class Site:
    """A cluster as its own runs show it (`bfpp fit`).

    Passes take `factor` times as long as its constants say; the logarithm of what is left of a
    step has a standard `deviation`, besides that of each run.
    """

    factor: float
    deviation: float


def read_site(name: str, table: object) -> Site:
    """The site of a cluster's file, or of a file of constants."""
    return Site(**require_fields("cluster", f"{name}: site", table, Site))
