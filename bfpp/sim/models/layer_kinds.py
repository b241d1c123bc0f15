"""Kinds of layers that a model consists of: fewer layers may be another mix of them.

The first layers may be dense, or only some of them have a window. `layers` takes the model's first
ones, so that the shares of the kinds, and time and memory by layer, may be others.
"""

from __future__ import annotations

from dataclasses import replace

from bfpp.sim.models.model import Transformer


def other_mix(trained: Transformer, whole: Transformer) -> str | None:
    """A warning where the layers that are trained are of other kinds than those of the model."""
    of_trained, of_whole = (_counts(model, whole) for model in (trained, whole))
    shares = {kind: number / whole.layers for kind, number in of_whole.items()}
    if all(of_trained[kind] == share * trained.layers for kind, share in shares.items()):
        return None
    return (
        f"--layers takes the first {trained.layers} of {whole.layers} layers: "
        f"{_listed(of_trained)}, where {whole.name} has {_listed(of_whole)}"
    )


def _counts(model: Transformer, whole: Transformer) -> dict[str, int]:
    """Layers of a model by the kinds of the whole one."""
    return {
        _title(kind, whole): len(model.kinds.get(replace(kind, layers=model.layers), ()))
        for kind in whole.kinds
    }


def _title(kind: Transformer, whole: Transformer) -> str:
    """Distinguish a kind of layer from the model's others."""
    experts = "with experts" if kind.experts else "dense"
    window = "with a window" if kind.window else "without a window"
    titles = [experts] * bool(whole.dense_layers) + [window] * bool(whole.global_every)
    return ", ".join(titles)


def _listed(counts: dict[str, int]) -> str:
    return " and ".join(f"{number} {title}" for title, number in counts.items())
