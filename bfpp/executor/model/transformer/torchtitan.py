"""Weights of our transformer as torchtitan's Llama 3 and Qwen3 have them.

They are in a directory of torch.distributed.checkpoint, as torchtitan saves them, and loads them
to begin with (`checkpoint.initial_load_path`).
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import MetadataIndex

from bfpp.executor.checkpoint.loading import some
from bfpp.executor.checkpoint.state_dicts import StateDict
from bfpp.executor.model.transformer.names import TORCHTITAN, WeightNames
from bfpp.executor.model.transformer.stored_weights import ExportedWeights, StoredWeights
from bfpp.executor.model.transformer.transformer import TransformerSizes
from bfpp.schedules import InvalidConfiguration


def form_of(stored: StateDict) -> WeightNames | None:
    """The form of torchtitan's that stored weights are in, if they are in one."""
    for form in TORCHTITAN.values():
        query = form.block["attention.query"][0]
        if f"{form.layers}.0.{query}.weight" in stored.shapes:
            return form
    return None


def form_for(release: tuple[int, int] | None) -> WeightNames:
    """The form of a release, by default of the newest; the last one that came before it counts."""
    known = [each for each in sorted(TORCHTITAN) if release is None or each <= release]
    return TORCHTITAN[(known or sorted(TORCHTITAN))[-1 if known else 0]]


@dataclass(frozen=True)
class TorchtitanWeights(StoredWeights):
    """The tensors of a directory, for a transformer of some sizes."""

    stored: StateDict

    @property
    def names(self) -> Collection[str]:
        """The tensors that are there."""
        return self.stored.shapes.keys()

    @cached_property
    def form(self) -> WeightNames:
        """The form of their release; raises `InvalidConfiguration` if they are of none."""
        require_model(self.sizes)
        form = form_of(self.stored)
        if form is None:
            raise self._refused("has no weights of torchtitan's")
        here = {name for name in self.stored.shapes if name.startswith(form.layers)}
        most = {name.split(".")[1] for name in here}
        known = {
            f"{form.layers}.{number}.{each}.weight"
            for number in most
            for names in form.block.values()
            for each in names
        }
        if unknown := here - known:
            raise self._refused(f"has {some(unknown)}, which the model has not")
        if len(most) != self.sizes.layers:
            raise self._refused(f"has {len(most)} layers, and the model {self.sizes.layers}")
        return form

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor that is there; raises `InvalidConfiguration` for another."""
        return tuple(self.stored.shapes[self.place(name)])

    def tensor(self, name: str) -> Tensor:
        """A tensor that is there."""
        return self.stored.read(self.place(name))

    def _refused(self, reason: str) -> InvalidConfiguration:
        return InvalidConfiguration("weights", f"'{self.directory}' {reason}")


def require_model(sizes: TransformerSizes) -> None:
    """Raise `InvalidConfiguration` for a transformer that is none of torchtitan's."""
    others = {
        "LayerNorm": sizes.norm != "rms",
        "learned positions": sizes.positions != "rotary",
        "no gates": not sizes.gated,
        "attention to later tokens": not sizes.causal,
        "a window": sizes.window is not None,
        "biases": sizes.biases or sizes.query_biases or sizes.output_biases,
    }
    if has := [what for what, is_so in others.items() if is_so]:
        raise InvalidConfiguration(
            "weights",
            f"are those of torchtitan's Llama 3 or Qwen3, and the model has {' and '.join(has)}",
        )


@dataclass(frozen=True)
class TorchtitanExport(ExportedWeights):
    """The weights in a checkpoint of our transformer, for a directory of theirs.

    A head that is tied has its name, too.
    """

    form: WeightNames = TORCHTITAN[max(TORCHTITAN)]

    @cached_property
    def shapes(self) -> dict[str, torch.Size]:
        """The shape of each tensor, in order."""
        own = super().shapes
        return {**own, self.form.head: own[self.form.words]}

    def write(self, place: Path) -> None:
        """Write the directory: its data, and what lies where."""
        whole = {
            name: torch.empty(shape, dtype=self.dtype, device="meta")
            for name, shape in self.shapes.items()
        }
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # of one process
            state_dict_saver.save(
                whole,
                storage_writer=FileSystemWriter(place, thread_count=1),
                planner=_LayerByLayer(self),
                no_dist=True,
            )


class _LayerByLayer(DefaultSavePlanner):
    """Reads a layer's values when the first of them is written."""

    def __init__(self, export: TorchtitanExport) -> None:
        super().__init__()
        self.export = export
        self.layer_of = {
            name: number
            for number, layer in enumerate(export.layers)
            for name, _ in export.theirs(layer)
        }
        if export.form.head not in self.layer_of:
            self.layer_of[export.form.head] = 0
        self.here, self.values = -1, dict[str, Tensor]()

    def lookup_object(self, index: MetadataIndex) -> Any:
        """The values of a tensor."""
        number = self.layer_of[index.fqn]
        if number != self.here:
            layer = self.export.layers[number]
            theirs = self.export.theirs(layer, self.export.values(layer))
            self.here, self.values = number, dict(theirs)
        name = index.fqn if index.fqn in self.values else self.export.form.words
        return self.values[name].to(self.export.dtype).contiguous()
