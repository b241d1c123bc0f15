"""The model of `bfpp run`: a built-in transformer with the sizes of one that can be simulated."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bfpp.schedules import InvalidConfiguration, InvalidInput
from bfpp.sim.models.hugging_face import is_config
from bfpp.sim.models.model import Transformer

if TYPE_CHECKING:
    from bfpp.executor.model.sources import TransformerSource

VOCABULARY = 257
"""All bytes, and a mask."""

SIZES = {
    "layers": (8, "transformer layers"),
    "hidden": (64, "width of a layer"),
    "heads": (4, "attention heads"),
    "context": (64, "bytes in a sample"),
}
"""The small transformer that is trained by default: sizes, and their descriptions."""


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


def require_weights(weights: Path | None, function: str | None = None) -> None:
    """Raise `InvalidConfiguration` for weights that the transformer or a function cannot have.

    And `InvalidInput` where safetensors, in which Hugging Face has them, cannot be read.
    """
    from bfpp.executor.model.sources import is_state_dict

    if weights is None or is_state_dict(weights):
        return
    if function is not None:
        raise InvalidConfiguration(
            "weights",
            f"'{weights}' has no .metadata of torch.distributed.checkpoint, the only form in "
            f"which {function} can be given weights",
        )
    require_safetensors()


def require_safetensors() -> None:
    """Raise `InvalidInput` where safetensors, which Hugging Face's weights need, is missing."""
    if find_spec("safetensors") is None:
        raise InvalidInput("needs safetensors, which is not installed: pip install 'bfpp[hf]'")
