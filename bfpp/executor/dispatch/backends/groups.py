"""The process groups that a process of a run is in: it makes these, and no others.

Theory of operation. A group of torch is made by its members alone, and each of
them waits until the others make it too. All processes make theirs in one order
of all the groups of a run: those that layers are divided over, those of replicas,
of norms and of copies of stages, those of pipelines and of their ends, then those of the
channels, sorted. No deadlock can come of it, also where channels form cycles over the ranks:
of all groups that some process still waits for, take the first in that order. Its
members have made all that come before it, so each of them is at it, or is on the
way to it and waits for nobody; so it is made. The first message on each channel is
exchanged in that same order, for that same reason.

Members find each other under the group's name, in a store that all groups
share, so a name must be the same for all members, and must not have been used
before. The names that `new_group(use_local_synchronization=True)` makes are
neither: they hold the number of groups that the process has at that moment,
which along a pipeline is one at its ends and two between. So a group has a name
that says what it is for, below one that all processes agree on each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import uuid4

import torch.distributed as dist
from torch.distributed import distributed_c10d

from bfpp.executor.processes.sealed_store import unsealed


class ProcessGroups:
    """Makes groups; all processes of the run make one of these together."""

    def __init__(self, kind: str, timeout: timedelta) -> None:
        names = [uuid4().hex]
        dist.broadcast_object_list(names)
        (self._name,) = names
        self._kind, self._timeout = kind, timeout
        self._made: list[dist.ProcessGroup] = []

    def make(self, purpose: str, members: Sequence[int]) -> dist.ProcessGroup:
        """The group of these processes, of which this one is one; all its members call it."""
        default = dist.group.WORLD
        assert default is not None  # noqa: S101
        ranks = list(members)
        _, store = distributed_c10d._world.pg_map[default]
        if self._kind == "nccl":  # its threads would wait for Python's lock, and clone the store
            store = unsealed(store)
        group: dist.ProcessGroup
        group, _ = distributed_c10d._new_process_group_helper(
            len(ranks),
            ranks.index(dist.get_rank()),
            ranks,
            self._kind,
            store,
            distributed_c10d.GroupName(f"{self._name} {purpose} {ranks}"),
            timeout=self._timeout,
            group_desc=purpose,
        )
        numbers = {process: number for number, process in enumerate(ranks)}
        distributed_c10d._world.pg_group_ranks[group] = numbers
        self._made.append(group)
        return group

    def close(self) -> None:
        """Leave them all."""
        for group in self._made:
            dist.destroy_process_group(group)
