"""Requirements on a model's `batch`, which every rank calls for its own micro-batches.

The first stage of a pipeline takes the inputs, the last one the targets, each
in its own process. Both belong together only if `batch` is a function of the
step and the samples, and of nothing that goes on from call to call.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bfpp.executor.devices.messages import Form, Tree, tensors_of
from bfpp.executor.model.model import GENERATOR, Model
from bfpp.schedules import InvalidConfiguration


def samples_of(model: Model, step: int, samples: range) -> tuple[Tree, Tree]:
    """Inputs and targets of some samples, in tensors of their own.

    They may be drawn at random, and the next ones may be filled into the same
    tensors. Raises `InvalidConfiguration` unless all tensors in them are of
    these samples, and there is one in the inputs.
    """
    with GENERATOR:
        pair: object = model.batch(step, samples)
        call = f"batch({step}, {samples})"
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InvalidConfiguration(
                "model", f"{call} returns {_kind(pair)}, not a pair: inputs and targets"
            )
        copies = []
        for name, value in zip(("inputs", "targets"), pair, strict=True):
            Form.of(value, f"{call} returns as {name} a")
            for tensor in (tensors := tensors_of(value)):
                if not tensor.dim() or len(tensor) != len(samples):
                    raise InvalidConfiguration(
                        "model",
                        f"{call} returns {name} of shape {tuple(tensor.shape)}, not of "
                        f"{len(samples)} samples",
                    )
            if not tensors and name == "inputs":
                raise InvalidConfiguration(
                    "model", f"{call} returns {_kind(value)} as inputs, which contain no tensor"
                )
            copies.append(pytree.tree_map_only(Tensor, lambda each: each.detach().clone(), value))
    return copies[0], copies[1]


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
        if not _is_same_tree(one, other):
            raise InvalidConfiguration(
                "model",
                f"batch(0, {range(size)}) returns other {name} when it is called again: each rank "
                "calls it for itself, so it must depend on the step and the samples alone, not on "
                "a loader's iterator or a generator that goes on",
            )


def _is_same_tree(one: Tree, other: Tree) -> bool:
    pairs = zip(tensors_of(one), tensors_of(other), strict=False)
    return Form.of(one, "") == Form.of(other, "") and all(is_same(*pair) for pair in pairs)


def tried(model: Model, step: int, samples: range) -> tuple[Tree, Tree]:
    """Like `samples_of`, before training: errors of `batch` are reported as such."""
    try:
        return samples_of(model, step, samples)
    except InvalidConfiguration:
        raise
    except Exception as error:  # whatever a user's function raises
        raise InvalidConfiguration(
            "model", f"batch({step}, {samples}) fails with {type(error).__name__}: {error}"
        ) from error


def is_same(one: Tensor, other: Tensor) -> bool:
    """Test two tensors for bitwise equality, NaNs included."""
    return (one.shape, one.dtype) == (other.shape, other.dtype) and torch.equal(
        bits(one), bits(other)
    )


def bits(tensor: Tensor) -> Tensor:
    """The bytes of a tensor, in order."""
    return tensor.flatten().contiguous().view(torch.uint8)
