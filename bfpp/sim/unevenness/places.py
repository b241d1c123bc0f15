"""Places of a step: `rank=3,replica=1:1.2` is a number at rank 3 of replica 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.columns import Flags
from bfpp.schedules.errors import did_you_mean
from bfpp.sim.presets.numbers import is_usable, real, whole

REPLICA, RANK, STAGE, NODE, LINK = "replica", "rank", "stage", "node", "link"


@dataclass(frozen=True)
class PlacedNumber:
    """A number, and where it is: what is not said, is any. `link` is a pair of ranks."""

    at: tuple[tuple[str, tuple[int, ...]], ...]
    value: float

    @property
    def places(self) -> Mapping[str, tuple[int, ...]]:
        """The numbers of its places, by their kind."""
        return dict(self.at)

    def __str__(self) -> str:
        named = ",".join(f"{name}={'-'.join(map(str, number))}" for name, number in self.at)
        return f"{named}:{self.value:g}"


def parse_placed(field: str, text: str, known: Sequence[str]) -> tuple[PlacedNumber, ...]:
    """The numbers of a text such as `rank=3:1.2 replica=1,rank=0:1.5`, apart by spaces.

    Raises `InvalidConfiguration` for places that are not `known`.
    """
    return tuple(_placed(field, each, known) for each in text.split())


def _placed(field: str, text: str, known: Sequence[str]) -> PlacedNumber:
    where, colon, number = text.rpartition(":")
    value = real(number)
    if not colon or not is_usable(value):
        example = f"{known[0]}=3:1.2"
        raise InvalidConfiguration(field, f"{text!r} is not PLACE:NUMBER, such as {example}")
    return PlacedNumber(tuple(_at(field, each, known) for each in where.split(",")), float(value))


def _at(field: str, text: str, known: Sequence[str]) -> tuple[str, tuple[int, ...]]:
    name, _, numbers = text.partition("=")
    if name not in known:
        raise InvalidConfiguration(
            field, f"there is no place {name!r}; known are {', '.join(known)}"
            f"{did_you_mean(name, known)}",
        )  # fmt: skip
    read = [whole(each) for each in numbers.split("-")]
    if len(read) != (2 if name == LINK else 1) or any(each is None or each < 0 for each in read):
        form = "two ranks, such as link=2-3" if name == LINK else f"a number, such as {name}=3"
        raise InvalidConfiguration(field, f"{text!r} is not {form}")
    return name, tuple(int(each) for each in read if each is not None)


def require_within(field: str, placed: PlacedNumber, sizes: Mapping[str, int]) -> None:
    """Raise `InvalidConfiguration` for a place that a step of these sizes does not have."""
    for name, numbers in placed.at:
        size = sizes[RANK if name == LINK else name]
        if (most := max(numbers)) >= size:
            kind = RANK if name == LINK else name
            raise InvalidConfiguration(field, f"there is no {kind} {most}; the last is {size - 1}")


def chosen(placed: PlacedNumber, columns: Mapping[str, np.ndarray]) -> Flags:
    """The entries at all places of a number, given the columns of each kind."""
    flags: Flags = np.ones((1, 1), dtype=bool)
    for name, (number, *_) in placed.at:
        flags = flags & (columns[name] == number)
    return flags
