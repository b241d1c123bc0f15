"""Activations that wait on the host for their backward pass.

Theory of operation. Of a pass that is offloaded, autograd is given places in memory instead of
tensors (`bfpp.executor.devices.storages`), so that the pass alone has that memory, and it may go
and come back elsewhere. Memory is copied as a whole, once for all tensors in it. Weights, what
modules keep, and the batch stay where they are.

Copies run on lanes of their own. The compute lane releases memory and acquires it again:
when a pass has waited for the copy to the host, and before the copy back waits for a pass
(`bfpp.schedules.graph.residency`). So all of it is made and freed in the order of the compute lane,
and may be lent again there at once: on a GPU too, whose host frees it long before kernels have run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain

import torch
from torch import Tensor, nn

from bfpp.executor.devices.flat_buffers import memory_of
from bfpp.executor.devices.messages import Cell, Parcel, Shape
from bfpp.executor.devices.pool import Pool
from bfpp.executor.devices.storages import Placed, find, place
from bfpp.schedules import InvalidConfiguration


def _bytes(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


class Part:
    """Memory that a pass keeps, `lent` by the pool in some shape or its own; and its copy."""

    def __init__(self, tensor: Tensor) -> None:
        self.here: Tensor | None = _bytes(tensor.untyped_storage())
        self.lent: Shape | None = None
        self.host: Tensor | None = None
        self.size = self.here.numel()

    @property
    def bytes(self) -> Tensor:
        """All of it, where it is on the device."""
        assert self.here is not None, "used while it is on the host"  # noqa: S101
        return self.here


class Kept:
    """Activations kept of a forward pass: its input, and tensors saved by autograd.

    Memory that `stays` on the device is left out. `known` are outputs of the unit before that it
    has saved too: this pass needs them first, and takes them along.
    """

    def __init__(
        self,
        parcel: Parcel,
        device: torch.device,
        stays: Collection[int],
        known: Mapping[int, Part],
    ) -> None:
        self.device, self.stays, self.known = device, stays, known
        self.parts: dict[int, Part] = {}
        self.saved: list[tuple[Tensor, int]] = []
        self.leaves: list[tuple[Tensor, Tensor | Placed]] = []
        self.outputs: dict[int, Part] = {}
        self.chosen: list[Part] = []
        self.inputs = [self.place(each) for each in parcel.tensors]
        if parcel.lent is not None and (part := self.parts.get(memory_of(parcel.lent))):
            part.lent = Shape.of(parcel.lent)

    def place(self, tensor: Tensor) -> Tensor | Placed:
        """The place of a tensor whose memory may go; any other tensor itself."""
        own = tensor.detach()  # what a function saves of its own result would hold itself
        memory = memory_of(tensor) if self._is_plain(tensor) else 0
        if not memory or memory in self.stays:
            return own
        if memory not in self.parts:
            self.parts[memory] = self.known.get(memory) or Part(own)
        self.saved.append((own, own._version))
        return place(own, self.parts[memory])

    def _is_plain(self, tensor: Tensor) -> bool:
        is_lazy = tensor.is_conj() or tensor.is_neg()
        is_dense = tensor.layout is torch.strided and type(tensor) in (Tensor, nn.Parameter)
        return is_dense and not is_lazy and tensor.device == self.device

    def complete(self, layers: range, leaves: Iterable[Tensor], outputs: Iterable[Tensor]) -> None:
        """All is saved: also in memory of autograd's `leaves`, and of the `outputs`.

        Raises `InvalidConfiguration` if some of it was changed since. Autograd sees that of
        tensors, and not of places.
        """
        self.leaves = [(leaf, self.place(leaf)) for leaf in leaves]
        if any(tensor._version != version for tensor, version in self.saved):
            raise InvalidConfiguration(
                "model", f"layers {layers} change in place what their backward pass needs"
            )
        self.saved.clear()
        self.known = {}
        for memory in {*map(memory_of, outputs)} & self.parts.keys():
            self.outputs[memory] = self.parts.pop(memory)

    def choose(self, share: float) -> None:
        """Choose storages to copy: the largest first, as many as fit into a share of all."""
        left = share * sum(part.size for part in self.parts.values())
        for part in sorted(self.parts.values(), key=lambda part: -part.size):
            if part.size <= left:
                self.chosen.append(part)
                left -= part.size

    @property
    def size(self) -> int:
        """Bytes that are copied."""
        return sum(part.size for part in self.chosen)


def ignore(size: int) -> None:
    """Count nothing."""
    del size


class Offloading:
    """The passes of a worker that are offloaded; `inputs` are those of all its passes.

    `moved` is called with the bytes that go to the host of memory that is not the pool's, or (less
    than zero) come back.
    """

    def __init__(self, pool: Pool, inputs: dict[Cell, Parcel]) -> None:
        self.pool, self.inputs = pool, inputs
        self.host = Pool(pool.device, lambda shape: pool.device.on_host(shape.bytes))
        self.kept: dict[Cell, Kept] = {}
        self.moved: Callable[[int], None] = ignore

    @property
    def lent_away(self) -> int:
        """Bytes of inputs in the pool's memory that are on the host alone."""
        chosen = chain.from_iterable(kept.chosen for kept in [*self.kept.values()])
        return sum(part.size for part in chosen if part.lent and part.here is None)

    def keep(self, cell: Cell, stays: Collection[int]) -> Kept:
        """Begin a forward pass whose activations are offloaded, except memory that `stays`."""
        before = self.kept.get(cell._replace(unit=cell.unit - 1))
        known = before.outputs if before else {}
        kept = Kept(self.inputs[cell], self.pool.device.device, stays, known)
        self.kept[cell] = kept
        return kept

    def offload(self, cell: Cell, share: float) -> None:
        """Copy to the host."""
        kept = self.kept[cell]
        kept.choose(share)
        for part in kept.chosen:
            part.host = self.host.take(Shape((part.size,), torch.uint8))
            part.host.copy_(part.bytes, non_blocking=True)

    def let_go(self, cell: Cell) -> None:
        """Free the device memory of storages that were copied to the host."""
        kept, lent = self.kept[cell], self.inputs[cell].lent
        self.inputs[cell] = Parcel((), lent)
        for leaf, _ in kept.leaves:
            leaf.data = leaf.new_empty(0)
        for part in kept.chosen:
            part.here = None
            if part.lent and lent is not None:
                self.inputs[cell] = Parcel(())
                self.pool.give(lent)
            else:
                self.moved(part.size)

    def make_room(self, cell: Cell) -> None:
        """Allocate device memory again, for the copy from the host to fill."""
        kept, lent = self.kept[cell], self.inputs[cell].lent
        for part in kept.chosen:
            if part.lent:
                lent = room = self.pool.take(part.lent)
            else:
                self.moved(-part.size)
                room = torch.empty(part.size, dtype=torch.uint8, device=self.pool.device.device)
            part.here = _bytes(room.untyped_storage())
        self.inputs[cell] = Parcel(tuple(map(find, kept.inputs)), lent)
        for leaf, saved in kept.leaves:
            leaf.data = find(saved)

    def forget(self, cell: Cell) -> None:
        """Leave reloaded activations to autograd, which frees them as the backward pass goes on."""
        self.kept.pop(cell, None)

    def reload(self, cell: Cell) -> None:
        """Copy back."""
        for part in self.kept[cell].chosen:
            assert part.host is not None  # noqa: S101
            part.bytes.copy_(part.host, non_blocking=True)
            self.host.give(part.host)
            part.host = None
