"""Check and parse the values of an experiment and a schedule's own parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from numbers import Integral, Real
from reprlib import repr as brief
from typing import Any

from bfpp.schedules import InvalidConfiguration, Schedule
from bfpp.schedules.errors import did_you_mean
from bfpp.schedules.settings.offloading import NAMED, parse_offload
from bfpp.sim.experiment.values import ALIASES, DEFAULTS, OPTIONS, Values
from bfpp.sim.experiment.values.option import STAGES, Option
from bfpp.sim.presets.numbers import is_count, is_usable, real, whole

_TYPES = {each.name: frozenset(str(each.type).split(" | ")) for each in fields(Values)}
"""The types of each value, as annotated; choices and offloading go by names too."""


def require_values(values: Values) -> None:
    """Raise `InvalidConfiguration` for a value of a wrong type, or a number that is out of range.

    Names of choices are looked up; other names are, where they are used.
    """
    for name, default in DEFAULTS.items():
        value = getattr(values, name)
        if value is not default:
            _require(name, OPTIONS[name], value)


def _require(name: str, option: Option, value: object) -> None:
    if isinstance(value, str) and option.choices:
        _require_choice(name, value)
    named = {"str"} if option.choices or option.kind == "offload" else set()
    is_right = _types_of(value) & (_TYPES[name] | named)
    if not is_right or (isinstance(value, Real) and not _IN_RANGE[option.kind](value)):
        raise InvalidConfiguration(name, _wrong(option.kind, value))


def _require_choice(name: str, value: object) -> None:
    if value not in (known := OPTIONS[name].choices):
        reason = f"{value!r} is not one of {', '.join(known)}{did_you_mean(str(value), known)}"
        raise InvalidConfiguration(name, reason)


def _types_of(value: object) -> set[str]:
    """Names of a value's types, as annotations have them; numpy's numbers are numbers, too."""
    if value is None:
        return {"None"}
    if isinstance(value, bool):
        return {"bool"}
    names = {each.__name__ for each in type(value).__mro__}
    names |= {"int", "float"} if isinstance(value, Integral) else set()
    return names | {"float"} if isinstance(value, Real) else names


_IN_RANGE: dict[str, Callable[[Any], bool]] = {
    "count": lambda value: is_count(int(value)),
    "seconds": lambda value: is_usable(float(value)),
    "number": lambda value: is_usable(float(value)),
    "flag": lambda _: True,
    "offload": lambda value: int(value) >= 0,
}
"""Predicates by kind: if a number can be computed with."""


def _wrong(kind: str, value: object) -> str:
    return f"must be {_KINDS[kind][1]}, not {' '.join(brief(value).split())}"


def values_read(values: Mapping[str, object], parameters: Mapping[str, Option]) -> dict[str, Any]:
    """Values by name as an experiment has them, those of schedules' `parameters` among them."""
    known = {**parameters, **OPTIONS}
    for each in values:
        if each not in known:
            raise InvalidConfiguration(each, f"no such value{did_you_mean(each, known)}")
    return {each: read_value(each, known[each].kind, value) for each, value in values.items()}


def parameter_options(schedule: Schedule) -> dict[str, Option]:
    """Options of a schedule's own parameters: those of a type that can be given by name."""
    options = {}
    for each in fields(schedule):
        if each.name in schedule.parameters and (kind := _kind_of(each.type)):
            purpose = each.metadata.get("help", f"a parameter of {schedule.name}")
            options[each.name] = Option(STAGES, kind, purpose, _METAVARS.get(kind, "N"))
    return options


def _kind_of(type_: object) -> str | None:
    """The kind of a parameter, by its type as it is annotated."""
    names = (type_.__name__ if isinstance(type_, type) else str(type_)).split(" | ")
    return next((kind for name, kind in _KINDS_OF_TYPES.items() if name in names), None)


def require_parameters(schedule: Schedule, *others: str) -> None:
    """Raise `InvalidConfiguration` for a parameter of a name that means something else.

    `others`: further names, next to which parameters stand.
    """
    for name in schedule.parameters:
        if name in {*OPTIONS, *ALIASES, *others}:
            reason = f"{schedule.reference}: its parameter {name!r} has the name of another value"
            raise InvalidConfiguration("schedule", reason)


def read_value(name: str, kind: str, value: object) -> Any:
    """A value as its kind has it, from a file's or a table's."""
    reader, _ = _KINDS[kind]
    if (read := reader(value)) is None:
        raise InvalidConfiguration(name, _wrong(kind, value))
    if kind == "choice":
        _require_choice(name, read)
    return read


def _count(value: object) -> int | None:
    number = whole(value.strip()) if isinstance(value, str) else value
    return number if isinstance(number, int) and is_count(number) else None


def _integer(value: object) -> int | None:
    number = whole(value.strip()) if isinstance(value, str) else value
    return number if type(number) is int and (number == 0 or is_count(abs(number))) else None


def _real(value: object) -> float | None:
    number = real(value.strip()) if isinstance(value, str) else value
    if not isinstance(number, int | float) or isinstance(number, bool):
        return None
    return float(number) if is_usable(abs(number)) else None


def _number(value: object) -> float | None:
    number = real(value.strip()) if isinstance(value, str) else value
    return float(number) if isinstance(number, int | float) and is_usable(number) else None


def _flag(value: object) -> bool | None:
    if isinstance(value, bool):
        return value
    return {"true": True, "1": True, "false": False, "0": False}.get(str(value).strip().lower())


def _string(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _name(value: object) -> str | None:
    return value.strip() if isinstance(value, str) and value.strip() else None


def _offload(value: object) -> int | str | None:
    try:
        return parse_offload(value)
    except InvalidConfiguration:
        return None


_KINDS = {
    "count": (_count, "a whole number of at least 1"),
    "seconds": (_number, "a number of at least 0"),
    "number": (_number, "a number of at least 0"),
    "integer": (_integer, "a whole number"),
    "real": (_real, "a number"),
    "string": (_string, "a text"),
    "flag": (_flag, "true or false"),
    "name": (_name, "a name or a path"),
    "text": (_name, "a text"),
    "choice": (_name, "a name"),
    "offload": (_offload, f"{', '.join(NAMED)}, or a number of passes"),
}
"""Readers of values by kind, and words for what a value must be."""

_KINDS_OF_TYPES = {"bool": "flag", "float": "real", "int": "integer", "str": "string"}
"""The kinds of schedules' parameters, by their types."""

_METAVARS = {"real": "X", "string": "TEXT"}
