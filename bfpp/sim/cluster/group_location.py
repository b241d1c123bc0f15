"""Location of a group of devices on the levels of a network."""

from __future__ import annotations

from typing import NamedTuple

from bfpp.sim.cluster.network import Level


class GroupPlace(NamedTuple):
    """A group's members; for each level, on how many of its units they are, and the fewest on one.

    A unit of a level is what it joins: a node, a rack, a leaf switch with all below it.
    """

    members: int
    units: tuple[int, ...]
    fewest: tuple[int, ...]

    @classmethod
    def of(cls, members: int, stride: int, levels: tuple[Level, ...]) -> GroupPlace:
        """Location of every `stride`-th device, from the first of a unit on."""
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
        """Children of a level's units: the units of the level below, or members."""
        return self.units[level - 1] if level else self.members

    @property
    def crossed(self) -> tuple[int, ...]:
        """Levels that the members' traffic crosses."""
        return tuple(level for level, count in enumerate(self.units) if self.parts(level) > count)

    def steps(self, level: int) -> int:
        """Steps of a ring over a level, one way."""
        return self.parts(level) - self.units[level]

    def branches(self, level: int) -> float:
        """Mean number of children per unit of this level."""
        return self.parts(level) / self.units[level]
