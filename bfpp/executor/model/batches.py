"""Requirements on a model's `batch`, which every rank calls for its own micro-batches.

The first stage of a pipeline takes the inputs, the last one the targets, each
in its own process. Both belong together only if `batch` is a function of the
step and the samples, and of nothing that goes on from call to call. A loader whose state can be
saved is made one: `StatefulBatches` takes it back to where a step began.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bfpp.executor.devices.messages import Form, Tree, tensors_of
from bfpp.executor.model.model import GENERATOR, Model, drawing
from bfpp.schedules import InvalidConfiguration

REMEMBERED = 4
"""Steps whose batches and states are kept: more than are under way or loaded ahead."""


class StatefulLoader(Protocol):
    """The protocol of torchdata's StatefulDataLoader."""

    def __iter__(self) -> Iterator[Any]:
        """The batches from the current state on."""

    def state_dict(self) -> dict[str, Any]:
        """The state after the last batch that was taken."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a state, from which the next iterator goes on."""


class StatefulBatches:
    """A loader with state as a `batch`: its items are whole steps' inputs and targets.

    Each process has a loader of its own, which gives the same to all. After the last item of an
    epoch comes the first of the next. States are kept as what is saved of them.
    """

    def __init__(self, loader: StatefulLoader) -> None:
        self.loader = loader
        self.next = 0
        self.iterator: Iterator[Any] | None = None
        self.states = {0: _packed(loader)}
        self.batches: dict[int, Any] = {}

    def __call__(self, step: int, samples: range) -> tuple[Tree, Tree]:
        """The inputs and targets of some samples of a step."""
        inputs, targets = pytree.tree_map_only(
            Tensor, lambda each: each[samples.start : samples.stop], self.of_step(step)
        )
        return inputs, targets

    def of_step(self, step: int) -> Any:
        """The inputs and targets of a step; earlier ones are drawn again from their state."""
        if step not in self.batches and step < self.next:
            self.restore(*max(each for each in self.states.items() if each[0] <= step))
        while step not in self.batches:
            self.batches[self.next] = self._drawn()
            self.next += 1
            self.states[self.next] = _packed(self.loader)
            self._forget(self.next - REMEMBERED)
        return self.batches[step]

    def restore(self, step: int, state: str) -> None:
        """Go on with a step, from a state of then."""
        packed = io.BytesIO(base64.b64decode(state))
        self.loader.load_state_dict(torch.load(packed, weights_only=True))
        self.next, self.iterator = step, None
        self.states[step] = state
        self._forget(step)

    def _drawn(self) -> Any:
        with drawing(self.next):
            for _ in range(2):
                self.iterator = self.iterator or iter(self.loader)
                for batch in self.iterator:
                    return batch
                self.iterator = None
        raise InvalidConfiguration("model", "its loader has no batch")

    def _forget(self, first: int) -> None:
        """Keep batches and states from a step on, and the state of the beginning."""
        self.batches = {each: kept for each, kept in self.batches.items() if each >= first}
        self.states = {each: kept for each, kept in self.states.items() if not 0 < each < first}


def _packed(loader: StatefulLoader) -> str:
    """The state of a loader as text: of numbers, texts, tensors and containers of these."""
    state = io.BytesIO()
    torch.save(loader.state_dict(), state)
    return base64.b64encode(state.getvalue()).decode()


def kept_bytes(model: Model) -> int:
    """Bytes of a step's batch that a loader with state keeps: all samples, of all replicas."""
    if not isinstance(model.batch, StatefulBatches):
        return 0
    leaves = pytree.tree_leaves(model.batch.of_step(0))
    return sum(each.untyped_storage().nbytes() for each in leaves if isinstance(each, Tensor))


def require_whole(model: Model, size: int) -> None:
    """Raise `InvalidConfiguration` unless a loader's batches have as many samples as a step."""
    if isinstance(model.batch, StatefulBatches):
        for tensor in pytree.tree_leaves(model.batch.of_step(0)):
            if isinstance(tensor, Tensor) and len(tensor) != size:
                raise InvalidConfiguration(
                    "model",
                    f"its loader gives batches of {len(tensor)} samples, and a step has {size}",
                )


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
