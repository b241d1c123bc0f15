"""Where a group of devices is on the levels of a network."""

from __future__ import annotations

from typing import NamedTuple

from bfpp.sim.network import Level


class GroupPlace(NamedTuple):
    """A group's members; for each level, on how many of its units they are, and the fewest on one.

    A unit of a level is what it joins: a node, a rack, a leaf switch with all below it.
    """

    members: int
    units: tuple[int, ...]
    fewest: tuple[int, ...]

    @classmethod
    def of(cls, members: int, stride: int, levels: tuple[Level, ...]) -> GroupPlace:
        """Of every `stride`-th device, from the first of a unit on."""
        units = tuple(
            min(members, -(-members * stride // (level.size or members * stride)))
            for level in levels[:-1]
        )
        return cls.on(members, units, tuple(members // count for count in units))

    @classmethod
    def on(cls, members: int, units: tuple[int, ...], fewest: tuple[int, ...]) -> GroupPlace:
        """A group on this many units of each level but the last, which joins all."""
        return cls(members, (*units, 1), (*fewest, members))

    def parts(self, level: int) -> int:
        """What a level joins: the units of the level below, or members."""
        return self.units[level - 1] if level else self.members

    @property
    def crossed(self) -> tuple[int, ...]:
        """The levels that its members need to reach one another."""
        return tuple(level for level, count in enumerate(self.units) if self.parts(level) > count)

    def steps(self, level: int) -> int:
        """Of the steps of a ring one way, those over a level."""
        return self.parts(level) - self.units[level]

    def branches(self, level: int) -> float:
        """How many parts a unit of the level joins, in the mean."""
        return self.parts(level) / self.units[level]
