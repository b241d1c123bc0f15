"""What a model's `batch` must keep to, since every rank asks it for its own micro-batches.

The first stage of a pipeline takes the inputs, the last one the targets, each
in its own process. Both belong together only if `batch` is a function of the
step and the samples, and of nothing that goes on from call to call.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bfpp.executor.model import GENERATOR, Model
from bfpp.schedules import InvalidConfiguration


def samples_of(model: Model, step: int, samples: range) -> tuple[Tensor, Tensor]:
    """Inputs and targets of some samples, in tensors of their own.

    They may be drawn at random, and the next ones may be filled into the same
    tensors. Raises `InvalidConfiguration` unless they are a tensor each, of
    these samples.
    """
    with GENERATOR:
        pair: object = model.batch(step, samples)
        call = f"batch({step}, {samples})"
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InvalidConfiguration(
                "model", f"{call} returns {_kind(pair)}, not a pair: inputs and targets"
            )
        found = []
        for name, value in zip(("inputs", "targets"), pair, strict=True):
            if not isinstance(value, Tensor):
                raise InvalidConfiguration(
                    "model", f"{call} returns {_kind(value)} as {name}, not one tensor"
                )
            if not value.dim() or len(value) != len(samples):
                raise InvalidConfiguration(
                    "model",
                    f"{call} returns {name} of shape {tuple(value.shape)}, not of "
                    f"{len(samples)} samples",
                )
            found.append(value.detach().clone())
    return found[0], found[1]


def _kind(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def require_function(model: Model, size: int) -> None:
    """Raise `InvalidConfiguration` unless `batch` returns the same when it is called again.

    Between the two calls it is asked for the next step, as a rank would.
    """
    first, _, again = (tried(model, step, range(size)) for step in (0, 1, 0))
    for name, one, other in zip(("inputs", "targets"), first, again, strict=True):
        if not is_same(one, other):
            raise InvalidConfiguration(
                "model",
                f"batch(0, {range(size)}) returns other {name} when it is called again: each rank "
                "calls it for itself, so it must depend on the step and the samples alone, not on "
                "a loader's iterator or a generator that goes on",
            )


def tried(model: Model, step: int, samples: range) -> tuple[Tensor, Tensor]:
    """Like `samples_of`, before training: what `batch` raises is told as its fault."""
    try:
        return samples_of(model, step, samples)
    except InvalidConfiguration:
        raise
    except Exception as error:  # whatever a user's function raises
        raise InvalidConfiguration(
            "model", f"batch({step}, {samples}) fails with {type(error).__name__}: {error}"
        ) from error


def is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same to the last bit, in values that are no numbers too."""
    return (one.shape, one.dtype) == (other.shape, other.dtype) and torch.equal(
        bits(one), bits(other)
    )


def bits(tensor: Tensor) -> Tensor:
    """The bytes of a tensor, in order."""
    return tensor.flatten().contiguous().view(torch.uint8)
