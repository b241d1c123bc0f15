"""Sources of a model, as values that can be sent to another process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from bfpp.executor.checkpoint.manifest import METADATA_FILE
from bfpp.executor.model.model import Model, drawing
from bfpp.executor.model.transformer.corpus import Text, read_text
from bfpp.executor.model.transformer.transformer import Rotary, TransformerSizes, transformer
from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.formats.python_file import named_in


class ModelSource(Protocol):
    """Makes the same model in every process."""

    def load(self, seed: int) -> Model:
        """The model, with data drawn by this seed."""


@dataclass(frozen=True)
class TransformerSource:
    """A transformer that learns the bytes of a text file, or of Python's own documentation.

    Its first weights are those of a directory (Hugging Face's, torchtitan's, or by our own names of
    torch.distributed.checkpoint), or random ones. It is evaluated on a text that is `held_out`, if
    there is one.
    """

    sizes: TransformerSizes
    text: Path | None = None
    weights: Path | None = None
    held_out: Path | None = None

    def load(self, seed: int) -> Model:
        """The transformer; raises `OSError` if the text cannot be read."""
        text = self._text(self.text, seed)
        held_out = self._text(self.held_out, seed) if self.held_out else None
        if self.weights is None:
            return transformer(self.sizes, text, held_out)
        if is_state_dict(self.weights):
            from bfpp.executor.checkpoint.state_dicts import StateDict
            from bfpp.executor.model.transformer import torchtitan

            stored = StateDict(self.weights)
            if torchtitan.form_of(stored) is None:
                return replace(transformer(self.sizes, text, held_out), weights=stored)
            theirs = torchtitan.TorchtitanWeights(self.weights, self.sizes, stored)
            return transformer(self.sizes, text, held_out, theirs.fill)
        from bfpp.executor.model.transformer.hugging_face import Weights

        return transformer(self.sizes, text, held_out, Weights(self.weights, self.sizes).fill)

    def _text(self, path: Path | None, seed: int) -> Text:
        return Text(read_text(path), self.sizes.context, seed, self.sizes.vocabulary)


@dataclass(frozen=True)
class FunctionSource:
    """A function in a Python file that takes a seed and returns a `Model`.

    Its first weights are those that it is made with, or of torch.distributed.checkpoint.
    """

    path: Path
    name: str
    weights: Path | None = None

    def load(self, seed: int) -> Model:
        """Call the function; raises `InvalidConfiguration` if it returns no model.

        Torch's generator is seeded: modules that the function makes are the same everywhere.
        """
        try:
            with drawing(seed):
                model = self._function()(seed)
        except InvalidConfiguration:
            raise
        except Exception as error:  # whatever a user's file raises
            words = f"{type(error).__name__}: {error}"
            raise InvalidConfiguration("model", f"{self} fails with {words}") from error
        if not isinstance(model, Model):
            raise InvalidConfiguration(
                "model",
                f"{self} returned {type(model).__name__}, not a bfpp.executor.model.model.Model",
            )
        return model if self.weights is None else with_weights(model, self.weights)

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"

    def _function(self) -> Callable[[int], object]:
        function = named_in("model", self.path, self.name)
        if not callable(function):
            raise InvalidConfiguration("model", f"{self.path} has no function {self.name}")
        factory: Callable[[int], object] = function
        return factory


def is_state_dict(directory: Path) -> bool:
    """True for a directory that torch.distributed.checkpoint wrote."""
    return (directory / METADATA_FILE).exists()


def with_weights(model: Model, directory: Path) -> Model:
    """A model that begins with the weights of such a directory."""
    from bfpp.executor.checkpoint.state_dicts import StateDict

    return replace(model, weights=StateDict(directory))


def ties(source: ModelSource) -> bool:
    """True for a transformer whose embedding and output layer share weights."""
    return isinstance(source, TransformerSource) and source.sizes.tied


OF_MODEL = "the model's "
"""Prefix of the sizes in a description."""

BEGINNING = 2**26
"""Bytes of a text that are hashed: all, unless it is too long to be read for that."""


def description(source: ModelSource) -> dict[str, str | int]:
    """Description of a model and its data: sizes, names, and the beginning of a SHA-256.

    Of a source of another kind, nothing is known.
    """
    match source:
        case TransformerSource():
            sizes = {f"{OF_MODEL}{name}": size for name, size in asdict(source.sizes).items()}
            held_out = {"the held-out text": _text(source.held_out)} if source.held_out else {}
            return {
                **sizes,
                "the text": _text(source.text),
                **held_out,
                "the first weights": source.weights.name if source.weights else "random ones",
            }
        case FunctionSource():
            content = _hash(source.path.read_bytes())
            first = {"the first weights": source.weights.name} if source.weights else {}
            return {"the model": f"{source.name} of {source.path.name} ({content})", **first}
    return {}


def _text(path: Path | None) -> str:
    """A text's name, and the beginning of a SHA-256 of it."""
    name = "Python's documentation" if path is None else path.name
    return f"{name} ({_hash(bytes(read_text(path)[:BEGINNING]))})"


def described_sizes(described: Mapping[str, Any]) -> TransformerSizes:
    """The sizes in a transformer's description, once it was JSON.

    Raises `InvalidConfiguration` for a description of anything else.
    """
    sizes = {
        name.removeprefix(OF_MODEL): size
        for name, size in described.items()
        if name.startswith(OF_MODEL)
    }
    if not sizes:
        model = described.get("the model", "a model that it does not describe")
        raise InvalidConfiguration("model", f"is {model}, and not the built-in transformer")
    try:
        return TransformerSizes(**{**sizes, "rotary": Rotary(**sizes["rotary"])})
    except (KeyError, TypeError) as error:
        raise InvalidConfiguration(
            "model", f"is a transformer of another version of bfpp: {error}"
        ) from error


def _hash(content: bytes) -> str:
    return sha256(content).hexdigest()[:12]
