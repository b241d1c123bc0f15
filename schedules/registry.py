"""Every schedule by name: those of this package, and those that others install.

A package adds its own through the entry point group `bfpp.schedules`, each
entry an object of type `Schedule`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from bfpp.schedules import breadth_first, chimera, depth_first, gpipe, one_forward_one_backward
from bfpp.schedules.invalid import InvalidConfiguration, InvalidInput, did_you_mean
from bfpp.schedules.steps import Schedule

OF_THE_PAPER: dict[str, Schedule] = {
    schedule.name: schedule
    for schedule in (
        gpipe.SCHEDULE,
        one_forward_one_backward.SCHEDULE,
        depth_first.SCHEDULE,
        breadth_first.SCHEDULE,
    )
}
"""Those that are compared and searched unless others are asked for."""

BUILT_IN = (
    *OF_THE_PAPER.values(),
    chimera.SCHEDULE,
)

ALIASES = {"interleaved": "depth-first", "bfs": "breadth-first"}
"""What people call a schedule elsewhere."""

ENTRY_POINTS = "bfpp.schedules"


@cache
def registered_schedules() -> dict[str, Schedule]:
    """All known schedules; the built-in ones first, in the paper's order."""
    known: dict[str, Schedule] = {schedule.name: schedule for schedule in BUILT_IN}
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            schedule = entry.load()
        except Exception as error:  # whatever another package raises as it is imported
            reason = f"{type(error).__name__}: {error}"
            raise InvalidInput(
                f"entry point {entry.name!r} of {ENTRY_POINTS} cannot be loaded: {reason}"
            ) from error
        if not isinstance(schedule, Schedule):
            raise InvalidInput(f"entry point {entry.name!r} of {ENTRY_POINTS} is not a Schedule")
        known.setdefault(schedule.name, schedule)
    return known


def find_schedule(name: str, **parameters: Any) -> Schedule:
    """The schedule of that name, with parameters of its own; or `InvalidConfiguration`."""
    known = registered_schedules()
    name = ALIASES.get(name, name)
    if name not in known:
        raise InvalidConfiguration(
            "schedule",
            f"{name!r} is not a schedule; choose from {', '.join(known)}"
            + did_you_mean(name, known),
        )
    schedule = known[name]
    for parameter in parameters:
        if parameter not in schedule.parameters:
            raise InvalidConfiguration(parameter, f"{name} has no such parameter")
    return replace(schedule, **parameters)
