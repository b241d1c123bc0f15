"""Tensors by their places in memory that may go elsewhere before they are needed again.

Autograd keeps such places instead of tensors (`torch.autograd.graph.saved_tensors_hooks`): in the
weights of a unit, which a gather may put into another buffer, or in activations that wait on the
host.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class MovableStorage(Protocol):
    """Storage of tensors that may move."""

    @property
    def bytes(self) -> Tensor:
        """All of it, wherever it is now, as one tensor of bytes."""


class Placed(NamedTuple):
    """The place of a tensor in a storage, in elements of its own precision."""

    memory: MovableStorage
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    first: int

    def tensor(self) -> Tensor:
        """The tensor, wherever its memory is now."""
        memory = self.memory.bytes
        whole = memory.narrow(0, 0, memory.numel() // self.dtype.itemsize * self.dtype.itemsize)
        return torch.as_strided(whole.view(self.dtype), self.size, self.stride, self.first)


def place(tensor: Tensor, memory: MovableStorage) -> Placed:
    """The place of a tensor in a storage that contains it."""
    return Placed(
        memory, tensor.dtype, tensor.size(), tensor.stride(), int(tensor.storage_offset())
    )


def find(saved: Tensor | Placed) -> Tensor:
    """The tensor that was saved as it is, or by its place."""
    return saved if isinstance(saved, Tensor) else saved.tensor()
