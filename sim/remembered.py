"""What a cost model says of stages on ranks, worked out once for all schedules on them."""

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
        ...


def once_for_stages(
    answer: Callable[[Model, Layout, Unpack[Further]], Answer],
) -> Callable[[Model, Layout, Unpack[Further]], Answer]:
    """Remember, in the model, what it answers of a layout: how many micro-batches changes nothing.

    The model must be frozen, and nobody may change the answer. What is asked `further` decides too.
    """
    name = f"{answer.__module__}.{answer.__qualname__}"

    @wraps(answer)
    def remembered(model: Model, layout: Layout, *further: *Further) -> Answer:
        answers = vars(model).setdefault("_answers", {})
        question = name, layout.stages_on_ranks, further
        if question not in answers:
            answers[question] = answer(model, layout, *further)
        found: Answer = answers[question]
        return found

    return remembered


def of_any_size(
    answer: Callable[[Sized, Layout, Unpack[Further]], Answer],
) -> Callable[[Sized, Layout, Unpack[Further]], Answer]:
    """Ask the model of one sample: micro-batches of any size have the same answer."""

    @wraps(answer)
    def asked(model: Sized, layout: Layout, *further: *Further) -> Answer:
        return answer(model.one_sample, layout, *further)

    return asked
