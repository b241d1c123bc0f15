"""Labels of tasks: a micro-batch's number, or a unit's, as in the paper's figures."""

from __future__ import annotations

from bfpp.schedules import Task
from bfpp.schedules.columns import NONE
from bfpp.schedules.operations.row import Scope


def label(task: Task) -> str:
    """The few characters drawn on a task."""
    number = task.microbatch if labelled_by(task) is Scope.CELL else task.unit
    return "" if number == NONE else str(number)


def task_name(task: Task) -> str:
    """The operation and the label of a task, as other tools show it."""
    return f"{task.operation.title} {label(task)}".rstrip()


def labelled_by(task: Task) -> Scope:
    """The scope of a label: a micro-batch's number (`CELL`), or a unit's (`UNIT`)."""
    return Scope.UNIT if task.microbatch == NONE else Scope.CELL
