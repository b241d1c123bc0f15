"""Provenance of the constants of a cluster: its file's `[[provenance]]` entries.

    [[provenance]]
    kind = "measured"
    source = "stas00/ml-engineering, compute/accelerator"
    of = ["device.matmul_efficiency"]

Theory of operation. A constant goes by its name in a cluster (`device.peak`, `leaf.bandwidth`); one
that holds others (`device.attention`, `leaf`) stands for all of them. The last entry that fits a
constant says its origin: entries go from the general to the special, and those of a file that is
`like` a preset come after the preset's.

Invariant: an entry names constants that the cluster has, or the file is refused. A name that is
misspelt would otherwise leave a constant with the origin of the preset.

Rejected: a source beside each value. One measurement gives many constants, and most files would be
sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from bfpp.schedules import InvalidConfiguration
from bfpp.sim.presets.files import require_keys

Path = tuple[str, ...]
"""The names of the fields that lead to a number in a cluster."""


class HowKnown(StrEnum):
    """Ways in which a constant becomes known."""

    DATA_SHEET = "data sheet"
    MEASURED = "measured"
    FITTED = "fitted"
    COPIED = "copied"
    ASSUMED = "assumed"


UNSURE = frozenset({HowKnown.COPIED, HowKnown.ASSUMED})
"""Kinds of constants that are not measured on the machine itself."""


@dataclass(frozen=True)
class Provenance:
    """The kind and the source of some constants, by their names or those of their tables.

    Fitted to training runs, measured (the source says by whom), copied from another machine (the
    source says which) or assumed.
    """

    kind: HowKnown
    source: str
    of: tuple[Path, ...]


def read_origins(name: str, entries: Iterable[object]) -> tuple[Provenance, ...]:
    """The origins that a cluster's file gives, in its order."""
    return tuple(_read(f"{name}: provenance {at}", entry) for at, entry in enumerate(entries, 1))


def _read(where: str, entry: object) -> Provenance:
    table = require_keys("cluster", where, entry, {"kind": str, "source": str, "of": list})
    kinds = [*HowKnown]
    if table["kind"] not in kinds:
        reason = f"{where}: kind must be one of {', '.join(kinds)}, not {table['kind']!r}"
        raise InvalidConfiguration("cluster", reason)
    if not table["of"] or not all(isinstance(each, str) for each in table["of"]):
        raise InvalidConfiguration("cluster", f"{where}: of must be names of constants")
    paths = tuple(tuple(each.split(".")) for each in table["of"])
    return Provenance(HowKnown(table["kind"]), table["source"], paths)


def require_known(name: str, origins: Iterable[Provenance], known: Callable[[Path], bool]) -> None:
    """Raise `InvalidConfiguration` where an origin is of nothing that the cluster has."""
    for path in (path for origin in origins for path in origin.of):
        if not known(path):
            reason = f"{name}: provenance: {'.'.join(path)} is not a constant of the cluster"
            raise InvalidConfiguration("cluster", reason)


def origin_of(origins: Sequence[Provenance], path: Path) -> Provenance | None:
    """The origin of a constant; None where the file does not say it."""
    fitting = (
        origin
        for origin in reversed(origins)
        if any(path[: len(each)] == each for each in origin.of)
    )
    return next(fitting, None)
