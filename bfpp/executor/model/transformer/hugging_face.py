"""Weights of our transformer as Hugging Face's Llama, Mistral and Qwen have them.

A model is a directory with `config.json` and safetensors files: one, or several with an index.
Ours has the same numbers in the same order, with keys and values in one GEMM; so each of our
parameters is one of theirs, or two, one above the other. A head that is tied to the embedding is
read from it; in a model of ours that is not tied, it is a parameter of its own from then on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from bfpp.executor.checkpoint import TensorPieces, load
from bfpp.executor.checkpoint.manifest import StoredTensor, read_manifest
from bfpp.executor.devices.uncompiled import uncompiled
from bfpp.executor.model.transformer.transformer import (
    Block,
    Embedding,
    OutputHead,
    TransformerSizes,
)
from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.reading import NotJson, parsed, read_file

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"

KINDS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
}
"""The names of precisions in safetensors files."""

ALIGNED = 8
"""The values in a safetensors file begin at a multiple of this many bytes."""

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
    """Hugging Face's name of a layer's parameter.

    Raises `InvalidConfiguration` for one that Llama, Mistral and Qwen do not have.
    """
    module, _, key = name.rpartition(".")
    known = EMBEDDING if layer == 0 else OUTPUT if layer > sizes.layers else BLOCK
    own = module if known is BLOCK else name
    if own not in known:
        raise InvalidConfiguration(
            "weights",
            f"are read of models laid out as Llama, Mistral or Qwen, and layer {layer} of this one "
            f"has {name}, which these have not: train it without --weights, or give the network "
            "as FILE.py:FUNCTION",
        )
    if known is not BLOCK:
        return known[own]
    return tuple(f"model.layers.{layer - 1}.{each}.{key}" for each in known[own])


@dataclass(frozen=True)
class Weights:
    """The safetensors of a directory, or of one file, for a transformer of some sizes."""

    directory: Path
    sizes: TransformerSizes

    @cached_property
    def _files(self) -> Mapping[str, Path]:
        """The file of each tensor."""
        is_file = self.directory.is_file()
        file = self.directory if is_file else self.directory / WEIGHTS
        index = self.directory / INDEX
        if index.exists() and not file.exists():
            return {name: self.directory / part for name, part in _weight_map(index).items()}
        with self._opened(file) as stored:
            return dict.fromkeys(stored.keys(), file)

    @contextmanager
    def _opened(self, file: Path) -> Iterator[Any]:
        try:
            with safe_open(file, "pt") as stored:
                yield stored
        except (OSError, SafetensorError) as error:
            raise InvalidConfiguration("weights", f"'{file}' cannot be read: {error}") from error

    @contextmanager
    def _stored(self, name: str) -> Iterator[tuple[Any, str]]:
        """The file of a tensor, and its name there."""
        known = self._files
        if name not in known and name == "lm_head.weight":
            name = "model.embed_tokens.weight"  # it is tied
        if name not in known:
            raise InvalidConfiguration("weights", f"'{self.directory}' has no {name}")
        with self._opened(known[name]) as file:
            yield file, name

    def _shape(self, name: str) -> tuple[int, ...]:
        with self._stored(name) as (file, own):
            return tuple(file.get_slice(own).get_shape())

    def _tensor(self, name: str) -> Tensor:
        """A tensor in the file, which is mapped to memory."""
        with self._stored(name) as (file, own):
            tensor: Tensor = file.get_tensor(own)
        return tensor

    def fill(self, layer: int, make: Callable[[], nn.Module]) -> nn.Module:
        """A layer with these weights; with none, if it is made to look at its shapes alone.

        It is made without values first: random ones would be drawn in vain. Raises
        `InvalidConfiguration` where weights do not fit, or cannot be read.
        """
        looks = torch.get_default_device().type == "meta"
        module = _outline(make)
        for name, parameter in [*module.named_parameters()]:
            names = their_names(layer, name, self.sizes)
            shapes = [self._shape(each) for each in names]
            rows = sum(each[0] for each in shapes if each)
            if {(rows, *each[1:]) for each in shapes} != {tuple(parameter.shape)}:
                raise InvalidConfiguration(
                    "weights",
                    f"'{self.directory}' has {' and '.join(names)} of shape "
                    f"{' and '.join(map(str, shapes))}, "
                    f"and the model takes {tuple(parameter.shape)}",
                )
            if not looks:
                values = torch.empty_like(parameter, device="cpu", requires_grad=False)
                parts = values.split([shape[0] for shape in shapes])
                for own, part in zip(names, parts, strict=True):
                    part.copy_(self._tensor(own))
                path, _, key = name.rpartition(".")
                setattr(module.get_submodule(path), key, nn.Parameter(values))
        return module


@uncompiled()
def _outline(make: Callable[[], nn.Module]) -> nn.Module:
    """A layer without values."""
    with torch.device("meta"):
        return make()


def _weight_map(index: Path) -> dict[str, str]:
    """The file of each tensor: one of the index's own folder, whatever it is a link to."""
    try:
        record = parsed(read_file(index))
    except (OSError, NotJson) as error:
        raise InvalidConfiguration("weights", f"'{index}' cannot be read: {error}") from error
    names = record.get("weight_map") if isinstance(record, dict) else None
    if not isinstance(names, dict) or not all(isinstance(part, str) for part in names.values()):
        raise InvalidConfiguration("weights", f"'{index}' has no weight_map from names to files")
    for part in names.values():
        if part in ("", "..") or part != Path(part).name or not part.isprintable():
            raise InvalidConfiguration("weights", f"'{index}': {part!r} is no file of its folder")
    return names


