"""Files of constants, as `bfpp fit` writes them, checked before use.

`clusters` has sections and keys of cluster presets, `implementations` keys of
implementations; nothing else is taken, so that nothing in a file is ignored. `uncertainty`
says how sure these are: that of the shipped file is in `bfpp.sim.experiment.uncertainty`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.errors import did_you_mean
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.cluster.software_profiles import FITTED, IMPLEMENTATIONS
from bfpp.sim.presets.file_kinds import CONSTANTS, require_kind
from bfpp.sim.presets.files import Table, fitted_settings, preset_names, read_toml
from bfpp.sim.presets.numbers import LARGEST, is_usable

FIELD = "constants"

SECTIONS = ("device", "intra_node", "inter_node", "levels", "site")


@dataclass(frozen=True)
class Constants:
    """Fitted constants by cluster and by implementation; the shipped ones by default."""

    clusters: Mapping[str, Table] = field(default_factory=lambda: fitted_settings("clusters"))
    implementations: Mapping[str, Table] = field(
        default_factory=lambda: fitted_settings("implementations")
    )


def load_constants(path: Path | str) -> Constants:
    """The constants of a file; raises `InvalidConfiguration` with the reason in one line."""
    return read_constants(str(path), read_toml(FIELD, path))


def read_constants(name: str, table: Table) -> Constants:
    """The constants of a file's contents; raises like `load_constants`."""
    require_kind(FIELD, name, table, CONSTANTS)
    known = {"format", "clusters", "implementations", "uncertainty"}
    _require_known(name, table, known)
    clusters = _tables(name, table, "clusters", preset_names("cluster"))
    implementations = _tables(name, table, "implementations", IMPLEMENTATIONS)
    for cluster in clusters:
        _tables(f"{name}: clusters", clusters, cluster, SECTIONS)
        try:
            load_cluster(cluster, clusters)
        except InvalidConfiguration as error:
            raise InvalidConfiguration(FIELD, f"{name}: {error.reason}") from None
    for each, settings in implementations.items():
        where = f"{name}: {each}"
        _require_known(where, settings, FITTED)
        for key, value in settings.items():
            if not is_usable(value):
                raise InvalidConfiguration(
                    FIELD, f"{where}: {key} must be a number from 0 to {LARGEST:g}, not {value!r}"
                )
    return Constants(clusters, implementations)


def _require_known(where: str, table: Table, known: Collection[str]) -> None:
    for key in table:
        if key not in known:
            meant = did_you_mean(key, known) or f", not one of {', '.join(sorted(known))}"
            raise InvalidConfiguration(FIELD, f"{where}: unknown key {key!r}{meant}")


def _tables(name: str, table: Table, part: str, known: Collection[str]) -> dict[str, Table]:
    """The tables of a part, by the names of its members."""
    tables = table.get(part, {})
    if not isinstance(tables, dict) or not all(isinstance(each, dict) for each in tables.values()):
        raise InvalidConfiguration(FIELD, f"{name}: {part} must hold tables")
    _require_known(f"{name}: {part}", tables, known)
    return tables
