"""Kinds of TOML files, so that one is not read as another.

A file that bfpp wrote says it (`format`); others are known by keys that no other kind has.
"""

from __future__ import annotations

from dataclasses import dataclass

from bfpp.schedules import InvalidConfiguration
from bfpp.sim.presets.files import Table


@dataclass(frozen=True)
class FileKind:
    """A kind of file: its description, the options that take it, and its marks."""

    title: str
    takers: str
    format: str
    keys: frozenset[str]


PROFILE = FileKind(
    "a profile of a machine, from bfpp calibrate",
    "bfpp simulate, compare, explain and validate take it as --profile",
    "bfpp machine profile 1",
    frozenset({"passes", "channels", "dispatch"}),
)
CONSTANTS = FileKind(
    "a file of constants, from bfpp fit",
    "--constants takes it",
    "bfpp constants 1",
    frozenset({"clusters", "implementations"}),
)
CLUSTER = FileKind(
    "a cluster",
    "--cluster takes it",
    "bfpp cluster 1",
    frozenset({"gpus_per_node", "intra_node", "inter_node", "levels", "like"}),
)
MODEL = FileKind("a model", "--model takes it", "", frozenset({"hidden", "heads", "vocabulary"}))
EXPERIMENT = FileKind(
    "an experiment",
    "bfpp simulate and others take it for SCHEDULE",
    "bfpp experiment 1",
    frozenset({"schedule"}),
)
SEARCH = FileKind(
    "a search",
    "bfpp search and tradeoff take it for FILE",
    "bfpp search 1",
    frozenset({"gpus"}),
)
STUDY = FileKind(
    "a study",
    "bfpp study takes it for FILE",
    "bfpp study 1",
    frozenset({"experiment"}),
)
KINDS = (EXPERIMENT, SEARCH, STUDY, PROFILE, CONSTANTS, CLUSTER, MODEL)


def kind_of(table: Table) -> FileKind | None:
    """The kind of a table, by the format that it says or else by its keys, if it is known."""
    if said := table.get("format"):
        return next((each for each in KINDS if each.format == said), None)
    return next((each for each in KINDS if each.keys & table.keys()), None)


def require_kind(field: str, where: str, table: Table, kind: FileKind) -> None:
    """Raise `InvalidConfiguration` for a table that is of another kind, or of a later format."""
    said, actual = table.get("format"), kind_of(table)
    if actual is None and said is not None:
        raise InvalidConfiguration(field, f"{where}: the format {said!r} is not {kind.format!r}")
    if actual not in (None, kind):
        raise InvalidConfiguration(
            field, f"{where} is {actual.title}, not {kind.title}; {actual.takers}"
        )
