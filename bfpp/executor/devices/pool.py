"""Pool of tensors that lanes lend one another: activations and messages.

Theory of operation. A tensor that is given back carries a mark of the lane that used it last.
Whoever takes it next makes its own lane wait for that mark on the device; the host never waits. So
a tensor is never overwritten while a kernel still reads it, and the host may be steps ahead.

- The tensor that was given back the longest ago is lent first: its mark has most likely passed.
- Freeing a tensor on the host is not enough: a GPU's host does so long before kernels have run.
- Tensors are freed if none of the last `STEPS` steps needed them and their marks have passed. One
  step does not show it, since lanes do not need as many in each.

Rejected: `Tensor.record_stream`. PyTorch's allocator reuses memory only once the host has seen the
events of all streams: the further the host is ahead, the more memory a step takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from bfpp.executor.devices.flat_buffers import memory_of
from bfpp.executor.devices.lanes import DeviceRuntime, Mark
from bfpp.executor.devices.messages import Shape

STEPS = 8
"""Steps for which unused tensors are kept: lanes do not need as many in each step."""


class Spare:
    """Unused tensors of a shape, and the marks where they were given back.

    `fewest` is how few there have been since the last step ended, `idle` the same of steps before.
    """

    def __init__(self) -> None:
        self.tensors: deque[tuple[Tensor, Mark | None]] = deque()
        self.fewest = 0
        self.idle: deque[int] = deque(maxlen=STEPS)


class Pool:
    """Tensors of a few shapes that lanes lend one another, the device's or else `made` so."""

    def __init__(
        self, device: DeviceRuntime, make: Callable[[Shape], Tensor] | None = None
    ) -> None:
        self.device, self.make = device, make or self._on_device
        self.free: dict[Shape, Spare] = {}
        self.lent: dict[int, tuple[Tensor, Spare]] = {}

    def take(self, shape: Shape) -> Tensor:
        """An unused tensor: the one that was given back the longest ago, or a new one."""
        spare = self.free.setdefault(shape, Spare())
        try:
            tensor, given_back = spare.tensors.popleft()
        except IndexError:
            tensor = self.make(shape)
        else:
            self.device.after(given_back)
        spare.fewest = min(spare.fewest, len(spare.tensors))
        self.lent[memory_of(tensor)] = tensor, spare
        return tensor

    def _on_device(self, shape: Shape) -> Tensor:
        return torch.empty(shape.size, dtype=shape.dtype, device=self.device.device)

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors of the pool, lent or not."""
        spare = [tensor for each in [*self.free.values()] for tensor, _ in [*each.tensors]]
        return [*spare, *(tensor for tensor, _ in [*self.lent.values()])]

    def lends(self, tensor: Tensor) -> bool:
        """True if this is in memory that is lent, as this tensor or a view."""
        return memory_of(tensor) in self.lent

    def give(self, tensor: Tensor) -> None:
        """Give a tensor back, if it is the pool's: the lane whose action runs needs it no more."""
        memory = memory_of(tensor)
        lent, spare = self.lent.get(memory, (None, None))
        if lent is tensor and spare is not None:
            del self.lent[memory]
            spare.tensors.append((tensor, self.device.here()))

    def end_step(self) -> None:
        """Free blocks that recent steps did not use and whose events have completed."""
        for spare in self.free.values():
            spare.idle.append(spare.fewest)
            if len(spare.idle) == STEPS:
                self._let_go(spare, min(spare.idle))
            spare.fewest = len(spare.tensors)

    def _let_go(self, spare: Spare, most: int) -> None:
        for _ in range(most):
            _, mark = spare.tensors[0]
            if mark is not None:
                if not mark.passed():
                    return  # those behind it were given back later
                self.device.reuse([mark])
            spare.tensors.popleft()
            spare.idle.clear()
