"""The part that every process of a run takes, whoever started it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from bfpp.executor.processes.launcher.process_context import ProcessContext, part
from bfpp.executor.processes.watch.watchdog import Watchdog

Arguments = TypeVar("Arguments")
Outcome = TypeVar("Outcome")

Entry = Callable[[ProcessContext, Arguments], Outcome]


def take_part(
    entry: Entry[Arguments, Outcome],
    arguments: Arguments,
    context: ProcessContext,
    watchdog: Watchdog,
) -> Outcome:
    """Run the entry under a watchdog; an exception ends the process with the run's diagnosis."""
    watchdog.start()
    try:
        outcome = entry(context, arguments)
        part(context)
    except BaseException as error:
        context.watch.failed(error)
    watchdog.finish()
    return outcome
