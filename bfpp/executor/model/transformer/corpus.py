"""Text as bytes, the training data of a language model.

A sample is a slice of the text. It depends only on the seed, the step and the
sample's number in the batch, so every rank finds the same without communication.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.reading import read_file

BYTES = 256
MASK = BYTES
"""The token that stands for a masked byte."""

MASKED_SHARE = 0.15
"""Share of the bytes that are masked, as in BERT."""

IGNORED = -100
"""The target of a byte that is not predicted."""


Tokens = bytes | npt.NDArray[np.integer]
"""A text: its bytes, or tokens, which may be in a file that is mapped into memory."""


@dataclass(frozen=True)
class Text:
    """Samples of `context` bytes, or tokens of a `vocabulary`, from a text."""

    data: Tokens
    context: int
    seed: int
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        if len(self.data) <= self.context:
            raise InvalidConfiguration(
                "text", f"has {len(self.data)} tokens, too few for samples of {self.context}"
            )

    def batches(self, is_causal: bool) -> Callable[[int, range], tuple[Tensor, Tensor]]:
        """Batches to predict the next token from, or masked ones."""
        return self.next_bytes if is_causal else self.masked_bytes

    def next_bytes(self, step: int, samples: range) -> tuple[Tensor, Tensor]:
        """Slices, and the same shifted by one: each byte predicts the next."""
        stretches = torch.stack([self._stretch(self._random(step, each)) for each in samples])
        return stretches[:, :-1].contiguous(), stretches[:, 1:].contiguous()

    def masked_bytes(self, step: int, samples: range) -> tuple[Tensor, Tensor]:
        """Slices with some bytes masked, and those bytes as targets."""
        pairs = [self._masked(self._random(step, each)) for each in samples]
        inputs, targets = zip(*pairs, strict=True)
        return torch.stack(inputs), torch.stack(targets)

    def _random(self, step: int, sample: int) -> random.Random:
        return random.Random(f"{self.seed} {step} {sample}")  # noqa: S311

    def _stretch(self, chance: random.Random) -> Tensor:
        start = chance.randrange(len(self.data) - self.context)
        stretch = self.data[start : start + self.context + 1]
        if isinstance(stretch, bytes):
            stretch = np.frombuffer(stretch, np.uint8)
        elif self.vocabulary and not 0 <= stretch.min() <= stretch.max() < self.vocabulary:
            raise InvalidConfiguration(
                "text",
                f"has tokens from {stretch.min()} to {stretch.max()} in the {self.context + 1} "
                f"from {start} on, and the model's vocabulary is {self.vocabulary}",
            )
        return torch.from_numpy(stretch.astype(np.int64))

    def _masked(self, chance: random.Random) -> tuple[Tensor, Tensor]:
        stretch = self._stretch(chance)[:-1]
        hidden = torch.zeros(self.context, dtype=torch.bool)
        hidden[chance.sample(range(self.context), max(1, round(MASKED_SHARE * self.context)))] = (
            True
        )
        return stretch.masked_fill(hidden, MASK), stretch.masked_fill(~hidden, IGNORED)


def default_text() -> bytes:
    """Text that every Python carries: the language's reference, as its help shows it."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics)).encode()


def read_text(path: Path | None) -> Tokens:
    """The bytes of a file, or the default text; the tokens of an array in a file, mapped.

    Raises `InvalidConfiguration` for an array of anything else.
    """
    if path is None:
        return default_text()
    return _mapped(path) if path.suffix == ".npy" else read_file(path)


def _mapped(path: Path) -> npt.NDArray[np.integer]:
    try:  # as an array alone: numpy's other kinds of files hold archives and pickles
        array = np.lib.format.open_memmap(path, mode="r")
    except OSError:
        raise
    except Exception as error:  # the parsers below numpy's have errors of their own
        raise InvalidConfiguration("text", f"{path}: {error}") from error
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise InvalidConfiguration(
            "text", f"{path} is an array of {array.dtype} of shape {array.shape}, not of tokens"
        )
    tokens: npt.NDArray[np.integer] = array
    return tokens
