"""Names of compute steps, as torch.distributed.pipelining writes them: `2F3`."""

from __future__ import annotations

from bfpp.schedules.operations.operations import OPERATIONS, Operation
from bfpp.schedules.orders.steps import Step

LETTERS = {
    Operation.FORWARD: "F",
    Operation.BACKWARD: "B",
    Operation.BACKWARD_INPUT: "I",
    Operation.BACKWARD_WEIGHT: "W",
}


def action(step: Step) -> str:
    """The action of a compute step: `2F3`; `2?3` of other operations, in orders to refuse."""
    operation, stage, microbatch, _ = step
    is_known = 0 <= operation < len(OPERATIONS)
    letter = LETTERS.get(OPERATIONS[operation], "?") if is_known else "?"
    return f"{stage}{letter}{microbatch}"
