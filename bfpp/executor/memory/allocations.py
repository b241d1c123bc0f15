"""The memory that a worker's tasks allocate and free, on a CPU as on a GPU.

Every operation that torch dispatches is seen, those of backward passes and of the optimizer too.
What it returns in memory of its own was allocated, and is freed once nothing holds it any longer.
A tensor that is read from a file has its storage set, which counts. What libraries allocate within
an operation, to free it again there, is not seen; what is numpy's is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode
from torch.utils._pytree import tree_leaves

from bfpp.schedules.columns import Seconds as Numbers


class Allocations:
    """Log of allocations and frees, in order, by lanes that work at the same time.

    Lanes append to the log, which needs no lock; sums are made in the end. Tensors on the meta
    device are left out, or counted alone if the memory is that of an `outline`.
    """

    def __init__(self, outline: bool = False) -> None:
        self.outline = outline
        self.log: list[tuple[int, int]] = []
        self.live: dict[int, tuple[int, ref[torch.UntypedStorage]]] = {}
        self._numbers = count()

    @contextmanager
    def seen(self) -> Iterator[None]:
        """Log allocations of this thread, and of the threads that work for it.

        A mode that is entered as usual sets flags of the whole process, which threads that
        enter and leave in turn would not put back.
        """
        _push_mode(_Seeing(self))
        try:
            yield
        finally:
            _pop_mode()

    def counts(self, tensor: Tensor) -> bool:
        """True if a tensor's memory is torch's, and of the kind that is counted."""
        return tensor.is_meta == self.outline and tensor.untyped_storage().resizable()

    def reads(self, tensor: Tensor) -> bool:
        """True if a tensor has got memory that a file was read into, which is not torch's."""
        return not (tensor.is_meta or self.outline or tensor.untyped_storage().resizable())

    def made(self, storage: torch.UntypedStorage) -> None:
        """A storage is new."""
        number, place, size = next(self._numbers), storage._cdata, storage.nbytes()

        def freed(_: object) -> None:
            self.log.append((number, -size))
            self.live.pop(place, None)

        self.live[place] = number, ref(storage, freed)
        self.log.append((number, size))

    def moved(self, size: int) -> None:
        """Memory was moved out of sight, and goes on to count; or came back, if less than zero."""
        self.log.append((next(self._numbers), size))

    def sizes(self, others: Iterable[Tensor]) -> Numbers:
        """Bytes allocated after each entry of the log, without those of `others` that are live."""
        left_out = {
            self.live[place][0]
            for place in (other.untyped_storage()._cdata for other in others)
            if place in self.live
        }
        changes = [0 if number in left_out else size for number, size in self.log]
        return np.cumsum([0, *changes], dtype=np.float64)

    @property
    def peak(self) -> int:
        """The most bytes that were allocated at a time."""
        return int(self.sizes(()).max())


class _Seeing(TorchDispatchMode):
    """Reports storages that operations return and were not given."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch loads its compiler, to leave this class out

    def __init__(self, allocations: Allocations) -> None:
        super().__init__()
        self.allocations = allocations

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        result = operation(*args, **(kwargs or {}))
        if operation.overloadpacket is torch.ops.aten.set_ and self.allocations.reads(result):
            self.allocations.made(result.untyped_storage())
            return result
        known = {tensor.untyped_storage()._cdata for tensor in _tensors((args, kwargs))}
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage._cdata not in known and self.allocations.counts(tensor):
                known.add(storage._cdata)
                self.allocations.made(storage)
        return result


def _tensors(value: object) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))
