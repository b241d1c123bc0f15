"""Weights of our transformer as Hugging Face's Llama, Mistral and Qwen have them.

A model is a directory with `config.json` and safetensors files: one, or several with an index.
Ours has the same numbers in the same order, with keys and values in one product; so each of our
parameters is one of theirs, or two, one above the other. A head that is tied to the embedding is
read from it; a model of ours that is not tied has one of its own from then on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from bfpp.executor.checkpoint import Pieces, load
from bfpp.executor.checkpoint.manifest import read_manifest
from bfpp.executor.transformer import Block, Embedding, Output, TransformerSizes
from bfpp.executor.uncompiled import uncompiled
from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.reading import read_file

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"

EMBEDDING = {"tokens.weight": ("model.embed_tokens.weight",)}
OUTPUT = {"norm.weight": ("model.norm.weight",), "scores.weight": ("lm_head.weight",)}
BLOCK = {
    "attention_norm": ("input_layernorm",),
    "attention.query": ("self_attn.q_proj",),
    "attention.key_value": ("self_attn.k_proj", "self_attn.v_proj"),
    "attention.output": ("self_attn.o_proj",),
    "attention.query_norm": ("self_attn.q_norm",),
    "attention.key_norm": ("self_attn.k_norm",),
    "mlp_norm": ("post_attention_layernorm",),
    "mlp.gate": ("mlp.gate_proj",),
    "mlp.up": ("mlp.up_proj",),
    "mlp.down": ("mlp.down_proj",),
}
"""Their names of each of our modules; the parameter's own name follows."""


def their_names(layer: int, name: str, sizes: TransformerSizes) -> tuple[str, ...]:
    """What Hugging Face calls a parameter of a layer; raises `KeyError` if it has none such."""
    if layer == 0:
        return EMBEDDING[name]
    if layer > sizes.layers:
        return OUTPUT[name]
    module, _, key = name.rpartition(".")
    return tuple(f"model.layers.{layer - 1}.{each}.{key}" for each in BLOCK[module])


@dataclass(frozen=True)
class Weights:
    """The safetensors of a directory, for a transformer of some sizes."""

    directory: Path
    sizes: TransformerSizes

    @cached_property
    def _files(self) -> Mapping[str, Path]:
        """Where each tensor is."""
        file, index = self.directory / WEIGHTS, self.directory / INDEX
        if index.exists() and not file.exists():
            names = json.loads(read_file(index))["weight_map"]
            return {name: self.directory / part for name, part in names.items()}
        with self._opened(file) as stored:
            return dict.fromkeys(stored.keys(), file)

    def _opened(self, file: Path) -> Any:
        try:
            return safe_open(file, "pt")
        except (OSError, SafetensorError) as error:
            raise InvalidConfiguration("weights", f"'{file}' cannot be read: {error}") from error

    def _tensor(self, name: str) -> Tensor:
        known = self._files
        if name not in known and name == "lm_head.weight":
            name = "model.embed_tokens.weight"  # it is tied
        if name not in known:
            raise InvalidConfiguration("weights", f"'{self.directory}' has no {name}")
        with self._opened(known[name]) as stored:
            tensor: Tensor = stored.get_tensor(name)
        return tensor

    def fill(self, layer: int, make: Callable[[], nn.Module]) -> nn.Module:
        """A layer with these weights; with none, if it is made to look at its shapes alone."""
        module = make()
        for name, parameter in module.named_parameters():
            if parameter.is_meta:
                continue
            names = their_names(layer, name, self.sizes)
            value = torch.cat([self._tensor(each) for each in names])
            if value.shape != parameter.shape:
                raise InvalidConfiguration(
                    "weights",
                    f"'{self.directory}' has {' and '.join(names)} of shape {tuple(value.shape)}, "
                    f"and the model takes {tuple(parameter.shape)}",
                )
            parameter.data = value.to(parameter.dtype)
        return module


def their_tensors(
    checkpoint: Path, sizes: TransformerSizes, dtype: torch.dtype
) -> dict[str, Tensor]:
    """The weights in a checkpoint of our transformer, by their names and in their shapes.

    The head is a tensor of its own, unless it is tied. Raises `CheckpointError` for a checkpoint
    that is damaged.
    """
    stored = read_manifest(checkpoint).tensors
    values = {
        name: torch.empty(each.size, dtype=each.dtype)
        for name, each in stored.items()
        if " " not in name  # moments have one in their name, as the optimizer's steps do
    }
    wanted = {name: [(0, values[name])] if name in values else [] for name in stored}
    load(checkpoint, {name: Pieces(stored[name].size, each) for name, each in wanted.items()}, None)
    return {
        name: value.to(dtype, copy=True)
        for own, whole in values.items()
        for name, value in _theirs(own, whole, sizes)
    }


def write(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Write tensors to a safetensors file; raises `OSError` where there is no room for it."""
    try:
        save_file(dict(tensors), file, {"format": "pt", "generator": "bfpp"})
    except SafetensorError as error:
        raise OSError(str(error)) from error


def _theirs(own: str, whole: Tensor, sizes: TransformerSizes) -> Iterator[tuple[str, Tensor]]:
    """A parameter of a checkpoint, in their parts."""
    layer, _, name = own.partition(".")
    names = their_names(int(layer), name, sizes)
    yield from zip(
        names, whole.view(_shape(int(layer), name, sizes)).chunk(len(names)), strict=True
    )


@uncompiled()
def _shape(layer: int, name: str, sizes: TransformerSizes) -> torch.Size:
    kind = Embedding if layer == 0 else Output if layer > sizes.layers else Block
    with torch.device("meta"):
        return kind(sizes).get_parameter(name).shape
