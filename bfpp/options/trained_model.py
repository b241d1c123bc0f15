"""The model that a run trains: a function of a Python file, or a transformer of some sizes."""

from __future__ import annotations

import argparse
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bfpp.executor.settings import PretrainingObjective
from bfpp.options.run import SIZES
from bfpp.schedules import InvalidConfiguration, InvalidInput
from bfpp.sim.models.hugging_face import is_config
from bfpp.sim.models.model import Transformer, load_model
from bfpp.terminal.error_lines import blaming

if TYPE_CHECKING:
    from bfpp.executor.model.sources import ModelSource, TransformerSource

VOCABULARY = 257
"""All bytes, and a mask."""


def source_of(options: argparse.Namespace) -> ModelSource:
    """The source from which processes load the model that the options name."""
    from bfpp.executor.model.sources import FunctionSource

    path, is_function, name = (options.model or "").rpartition(".py:")
    given = [size for size in SIZES if getattr(options, size) is not None]
    if is_function:
        data = ("weights", "evaluate_text")
        for size in (*given, *(each for each in data if getattr(options, each, None))):
            raise InvalidConfiguration(size, f"is decided by {options.model}")
        return FunctionSource(Path(f"{path}.py"), name)
    model = _transformer(options)
    require_layers(model)
    if options.weights is not None:
        require_safetensors()
    return transformer_source(
        model,
        _text(options, "text"),
        is_causal=options.objective == PretrainingObjective.NEXT,
        file=options.model,
        weights=options.weights,
        held_out=_text(options, "evaluate_text"),
    )


def ties(source: ModelSource) -> bool:
    """True for a transformer whose embedding and output layer share weights."""
    from bfpp.executor.model.sources import TransformerSource

    return isinstance(source, TransformerSource) and source.sizes.tied


def _text(options: argparse.Namespace, name: str) -> Path | None:
    """The file of a text that an option names, if it is given; it can be read, as every rank will.

    Not all commands that run a model evaluate it.
    """
    from bfpp.executor.model.transformer.corpus import read_text

    path: Path | None = getattr(options, name, None)
    if path is None:
        return None
    with blaming(f"--{name.replace('_', '-')}"):
        read_text(resolved := path.resolve(strict=True))
    return resolved


def transformer_source(
    model: Transformer,
    text: Path | None,
    *,
    is_causal: bool,
    file: str | None = None,
    weights: Path | None = None,
    held_out: Path | None = None,
) -> TransformerSource:
    """A transformer of these sizes, which learns the bytes of a text.

    Where the `file` of its sizes is a `config.json`, that says the rest.
    """
    from bfpp.executor.model.sources import TransformerSource
    from bfpp.executor.model.transformer.transformer import TransformerSizes

    return TransformerSource(
        TransformerSizes(
            layers=model.layers,
            hidden=model.hidden,
            heads=model.heads,
            context=model.sequence,
            vocabulary=max(model.vocabulary, VOCABULARY),
            mlp=model.mlp or 4 * model.hidden,
            kv_heads=model.kv_heads or model.heads,
            causal=is_causal,
            gated=model.gated,
            head_layers=model.head_layers,
            norm=model.norm,
            positions=model.positions,
            head_dim=model.head_dim,
            window=model.window,
            tied=model.tied_embeddings,
            **_details(file, model),
        ),
        text,
        weights,
        held_out,
    )


def _details(name: str | None, model: Transformer) -> dict[str, Any]:
    """Details of a transformer other than its sizes; by a `config.json` if given."""
    if name is not None and is_config(name):
        from bfpp.executor.model.transformer.hugging_face_config import details_of

        details = details_of(Path(name))
    else:
        details = {"query_biases": model.norm == "layer"}
    return {"biases": model.norm == "layer", **details}


def require_layers(model: Transformer) -> None:
    """Raise `InvalidConfiguration` for a model whose layers the executor does not have."""
    parts = {
        "latent attention": model.latent is not None,
        "experts": model.experts is not None,
        "values of another width than keys": model.value_dim != model.key_head_dim,
        "layers with a window and others without": model.global_every is not None,
        "prediction modules": model.prediction_modules > 0,
    }
    others = [part for part, is_there in parts.items() if is_there]
    if others:
        raise InvalidConfiguration(
            "model",
            f"{model.name} has {' and '.join(others)}, which the built-in transformer lacks: "
            "simulate it, or give the model as FILE.py:FUNCTION",
        )


def _transformer(options: argparse.Namespace) -> Transformer:
    """The model that is named, or a small one; with the sizes that are given, tied if asked for."""
    sizes = {name: getattr(options, name) for name in SIZES if getattr(options, name) is not None}
    if "context" in sizes:
        sizes["sequence"] = sizes.pop("context")
    if getattr(options, "tied_embeddings", None):
        sizes["tied_embeddings"] = True
    if options.model:
        return replace(load_model(options.model), **sizes)
    default = {name: size for name, (size, _) in SIZES.items()}
    default["sequence"] = default.pop("context")
    default["tied_embeddings"] = False
    return Transformer("small", vocabulary=VOCABULARY, **default | sizes)


def require_safetensors() -> None:
    """Raise `InvalidInput` where safetensors, which Hugging Face's weights need, is missing."""
    if find_spec("safetensors") is None:
        raise InvalidInput("needs safetensors, which is not installed: pip install 'bfpp[hf]'")
