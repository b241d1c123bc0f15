"""What every process of a run does, whoever started it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from bfpp.executor.processes.guard import Guard
from bfpp.executor.processes.place import Place, part

Arguments = TypeVar("Arguments")
Outcome = TypeVar("Outcome")

Entry = Callable[[Place, Arguments], Outcome]


def take_part(
    entry: Entry[Arguments, Outcome], arguments: Arguments, place: Place, guard: Guard
) -> Outcome:
    """Runs the entry under guard; an exception ends the process with the run's diagnosis."""
    guard.start()
    try:
        outcome = entry(place, arguments)
        part(place)
    except BaseException as error:
        place.watch.failed(error)
    guard.finish()
    return outcome
