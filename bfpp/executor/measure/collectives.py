"""Times collectives and P2P transfers by size and group, between the processes of a machine.

Each process has a GPU, or all compute on the CPU. The time of a call is that of the slowest
process of the group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from bfpp.executor.dispatch.backends.groups import ProcessGroups
from bfpp.executor.measure.kernels import Row
from bfpp.executor.processes import ProcessContext, join

WARM_UP, CALLS = 3, 10


@dataclass(frozen=True)
class Exchanges:
    """The bytes that are sent, and whether between GPUs (NCCL) or on the CPU (gloo)."""

    sizes: tuple[int, ...]
    on_gpus: bool
    repetitions: int


@dataclass(frozen=True)
class Member:
    """A process of a group, and the device of its tensors."""

    group: dist.ProcessGroup
    members: int
    device: torch.device

    def seconds(self, call: Callable[[], object], repetitions: int) -> float:
        """Seconds of a call that all members make: those of the slowest member."""
        for _ in range(WARM_UP):
            call()
        taken = torch.tensor([self._taken(call) for _ in range(repetitions)], device=self.device)
        dist.all_reduce(taken, dist.ReduceOp.MAX, self.group)
        times: list[float] = taken.tolist()
        return median(times) / CALLS

    def _taken(self, call: Callable[[], object]) -> float:
        self._meet()
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        self._synchronize()
        return time.perf_counter() - begin

    def _meet(self) -> None:
        dist.all_reduce(torch.zeros(1, device=self.device), group=self.group)
        self._synchronize()

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def collectives(context: ProcessContext, work: Exchanges) -> list[Row]:
    """Measure in all processes of a job; the first process is in every group."""
    join(context)
    device = torch.device("cuda", context.local) if work.on_gpus else torch.device("cpu")
    kind = "nccl" if work.on_gpus else "gloo"
    groups = ProcessGroups(kind, context.timeout, device)
    rows: list[Row] = []
    for members in _sizes(context.processes):
        if context.process < members:
            group = groups.make(f"{members} members", range(members))
            rows += _of_group(Member(group, members, device), work)
    groups.close()
    return rows


def _sizes(processes: int) -> list[int]:
    """Groups of 2, 4 and so on, and of all processes; none of one."""
    sizes = [2**power for power in range(1, processes.bit_length())]
    return sorted({*sizes, processes} - {1})


def _of_group(member: Member, work: Exchanges) -> Iterator[Row]:
    calls = dict(COLLECTIVES)
    if member.members == PAIR:
        calls["transfer"] = _transfer
    for (name, call), size in product(calls.items(), work.sizes):
        whole = torch.randn(max(size // 4, member.members), device=member.device)
        whole = whole[: len(whole) // member.members * member.members]

        def once(call: Exchange = call, whole: Tensor = whole) -> None:
            call(whole, member)

        seconds = member.seconds(once, work.repetitions)
        row = {"bytes": whole.nbytes, "seconds": seconds}
        if call is _transfer:
            yield {"kind": "transfer", **row}
        else:
            yield {"kind": "collective", "name": name, "members": member.members, **row}


PAIR = 2

Exchange = Callable[[Tensor, Member], None]


def _share(whole: Tensor, member: Member) -> Tensor:
    return whole.chunk(member.members)[dist.get_rank(member.group)]


def _all_reduce(whole: Tensor, member: Member) -> None:
    dist.all_reduce(whole, group=member.group)


def _all_gather(whole: Tensor, member: Member) -> None:
    dist.all_gather_single(whole, _share(whole, member), member.group)


def _reduce_scatter(whole: Tensor, member: Member) -> None:
    dist.reduce_scatter_single(_share(whole, member), whole, group=member.group)


def _transfer(whole: Tensor, member: Member) -> None:
    """Send from the first to the second."""
    if dist.get_rank(member.group) == 0:
        dist.send(whole, 1, member.group)
    else:
        dist.recv(whole, 0, member.group)


COLLECTIVES: dict[str, Exchange] = {
    "all-reduce": _all_reduce,
    "all-gather": _all_gather,
    "reduce-scatter": _reduce_scatter,
}
