"""Parameters shared between layers, detected by their storage.

No other parameter has that memory while it is referred to, however weakly. An address alone may
be another's by the time it is compared.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from bfpp.executor.model.model import named
from bfpp.schedules import InvalidConfiguration


@dataclass(frozen=True)
class _Place:
    """A parameter, where it is used, and which bytes of its memory are its own."""

    parameter: weakref.ref[nn.Parameter]
    name: str
    layer: int
    first: int
    last: int

    @property
    def whole_name(self) -> str:
        """Its name in the model."""
        return f"{self.layer}.{self.name}"

    def overlaps(self, other: _Place) -> bool:
        """True if the two overlap in memory."""
        return self.first <= other.last and other.first <= self.last


class Owners:
    """All parameters that were seen, by the memory that they are in."""

    def __init__(self, cuts: Sequence[range], ties_ends: bool) -> None:
        self.cuts, self.ties_ends = cuts, ties_ends
        self.shared: dict[str, str] = {}
        self.names: set[str] = set()
        self.places: dict[int, list[_Place]] = {}
        self.held: dict[int, StorageWeakRef] = {}
        """Their memory: while it is referred to so, no other gets its number."""

    def add(self, module: nn.Module, layer: int) -> None:
        """Raises `InvalidConfiguration` for a parameter that another stage has too."""
        for name, parameter in module.named_parameters():
            memory = StorageWeakRef(parameter.untyped_storage())
            self.held.setdefault(memory.cdata, memory)
            places = self.places.setdefault(memory.cdata, [])
            first, last = _bytes_of(parameter)
            place = _Place(weakref.ref(parameter), name, layer, first, last)
            self.names.add(place.whole_name)
            for other in places:
                if other.overlaps(place):
                    _require_one_parameter(other, place)
                    self._share(place.whole_name, other.whole_name)
            places.append(place)

    def tie(self, later: str, earlier: str) -> None:
        """Record parameters that the model declares tied."""
        for name in (later, earlier):
            if name not in self.names:
                raise InvalidConfiguration("model", f"ties {name}, and has no such parameter")
        self._share(later, earlier)

    def _share(self, later: str, earlier: str) -> None:
        """Raises `InvalidConfiguration` unless both are in one stage, or in the ends that share."""
        (layer, _), (other, _) = named(earlier), named(later)
        stage, last = (
            next(stage for stage, layers in enumerate(self.cuts) if each in layers)
            for each in (layer, other)
        )
        if stage != last:
            where = f"layers {layer} and {other} share a parameter, and are in stages {stage} and"
            if (stage, last) != (0, len(self.cuts) - 1):
                reason = f"{last}: only the first and the last stage may share any"
                raise InvalidConfiguration("model", f"{where} {reason}")
            if not self.ties_ends:
                reason = f"{last}, whose gradients nothing adds up: --tied-embeddings does"
                raise InvalidConfiguration("model", f"{where} {reason}")
        self.shared.setdefault(later, self.shared.get(earlier, earlier))


def _bytes_of(tensor: Tensor) -> tuple[int, int]:
    """The first and the last byte of its memory that a tensor is in."""
    first = int(tensor.storage_offset()) * tensor.itemsize
    steps = zip(tensor.size(), tensor.stride(), strict=True)
    reach = sum((int(size) - 1) * int(stride) for size, stride in steps)
    return first, first + (reach + 1) * tensor.itemsize - 1 if tensor.numel() else first - 1


def _require_one_parameter(one: _Place, other: _Place) -> None:
    if one.parameter() is not other.parameter():
        raise InvalidConfiguration(
            "model",
            f"{one.name} of layer {one.layer} and {other.name} of layer {other.layer} are two "
            "parameters in the same memory: shared parameters must be the same nn.Parameter",
        )
