"""The process groups that a process of a run is in: it makes these, and no others.

Theory of operation. A group of torch is made by its members alone, and each of
them waits until the others make it too. All processes make theirs in one order
of all the groups of a run, in rounds (`bfpp.executor.plan.process_groups`). No deadlock can
come of it, also where channels form cycles over the ranks:
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

With NCCL there is one bootstrap in a run, that of a communicator of all processes. Each round is a
split of it (`ncclCommSplit`), which all processes call: members with the number of their first
process as the colour, others without one. Communicators are connected as they are made, to
the process's GPU, and not with the first message. Their kernels take as many multiprocessors as the
group is limited to (`max_ctas`), on streams of high priority: kernels that fill the GPU would
otherwise make communication wait, and with it other ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from bfpp.executor.plan.process_groups import (
    SMALL_CTAS,
    Membership,
    Use,
    by_use,
)
from bfpp.executor.processes.sealed_store import unsealed

EVERYONE = "everyone"
"""The name of the group whose communicator is split."""


class ProcessGroups:
    """Makes groups; all processes of the run make one of these together."""

    def __init__(self, kind: str, timeout: timedelta, device: torch.device) -> None:
        names = [uuid4().hex]
        dist.broadcast_object_list(names)
        (self._name,) = names
        self._kind, self._timeout, self._device = kind, timeout, device
        self._made: list[dist.ProcessGroup] = []

    def make_rounds(self, rounds: Iterable[Membership | None]) -> dict[Use, dist.ProcessGroup]:
        """The groups of a process, by their uses; all processes make as many rounds."""
        rounds = [*rounds]
        everyone = self._everyone()
        made: dict[Membership, dist.ProcessGroup] = {}
        for each in rounds:
            if each is not None:
                options = self._options(each.max_ctas, everyone, color=each.members[0])
                made[each] = self.make(each.title, each.members, options)
            elif everyone is not None:  # a split is for all, also for those who are in none of it
                everyone.perform_nocolor_split(self._device)
        return {use: made[each] for use, each in by_use(rounds).items()}

    def make(self, purpose: str, members: Sequence[int], options: Any = None) -> dist.ProcessGroup:
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
            backend_options=options,
            timeout=self._timeout,
            device_id=self._device if options is not None else None,
            group_desc=purpose,
        )
        numbers = {process: number for number, process in enumerate(ranks)}
        distributed_c10d._world.pg_group_ranks[group] = numbers
        self._made.append(group)
        return group

    def _everyone(self) -> Any:
        """NCCL's part of a group of all processes, whose communicator is split; None with gloo."""
        if self._kind != "nccl":
            return None
        group = self.make(EVERYONE, range(dist.get_world_size()), self._options(SMALL_CTAS))
        return group._get_backend(self._device)

    def _options(self, max_ctas: int, everyone: Any = None, color: int = 0) -> Any:
        """NCCL's options of a group, which is a part of `everyone` if that is given."""
        if self._kind != "nccl":
            return None
        options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        options.config.max_ctas = max_ctas
        if everyone is not None:
            options.split_from, options.split_color = everyone, color
        options._timeout = self._timeout
        return options

    def close(self) -> None:
        """Leave them all."""
        for group in reversed(self._made):
            dist.destroy_process_group(group)
