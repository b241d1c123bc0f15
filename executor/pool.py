"""Memory that passes from lane to lane.

A tensor that is given back is lent again only to lanes that wait for what was
still being done with it.
"""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from bfpp.executor.flat import memory_of
from bfpp.executor.lanes import Device, Mark
from bfpp.executor.payload import Shape


class Pool:
    """Tensors of a few shapes that lanes lend one another."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.free: dict[Shape, deque[tuple[Tensor, Mark | None]]] = {}
        self.lent: dict[int, tuple[Tensor, Shape]] = {}

    def take(self, shape: Shape) -> Tensor:
        """A tensor that nobody uses: the one that was given back the longest ago, or a new one."""
        try:
            tensor, given_back = self.free[shape].popleft()
        except (KeyError, IndexError):
            tensor = torch.empty(shape.size, dtype=shape.dtype, device=self.device.device)
        else:
            self.device.after(given_back)
        self.lent[memory_of(tensor)] = tensor, shape
        return tensor

    def lends(self, tensor: Tensor) -> bool:
        """Whether this is in memory that is lent, under this name or another."""
        return memory_of(tensor) in self.lent

    def give(self, tensor: Tensor) -> None:
        """Give a tensor back, if it is the pool's: the lane whose action runs needs it no more."""
        lent, shape = self.lent.get(memory_of(tensor), (None, None))
        if lent is tensor and shape is not None:
            del self.lent[memory_of(tensor)]
            self.free.setdefault(shape, deque()).append((tensor, self.device.here()))
