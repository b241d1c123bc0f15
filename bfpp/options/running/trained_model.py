"""The model that a run trains: a function of a Python file, or a transformer of some sizes."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bfpp.executor.settings import PretrainingObjective
from bfpp.launchers.own.model import (
    SIZES,
    VOCABULARY,
    require_layers,
    require_weights,
    transformer_source,
)
from bfpp.schedules import InvalidConfiguration
from bfpp.sim.models.model import Transformer, load_model
from bfpp.terminal.error_lines import blaming

if TYPE_CHECKING:
    from bfpp.executor.model.sources import ModelSource


def source_of(options: argparse.Namespace) -> ModelSource:
    """The source from which processes load the model that the options name."""
    from bfpp.executor.model.sources import FunctionSource

    path, is_function, name = (options.model or "").rpartition(".py:")
    weights: Path | None = options.weights
    given = [size for size in SIZES if getattr(options, size) is not None]
    if is_function:
        given += ["evaluate_text"] if getattr(options, "evaluate_text", None) else []
        for size in given:
            raise InvalidConfiguration(size, f"is decided by {options.model}")
        require_weights(weights, options.model)
        return FunctionSource(Path(f"{path}.py"), name, weights)
    model = _transformer(options)
    require_layers(model)
    require_weights(weights)
    return transformer_source(
        model,
        _text(options, "text"),
        is_causal=options.objective == PretrainingObjective.NEXT,
        file=options.model,
        weights=weights,
        held_out=_text(options, "evaluate_text"),
    )


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
