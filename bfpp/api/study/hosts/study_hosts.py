"""Hosts of a study as its file says them: who starts the processes, and how many there are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.errors import chosen
from bfpp.sim.presets.files import Table, require_keys

FIELD = "file"


class HostKind(StrEnum):
    """Launchers of a study's processes, and their hosts."""

    HERE = "here"
    NAMESPACES = "namespaces"
    TORCHRUN = "torchrun"
    SSH = "ssh"
    SLURM = "slurm"
    KUBERNETES = "kubernetes"


KEYS: dict[HostKind, dict[str, type]] = {
    HostKind.HERE: {},
    HostKind.NAMESPACES: {"count": int},
    HostKind.TORCHRUN: {},
    HostKind.SSH: {"names": list, "processes": int, "port": int},
    HostKind.SLURM: {"count": int, "processes": int, "port": int, "options": list},
    HostKind.KUBERNETES: {"count": int, "processes": int, "port": int, "image": str, "claim": str},
}
"""The keys of each kind of hosts."""

OPTIONAL = ("processes", "port", "options")

JOBS = (HostKind.SSH, HostKind.SLURM, HostKind.KUBERNETES)
"""Those for which a job is written that runs torchrun on each host."""


@dataclass(frozen=True)
class StudyHosts:
    """Hosts, `count` of them, with as many `processes` each where a job starts these.

    `names` are those of ssh. The first host listens at the `port`. `options` are of sbatch. Pods
    run an `image`, and share a persistent volume by its `claim`.
    """

    where: HostKind = HostKind.HERE
    count: int = 1
    names: tuple[str, ...] = ()
    processes: int = 1
    port: int = 29500
    options: tuple[str, ...] = ()
    image: str = ""
    claim: str = ""

    @property
    def are_joined(self) -> bool:
        """True if torchrun has started the processes of a study by the time it runs."""
        return self.where is HostKind.TORCHRUN or self.where in JOBS

    def require(self, processes: int, where: str) -> None:
        """Raise `InvalidConfiguration` if the hosts cannot start this many processes."""
        if self.where is HostKind.NAMESPACES and processes % self.count:
            reason = f"{processes} processes do not fill {self.count} namespaces"
            raise InvalidConfiguration(FIELD, f"{where}: {reason}")
        started = self.count * self.processes
        if self.where in JOBS and started != processes:
            reason = f"{self.count} x {self.processes} processes, and its cells need {processes}"
            raise InvalidConfiguration(FIELD, f"{where}: {reason}")


def read_hosts(path: str, table: Table) -> StudyHosts:
    """The hosts of a file's table."""
    where = f"{path}: hosts"
    try:
        kind = chosen(HostKind, FIELD, table.get("where", HostKind.HERE))
    except InvalidConfiguration as error:
        raise InvalidConfiguration(FIELD, f"{where}: where: {error.reason}") from None
    optional = ("where", *OPTIONAL)
    given: dict[str, Any] = require_keys(
        FIELD, where, table, {"where": str, **KEYS[kind]}, optional
    )
    for name in ("names", "options"):
        values = given.get(name, [])
        if not all(isinstance(each, str) and each.isprintable() and each for each in values):
            raise InvalidConfiguration(FIELD, f"{where}: {name} must be a list of words")
        given[name] = tuple(values)
    if kind is HostKind.SSH:
        given["count"] = len(given["names"])
    return StudyHosts(**{**given, "where": kind})
