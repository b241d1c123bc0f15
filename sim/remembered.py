"""What a cost model says of stages on ranks, worked out once for all schedules on them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from bfpp.schedules import Layout

Model = TypeVar("Model")
Answer = TypeVar("Answer")


def once_for_stages(answer: Callable[[Model, Layout], Answer]) -> Callable[[Model, Layout], Answer]:
    """Remember, in the model, what it answers of a layout: how many micro-batches changes nothing.

    The model must be frozen, and nobody may change the answer.
    """
    name = f"{answer.__module__}.{answer.__qualname__}"

    @wraps(answer)
    def remembered(model: Model, layout: Layout) -> Answer:
        answers = vars(model).setdefault("_answers", {})
        question = name, layout.stages_on_ranks
        if question not in answers:
            answers[question] = answer(model, layout)
        found: Answer = answers[question]
        return found

    return remembered
