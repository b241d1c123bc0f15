"""The ranks that layers are divided over, and their collectives within a pass.

An exchange is begun when it is called, and its result is asked for later: what is computed in
between overlaps with it. All ranks of a group begin the same exchanges in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from threading import Condition
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

Result = Callable[[], Tensor]
"""Waits for an exchange, and returns its result."""


class Shards(Protocol):
    """The ranks of a group, of which this is number `rank`."""

    size: int
    rank: int

    def all_reduce(self, value: Tensor, maximum: bool = False) -> Result:
        """The sum of all ranks' values, or the largest of each; a new tensor."""

    def all_gather(self, value: Tensor, dim: int) -> Result:
        """All ranks' values, one after another."""

    def reduce_scatter(self, value: Tensor, dim: int) -> Result:
        """The rank's part of the sum of all ranks' values."""


class ProcessShards:
    """A group of processes; `observe` surrounds each wait for the others."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.size, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self.observe: Callable[[], AbstractContextManager[None]] = nullcontext

    def all_reduce(self, value: Tensor, maximum: bool = False) -> Result:
        """An all-reduce of a copy."""
        total = value.clone(memory_format=torch.contiguous_format)
        how = dist.ReduceOp.MAX if maximum else dist.ReduceOp.SUM
        work = dist.all_reduce(total, how, self.group, async_op=True)
        return self._result(work, lambda: total)

    def all_gather(self, value: Tensor, dim: int) -> Result:
        """An all-gather, with parts side by side."""
        parts = value.new_empty(self.size, *value.shape)
        work = dist.all_gather_single(
            parts.flatten(0, 1), value.contiguous(), self.group, async_op=True
        )
        return self._result(work, lambda: torch.cat(parts.unbind(), dim))

    def reduce_scatter(self, value: Tensor, dim: int) -> Result:
        """A reduce-scatter of parts one behind the other."""
        parts = torch.stack(value.chunk(self.size, dim))
        own = torch.empty_like(parts[0])
        work = dist.reduce_scatter_single(own, parts.flatten(0, 1), group=self.group, async_op=True)
        return self._result(work, lambda: own)

    def _result(self, work: dist.Work | None, made: Result) -> Result:
        def wait() -> Tensor:
            with self.observe():
                if work is not None:
                    work.wait()
            return made()

        return wait


class ThreadExchange:
    """The values of ranks that are threads of one process, exchange by exchange."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._tables: dict[int, dict[int, Tensor]] = {}
        self._taken: dict[int, int] = {}
        self._turn = Condition()
        self._is_over = False

    def put(self, exchange: int, rank: int, value: Tensor) -> None:
        """A rank's value."""
        with self._turn:
            self._tables.setdefault(exchange, {})[rank] = value
            self._turn.notify_all()

    def take(self, exchange: int) -> list[Tensor]:
        """All ranks' values, once they are there; each rank asks once."""
        with self._turn:
            table = self._tables[exchange]
            self._turn.wait_for(lambda: len(table) == self.size or self._is_over)
            if len(table) < self.size:
                raise RuntimeError("another tensor-parallel rank has failed")
            self._taken[exchange] = self._taken.get(exchange, 0) + 1
            if self._taken[exchange] == self.size:
                del self._tables[exchange], self._taken[exchange]
        return [table[rank] for rank in range(self.size)]

    def end(self) -> None:
        """Release all who wait: one of them has failed, or all are done."""
        with self._turn:
            self._is_over = True
            self._turn.notify_all()


class ThreadShards:
    """A rank of a thread exchange. Each sums for itself, in rank order: all get the same."""

    def __init__(self, shared: ThreadExchange, rank: int) -> None:
        self.shared, self.rank, self.size = shared, rank, shared.size
        self._exchanges = 0

    def all_reduce(self, value: Tensor, maximum: bool = False) -> Result:
        """The sum of copies, or the largest of each."""
        take = self._put(value)
        return lambda: torch.stack(take()).amax(0) if maximum else torch.stack(take()).sum(0)

    def all_gather(self, value: Tensor, dim: int) -> Result:
        """Copies, one after another."""
        take = self._put(value)
        return lambda: torch.cat(take(), dim)

    def reduce_scatter(self, value: Tensor, dim: int) -> Result:
        """The sum of the parts that are this rank's."""
        take = self._put(value)
        return lambda: torch.stack([self._own(each, dim) for each in take()]).sum(0)

    def _put(self, value: Tensor) -> Callable[[], list[Tensor]]:
        # All ranks make the same exchanges in the same order, so that a count names each.
        exchange = self._exchanges
        self._exchanges += 1
        # A copy: this rank goes on, and may change its own before the others have come to read it.
        self.shared.put(exchange, self.rank, value.detach().clone())
        return lambda: self.shared.take(exchange)

    def _own(self, value: Tensor, dim: int) -> Tensor:
        return value.chunk(self.size, dim)[self.rank]


def alone() -> ThreadShards:
    """A group of one rank."""
    return ThreadShards(ThreadExchange(1), 0)
