"""Registry of schedules by name: built-in ones, and those that other packages install.

A package adds its own through the entry point group `bfpp.schedules`, each
entry an object of type `Schedule`.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import Any

from bfpp.schedules.errors import InvalidConfiguration, InvalidInput, did_you_mean
from bfpp.schedules.families import (
    breadth_first,
    chimera,
    controllable_memory,
    depth_first,
    dual_pipe,
    gpipe,
    one_forward_one_backward,
    sequence_slices,
    zero_bubble,
    zero_bubble_breadth_first,
    zero_bubble_vee,
)
from bfpp.schedules.formats.python_file import MARK, load_schedule
from bfpp.schedules.operations import operations
from bfpp.schedules.operations.operations import OPERATIONS
from bfpp.schedules.orders.steps import Schedule

OF_THE_PAPER = (
    gpipe.SCHEDULE,
    one_forward_one_backward.SCHEDULE,
    depth_first.SCHEDULE,
    breadth_first.SCHEDULE,
)

BUILT_IN = (
    *OF_THE_PAPER,
    chimera.SCHEDULE,
    zero_bubble.ZB_H1,
    zero_bubble.ZB_H2,
    zero_bubble.ZB_1P,
    zero_bubble_breadth_first.BF_SPLIT,
    zero_bubble_breadth_first.ZB_BF,
    zero_bubble_vee.SCHEDULE,
    controllable_memory.V_HALF,
    controllable_memory.V_MIN,
    dual_pipe.DUAL_PIPE,
    dual_pipe.DUAL_PIPE_V,
    sequence_slices.SCHEDULE,
)

_BY_NAME: dict[str, Schedule] = {schedule.name: schedule for schedule in BUILT_IN}

DEFAULT_SCHEDULES = tuple(schedule.name for schedule in OF_THE_PAPER)
"""Schedules to compare and search by default: the paper's four."""

ALIASES = {
    "interleaved": "depth-first",
    "bfs": "breadth-first",
    "dualpipev": "dualpipe-v",
    "interleaved-zero-bubble": "zb1p",
    "zbh1": "zb-h1",
    "zbh2": "zb-h2",
    "zbv": "zb-v",
    "zbv-half": "v-half",
    "zbv-min": "v-min",
}
"""Names of schedules in other software."""

_PREFIX = "schedule"
"""Begins the names of PyTorch's classes."""

_IN_FRAMEWORKS = {
    "interleaved1f1b": "depth-first",
    "1f1b-interleaved": "depth-first",
    "looped-bfs": "breadth-first",
    "zbv-zero-bubble": "zb-v",
    "forward-backward-pipelining-without-interleaving": "1f1b",
    "forward-backward-pipelining-with-interleaving": "depth-first",
}
"""PyTorch's and Megatron-LM's names, in small letters; those that are like ours are not here."""

ORDERS = ".csv"
"""File ending of orders."""

ENTRY_POINTS = "bfpp.schedules"


@cache
def registered_schedules() -> dict[str, Schedule]:
    """All known schedules; the built-in ones first, in the paper's order.

    >>> import bfpp
    >>> list(bfpp.registered_schedules())[:4]
    ['gpipe', '1f1b', 'depth-first', 'breadth-first']
    """
    from importlib.metadata import entry_points  # slow to load

    known = dict(_BY_NAME)
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
    """The schedule of that name, with parameters of its own; or `InvalidConfiguration`.

    The name may be that of a file of orders (`orders.csv`), or of a schedule in a Python file
    (`mine.py:SCHEDULE`).

    >>> import bfpp
    >>> bfpp.find_schedule("depth-first", sequence=8)
    DepthFirst(sequence=8)
    """
    if name.endswith(ORDERS):
        from bfpp.schedules.formats.orders_file import read_schedule  # start-up time

        schedule: Schedule = read_schedule(name)
    elif MARK in name:
        schedule = load_schedule(name)
    else:
        schedule = _registered(canonical_name(name))
    for parameter in parameters:
        if parameter not in schedule.parameters:
            raise InvalidConfiguration(parameter, f"{schedule.name} has no such parameter")
    return replace(schedule, **parameters)


def canonical_name(name: str) -> str:
    """Our name of a schedule that may be called as in PyTorch or Megatron-LM, in any case.

    A name that is not known stays as it is.

    >>> canonical_name("ScheduleInterleaved1F1B"), canonical_name("dualpipe_v")
    ('depth-first', 'dualpipe-v')
    """
    if name in _BY_NAME:  # without loading entry points
        return name
    known = {**ALIASES, **_IN_FRAMEWORKS, **{each: each for each in registered_schedules()}}
    if name in known:
        return known[name]
    plain = {_letters(each): meant for each, meant in known.items()}
    letters = _letters(name)
    return plain.get(letters) or plain.get(letters.removeprefix(_PREFIX)) or name


def _letters(name: str) -> str:
    """Letters and digits of a name, in small letters."""
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def referred_parameters(schedule: Schedule) -> dict[str, Any]:
    """The parameters of the schedule that its reference names, or else the class's defaults."""
    if schedule.source:
        return load_schedule(schedule.source).parameters
    known = _known(schedule.name)
    defaults = {each.name: each.default for each in fields(schedule)}
    return defaults | (known.parameters if known else {})


def registered_name(schedule: Schedule) -> str | None:
    """The name of a registered schedule, whatever its parameters; None for any other one.

    A user's schedule may have the name of a registered one, and is another schedule.
    """
    return schedule.name if type(schedule) is type(_known(schedule.name)) else None


def is_built_in(schedule: Schedule) -> bool:
    """True if the schedule is built in, and no operation is declared by a user.

    Of orders that are given, whoever made them, nothing is known.
    """
    return type(schedule) in map(type, BUILT_IN) and len(OPERATIONS) == len(operations.BUILT_IN)


def _known(name: str) -> Schedule | None:
    return _BY_NAME.get(name) or registered_schedules().get(name)


def _registered(name: str) -> Schedule:
    if name in _BY_NAME:
        return _BY_NAME[name]
    known = registered_schedules()
    if name.endswith(".py"):
        raise InvalidConfiguration("schedule", f"name a schedule in the file, as {name}:NAME")
    if name not in known:
        raise InvalidConfiguration(
            "schedule",
            f"{name!r} is not a schedule; choose from {', '.join(known)}, or name a file "
            f"(*{ORDERS}, *{MARK}NAME)" + did_you_mean(name, [*known, *ALIASES]),
        )
    return known[name]
