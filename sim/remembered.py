"""What a cost model says of stages on ranks, worked out once for all schedules on them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar, TypeVarTuple, Unpack

from bfpp.schedules import Layout

Model = TypeVar("Model")
Further = TypeVarTuple("Further")
Answer = TypeVar("Answer")


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