@dataclass(frozen=True)
class WeightExport:
    """The weights in a checkpoint of our transformer, for a safetensors file of theirs.

    The head is a tensor of its own, unless it is tied. Weights are in memory one layer at a time.
    """

    checkpoint: Path
    sizes: TransformerSizes
    dtype: torch.dtype

    @cached_property
    def _stored(self) -> Mapping[str, StoredTensor]:
        return read_manifest(self.checkpoint).tensors

    @cached_property
    def shapes(self) -> dict[str, torch.Size]:
        """The shape of each tensor in the file, in order."""
        return {name: value.shape for layer in self._layers for name, value in self._theirs(layer)}

    def require_sound(self) -> None:
        """Raises `CheckpointError` for a checkpoint that is damaged."""
        self._load({}, verify=True)

    def write(self, file: Path) -> None:
        """Write the file: a header with the place of each tensor, and then their values."""
        header: dict[str, Any] = {"__metadata__": {"format": "pt", "generator": "bfpp"}}
        kind, end = KINDS[self.dtype], 0
        for name, shape in self.shapes.items():
            begin, end = end, end + shape.numel() * self.dtype.itemsize
            header[name] = {"dtype": kind, "shape": [*shape], "data_offsets": [begin, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % ALIGNED)
        with file.open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for layer in self._layers:
                for _, value in self._theirs(layer, self._values(layer)):
                    out.write(value.to(self.dtype).contiguous().view(torch.uint8).numpy().data)

    @cached_property
    def _layers(self) -> list[list[str]]:
        """The parameters of each layer; moments have a space in their names."""
        layers: dict[str, list[str]] = {}
        for name in self._stored:
            if " " not in name:
                layers.setdefault(name.partition(".")[0], []).append(name)
        return [layers[layer] for layer in sorted(layers, key=int)]

    def _values(self, names: Sequence[str]) -> dict[str, Tensor]:
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

    def _theirs(
        self, names: Sequence[str], values: Mapping[str, Tensor] | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """Parameters of a layer in their parts; without values, to look at shapes alone."""
        for own in names:
            layer, _, name = own.partition(".")
            number = int(layer)
            last = self.sizes.layers
            kind = Embedding if number == 0 else OutputHead if number > last else Block
            theirs = their_names(number, name, self.sizes)
            shape = _shapes(kind, self.sizes)[name]
            whole = values[own].view(shape) if values else torch.empty(shape, device="meta")
            yield from zip(theirs, whole.chunk(len(theirs)), strict=True)


@cache
def _shapes(kind: Callable[..., nn.Module], sizes: TransformerSizes) -> dict[str, torch.Size]:
    """The weights of a layer's parameters, by name."""
    return {name: each.shape for name, each in _outline(partial(kind, sizes)).named_parameters()}
