"""Published training runs that come with the package, as tables, and their sources.

They are in `sim/measurements`, one table a source. What each is from, and what was fitted to it,
is in `sources.toml` there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bfpp.sim.cluster.constants import Constants
from bfpp.sim.presets.files import Table, fitted_settings, read_toml

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Source:
    """A table of published runs: its name, its source, and notes on the runs.

    `fitted` has, by cluster, the constants that were fitted to these runs, as other sources
    have them; `software` those of implementations. `unseen` has the mean `error` of the step time
    and the share of runs `inside` their intervals, in per cent, as they were first predicted.
    """

    name: str
    title: str
    source: str
    about: str
    fitted: Mapping[str, Table] = field(default_factory=dict)
    software: Mapping[str, Table] = field(default_factory=dict)
    unseen: Mapping[str, float] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The table."""
        return FOLDER / f"{self.name}.csv"

    @property
    def left_out(self) -> Constants | None:
        """The constants that shipped ones would be without this source, if it decides some."""
        return _without(self.fitted, self.software)


@dataclass(frozen=True)
class Machine:
    """A machine that published runs are of: a GPU, and the presets of its clusters.

    `fitted` and `software` have what was fitted to runs on it as other machines have it.
    """

    name: str
    clusters: tuple[str, ...]
    fitted: Mapping[str, Table] = field(default_factory=dict)
    software: Mapping[str, Table] = field(default_factory=dict)

    @property
    def left_out(self) -> Constants | None:
        """The constants that shipped ones would be without this machine, if it decides some."""
        return _without(self.fitted, self.software)


def _without(clusters: Mapping[str, Table], software: Mapping[str, Table]) -> Constants | None:
    if not (clusters or software):
        return None
    return Constants(
        {**fitted_settings("clusters"), **clusters},
        {**fitted_settings("implementations"), **software},
    )


def sources() -> dict[str, Source]:
    """The sources by the names of their tables."""
    tables = read_toml("table", FOLDER / "sources.toml")
    return {name: Source(name, **table) for name, table in tables.items()}


def machines() -> dict[str, Machine]:
    """The machines by the names of the presets of their clusters."""
    tables = read_toml("table", FOLDER / "machines.toml")
    published = [
        Machine(name, tuple(table["clusters"]), table.get("fitted", {}), table.get("software", {}))
        for name, table in tables.items()
    ]
    return {cluster: machine for machine in published for cluster in machine.clusters}


def table_path(name_or_path: str) -> Path:
    """The table of that name, or of that path."""
    known = sources()
    return known[name_or_path].path if name_or_path in known else Path(name_or_path)
