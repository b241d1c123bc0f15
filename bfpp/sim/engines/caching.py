"""Cache of cost-model results, per model or per stages for all schedules on them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Protocol, Self, TypeVar, TypeVarTuple, Unpack

from bfpp.schedules import Layout

Model = TypeVar("Model")
Sized = TypeVar("Sized", bound="OneSample")
Further = TypeVarTuple("Further")
Answer = TypeVar("Answer")


class OneSample(Protocol):
    """A model of micro-batches of some size."""

    @property
    def one_sample(self) -> Self:
        """The same with micro-batches of one sample."""


def latest(
    answer: Callable[[Unpack[Further]], Answer], count: int = 1
) -> Callable[[Unpack[Further]], Answer]:
    """Remember the last few answers alone, for callers that ask the same several times in a row.

    Arguments are compared and not hashed, which is fastest where they are the same objects.
    """
    last: tuple[tuple[tuple[*Further], Answer], ...] = ()

    def remembered(*asked: *Further) -> Answer:
        nonlocal last
        for question, known in last:
            if question == asked:
                return known
        found = answer(*asked)
        last = ((asked, found), *last[: count - 1])  # at once: other threads may ask meanwhile
        return found

    return remembered


def once(
    answer: Callable[[Model, Unpack[Further]], Answer],
) -> Callable[[Model, Unpack[Further]], Answer]:
    """Remember, in the model, its answers by the `further` arguments.

    The model must be frozen, and nobody may change the answer.
    """
    name = _name(answer)

    @wraps(answer)
    def remembered(model: Model, *further: *Further) -> Answer:
        try:
            known: Answer = vars(model)[name][further]
            return known
        except KeyError:
            pass  # what the answer may raise has nothing to do with this
        return _keep(model, name, further, answer(model, *further))

    return remembered


def once_for_stages(
    answer: Callable[[Model, Layout, Unpack[Further]], Answer],
) -> Callable[[Model, Layout, Unpack[Further]], Answer]:
    """Remember answers by layout, whose number of micro-batches changes nothing."""
    name = _name(answer)

    @wraps(answer)
    def remembered(model: Model, layout: Layout, *further: *Further) -> Answer:
        question = layout.stages_on_ranks, *further
        try:
            known: Answer = vars(model)[name][question]
            return known
        except KeyError:
            pass
        return _keep(model, name, question, answer(model, layout, *further))

    return remembered


def _name(answer: Callable[..., object]) -> str:
    """Under which a model keeps its answers: none of its fields has a name with dots."""
    return f"{answer.__module__}.{answer.__qualname__}"


def _keep(model: object, name: str, question: object, answer: Answer) -> Answer:
    vars(model).setdefault(name, {})[question] = answer
    return answer


def of_any_size(
    answer: Callable[[Sized, Layout, Unpack[Further]], Answer],
) -> Callable[[Sized, Layout, Unpack[Further]], Answer]:
    """Ask the model of one sample: micro-batches of any size have the same answer."""

    @wraps(answer)
    def asked(model: Sized, layout: Layout, *further: *Further) -> Answer:
        return answer(model.one_sample, layout, *further)

    return asked
