"""Replay of traces that have durations and dependencies, but no start times.

- A node begins when all that it waits for has ended and its lane is free: a stream of the device,
  or a thread of the host. A lane takes the node that has been ready longest; of several, the one
  that stands first in the file. Nodes that are not in the file have ended.
- A collective that several of the ranks run begins when the last of them comes to it, and takes the
  shortest of their durations: what was recorded on the others has their wait in it. The n-th of
  a process group on one rank is the n-th on each, if all have as many, of the same operations.
  On its stream, nothing else runs while it waits.
- All ranks begin at 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from bfpp.schedules.errors import InvalidFile
from bfpp.traces.formats.chakra_nodes import ChakraNode
from bfpp.traces.profiles.device_profile import (
    Activities,
    ActivityKind,
    CollectiveCall,
    DeviceActivity,
    DeviceProfile,
    ProcessGroup,
)

SOURCE = "Chakra"

Place = tuple[int, int]
"""A rank's place among the ranks, and a node's in its file."""

Nodes = Sequence[Sequence[ChakraNode]]
"""Nodes of each rank, in the order of its file."""


class ImpossibleReplay(InvalidFile):
    """Nodes that wait for each other; the reason is one line."""


class ReplayedTimes(NamedTuple):
    """Start and end of each rank's nodes, in seconds; collectives that are of several ranks."""

    start: list[list[float]]
    end: list[list[float]]
    joined: int
    apart: int

    @property
    def note(self) -> str:
        """Sentences on the origin of the times."""
        text = (
            "Start times are replayed, not measured: each kernel begins when all that it waits for "
            "has ended and its stream is free. Idle and exposed times are those of the replay."
        )
        if self.joined:
            text += (
                f" {self.joined:,} collectives of several ranks, matched by process group and "
                "order, begin when the last rank comes and take the shortest of its durations."
            )
        if self.apart:
            text += (
                f" {self.apart:,} kernels of collectives wait for no rank: no other of these files "
                "names their process group, with the same collectives."
            )
        return text


def replayed(ranks: Nodes) -> ReplayedTimes:
    """The times of all nodes; raises `ImpossibleReplay` where some wait for each other."""
    meetings = matched_collectives(ranks)
    replay = _RunningReplay(ranks, meetings)
    replay.run()
    collectives = sum(each.is_collective for nodes in ranks for each in nodes)
    joined = sum(len(each) for each in meetings)
    return ReplayedTimes(replay.start, replay.end, len(meetings), collectives - joined)


def matched_collectives(ranks: Nodes) -> list[tuple[Place, ...]]:
    """Collectives that are one, on several ranks."""
    by_group: dict[str, dict[int, list[Place]]] = defaultdict(lambda: defaultdict(list))
    for rank, nodes in enumerate(ranks):
        for at, node in enumerate(nodes):
            if node.is_collective and node.group is not None:
                by_group[node.group][rank].append((rank, at))
    meetings: list[tuple[Place, ...]] = []
    for members in by_group.values():
        calls = {
            tuple(ranks[rank][at].operation for rank, at in places) for places in members.values()
        }
        if len(members) > 1 and len(calls) == 1:
            meetings += zip(*members.values(), strict=True)
    return meetings


@dataclass
class _Lane:
    """Nodes that are ready for a lane, the longest ready first."""

    ready: list[tuple[float, int]] = field(default_factory=list)
    is_free: bool = True


class _RunningReplay:
    """The state of a replay: what has ended, and what each lane runs."""

    def __init__(self, ranks: Nodes, meetings: Sequence[tuple[Place, ...]]) -> None:
        self.ranks = ranks
        self.start = [[0.0] * len(nodes) for nodes in ranks]
        self.end = [[0.0] * len(nodes) for nodes in ranks]
        self.members = {place: each for each in meetings for place in each}
        self.missing = {each[0]: len(each) for each in meetings}
        self.lanes: dict[tuple[int, str], _Lane] = defaultdict(_Lane)
        self.running: list[tuple[float, Place]] = []
        self.next: list[list[list[int]]] = [[[] for _ in nodes] for nodes in ranks]
        self.waits: list[list[int]] = [[0] * len(nodes) for nodes in ranks]

    def run(self) -> None:
        """Run all nodes."""
        for place in self._linked():
            self._make_ready(place, 0.0)
        for lane in list(self.lanes):
            self._begin(lane, 0.0)
        left = sum(map(len, self.ranks))
        while self.running:
            now, (rank, at) = heappop(self.running)
            left -= 1
            lanes = {(rank, self.ranks[rank][at].lane)}
            for lane in lanes:
                self.lanes[lane].is_free = True
            for later in self.next[rank][at]:
                self.waits[rank][later] -= 1
                if not self.waits[rank][later]:
                    lanes.add(self._make_ready((rank, later), now))
            for lane in sorted(lanes):
                self._begin(lane, now)
        if left:
            what = " or collectives" if self.members else ""
            raise ImpossibleReplay(f"{left:,} nodes{what} wait for each other")

    def _linked(self) -> Iterator[Place]:
        """Link the nodes of each rank: those that wait for nothing."""
        for rank, nodes in enumerate(self.ranks):
            places = {node.number: at for at, node in enumerate(nodes)}
            for at, node in enumerate(nodes):
                before = [places[each] for each in node.after if each in places]
                self.waits[rank][at] = len(before)
                for each in before:
                    self.next[rank][each].append(at)
                if not before:
                    yield rank, at

    def _make_ready(self, place: Place, now: float) -> tuple[int, str]:
        rank, at = place
        lane = rank, self.ranks[rank][at].lane
        heappush(self.lanes[lane].ready, (now, at))
        return lane

    def _begin(self, lane: tuple[int, str], now: float) -> None:
        """Give a free lane its next node, if one is ready."""
        state = self.lanes[lane]
        if not state.is_free or not state.ready:
            return
        state.is_free = False
        place = lane[0], heappop(state.ready)[1]
        meeting = self.members.get(place, (place,))
        if len(meeting) > 1:
            self.missing[meeting[0]] -= 1
            if self.missing[meeting[0]]:
                return
        seconds = min(self.ranks[rank][at].seconds for rank, at in meeting)
        for rank, at in meeting:
            self.start[rank][at], self.end[rank][at] = now, now + seconds
            heappush(self.running, (now + seconds, (rank, at)))


def replayed_profiles(
    ranks: Nodes, numbers: Sequence[int | None]
) -> tuple[list[DeviceProfile], str]:
    """The devices of ranks with these numbers, with a note on their times."""
    times = replayed(ranks)
    profiles = []
    for nodes, number, start, end in zip(ranks, numbers, times.start, times.end, strict=True):
        rows = [
            _activity(*each) for each in zip(nodes, start, end, strict=True) if not each[0].on_host
        ]
        profiles.append(Activities(rows).profile(SOURCE, 1.0, number))
    return profiles, times.note


def _activity(node: ChakraNode, start: float, end: float) -> DeviceActivity:
    call = CollectiveCall(None, None, None)
    if node.communicates:
        group = None if node.group is None else ProcessGroup(node.group, None, None, None)
        call = CollectiveCall(group, node.operation, node.bytes)
        kind = ActivityKind.COMMUNICATION
    else:
        is_copy = node.name.lower().startswith(("memcpy", "memset"))
        kind = ActivityKind.COPY if is_copy else ActivityKind.COMPUTE
    return DeviceActivity(kind, node.name, node.lane, start, end, None, call.bytes, call)
