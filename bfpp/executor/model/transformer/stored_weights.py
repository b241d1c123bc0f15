"""Weights of our transformer that are stored in another form, read and written layer by layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path

import torch
from torch import Tensor, nn

from bfpp.executor.checkpoint import TensorPieces, load
from bfpp.executor.checkpoint.manifest import StoredTensor, read_manifest
from bfpp.executor.devices.uncompiled import uncompiled
from bfpp.executor.model.transformer.names import WeightNames
from bfpp.executor.model.transformer.transformer import (
    Block,
    Embedding,
    OutputHead,
    TransformerSizes,
)
from bfpp.schedules import InvalidConfiguration


@dataclass(frozen=True)
class StoredWeights(ABC):
    """The weights in a directory, for a transformer of some sizes.

    A head that is tied to the embedding is read from it; in a model of ours that is not tied, it is
    a parameter of its own from then on.
    """

    directory: Path
    sizes: TransformerSizes

    @property
    @abstractmethod
    def form(self) -> WeightNames:
        """The form that they are in."""

    @property
    @abstractmethod
    def names(self) -> Collection[str]:
        """The tensors that are there."""

    def place(self, name: str) -> str:
        """The name that a tensor has there: a tied head, the embedding's.

        Raises `InvalidConfiguration` if it is not there.
        """
        if name not in self.names and name == self.form.head:
            name = self.form.words
        if name not in self.names:
            raise InvalidConfiguration("weights", f"'{self.directory}' has no {name}")
        return name

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor that is there; raises `InvalidConfiguration` for another."""

    @abstractmethod
    def tensor(self, name: str) -> Tensor:
        """A tensor that is there."""

    def fill(self, layer: int, make: Callable[[], nn.Module]) -> nn.Module:
        """A layer with these weights; on the meta device, to look at, it takes as much to make.

        It is made without values first: random ones would be drawn in vain. Raises
        `InvalidConfiguration` where weights do not fit, or cannot be read.
        """
        looks = torch.get_default_device().type == "meta"
        module = outline(make)
        for name, parameter in [*module.named_parameters()]:
            names = self.form.names(layer, name, self.sizes)
            shapes = [self.shape(each) for each in names]
            rows = sum(each[0] for each in shapes if each)
            if {(rows, *each[1:]) for each in shapes} != {tuple(parameter.shape)}:
                raise InvalidConfiguration(
                    "weights",
                    f"'{self.directory}' has {' and '.join(names)} of shape "
                    f"{' and '.join(map(str, shapes))}, "
                    f"and the model takes {tuple(parameter.shape)}",
                )
            values = parameter.detach()
            if not looks:
                values = torch.empty_like(values, device="cpu")
            parts = values.split([shape[0] for shape in shapes])
            for number, (own, part) in enumerate(zip(names, parts, strict=True)):
                stored = self.tensor(own).to(values.device)
                part.copy_(self.form.ours(name, number, stored, self.sizes))
                del stored
            path, _, key = name.rpartition(".")
            setattr(module.get_submodule(path), key, nn.Parameter(values))
        return module


@uncompiled()
def outline(make: Callable[[], nn.Module]) -> nn.Module:
    """A layer without values."""
    with torch.device("meta"):
        return make()


@dataclass(frozen=True)
class ExportedWeights(ABC):
    """The weights in a checkpoint of our transformer, by their names in another form.

    The head is a tensor of its own, unless it is tied. Weights are in memory one layer at a time.
    """

    checkpoint: Path
    sizes: TransformerSizes
    dtype: torch.dtype
    form: WeightNames

    @cached_property
    def _stored(self) -> Mapping[str, StoredTensor]:
        return read_manifest(self.checkpoint).tensors

    @cached_property
    def shapes(self) -> dict[str, torch.Size]:
        """The shape of each tensor, in order."""
        return {name: value.shape for layer in self.layers for name, value in self.theirs(layer)}

    def require_sound(self) -> None:
        """Raises `CheckpointError` for a checkpoint that is damaged."""
        self._load({}, verify=True)

    @abstractmethod
    def write(self, place: Path) -> None:
        """Write them to a place: a file, or a directory."""

    @cached_property
    def layers(self) -> list[list[str]]:
        """The parameters of each layer; moments have a space in their names."""
        layers: dict[str, list[str]] = {}
        for name in self._stored:
            if " " not in name:
                layers.setdefault(name.partition(".")[0], []).append(name)
        return [layers[layer] for layer in sorted(layers, key=int)]

    def values(self, names: Sequence[str]) -> dict[str, Tensor]:
        """The values of parameters, flat."""
        stored = {name: self._stored[name] for name in names}
        values = {name: torch.empty(each.size, dtype=each.dtype) for name, each in stored.items()}
        self._load(values, verify=False)
        return values

    def _load(self, values: Mapping[str, Tensor], *, verify: bool) -> None:
        wanted = {name: [(0, values[name])] if name in values else [] for name in self._stored}
        pieces = {
            name: TensorPieces(self._stored[name].size, each) for name, each in wanted.items()
        }
        load(self.checkpoint, pieces, None, verify)

    def theirs(
        self, names: Sequence[str], values: Mapping[str, Tensor] | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """Parameters of a layer in their parts; without values, to look at shapes alone."""
        for own in names:
            layer, _, name = own.partition(".")
            number = int(layer)
            last = self.sizes.layers
            kind = Embedding if number == 0 else OutputHead if number > last else Block
            shape = _shapes(kind, self.sizes)[name]
            whole = values[own].view(shape) if values else torch.empty(shape, device="meta")
            yield from self.form.theirs(number, name, whole, self.sizes)


@cache
def _shapes(kind: Callable[..., nn.Module], sizes: TransformerSizes) -> dict[str, torch.Size]:
    """The weights of a layer's parameters, by name."""
    return {name: each.shape for name, each in outline(partial(kind, sizes)).named_parameters()}
