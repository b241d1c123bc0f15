"""`--fix NAME=VALUE`: values of an experiment that a search keeps fixed.

What is searched takes several values, separated by commas or by another `--fix` of the same name
(a list of modules or of layers has commas of its own). Anything else takes one value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from bfpp.errors import blaming
from bfpp.options import schedule_parameters
from bfpp.schedules import InvalidConfiguration, find_schedule
from bfpp.schedules.communication import CHOICES, FULLY_SHARDED
from bfpp.schedules.invalid import chosen, did_you_mean
from bfpp.sim.experiment_reading import read_value
from bfpp.sim.experiment_values import ABSTRACT, ALIASES, MEASURED, OPTIONS, Option, of_group
from bfpp.sim.search import DIMENSIONS

ALL = "all"
"""For a run of micro-batches of any length."""

SCHEDULE = "schedule"

RANGES = (
    "cp", "ep", "dp_replicate", "precision", "recompute", "tp_overlap", "cut", "offload",
    *FULLY_SHARDED,
)  # fmt: skip
"""What is searched on request only."""

WITH_COMMAS = ("recompute", "cut", "offload_modules")
"""Values that have commas of their own."""

OF_MODEL = ("layers", "prediction")
"""Values that change the model."""

WITH_OPTIONS = ("model", "seq_length", "cluster", "implementation", "constants")
"""Values that have an option of their own."""

PER_CONFIGURATION = ("balance", *of_group(ABSTRACT), *of_group(MEASURED))
"""Values that cannot be the same for all configurations."""


class FixedValues(NamedTuple):
    """Fixed values: of ranges, of dimensions, of the model, and all others."""

    ranges: dict[str, tuple[Any, ...]]
    only: dict[str, tuple[Any, ...]]
    of_model: dict[str, Any]
    others: dict[str, Any]


def parse_fixed(texts: Iterable[str], schedules: Iterable[str] = ()) -> FixedValues:
    """The texts NAME=VALUE, parsed; raises `InvalidConfiguration` for what cannot be fixed.

    Parameters are those of registered schedules and of the `schedules` that are searched, unless
    the texts name others.
    """
    given: dict[str, list[str]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not (name and equals and value):
            raise InvalidConfiguration("fix", f"{text!r} is not NAME=VALUE")
        name = ALIASES.get(name, name)
        given.setdefault(name, []).extend([value] if name in WITH_COMMAS else value.split(","))
    fixed = FixedValues({}, {}, {}, {})
    if not given:
        return fixed  # to look through all schedules that are installed takes long
    parameters = schedule_parameters(*map(find_schedule, given.get(SCHEDULE, schedules)))
    for name, values in given.items():
        _add(fixed, name, values, parameters)
    return fixed


def _add(
    fixed: FixedValues, name: str, texts: list[str], parameters: Mapping[str, tuple[Option, Any]]
) -> None:
    if name in WITH_OPTIONS or name in PER_CONFIGURATION:
        own = f"--{name.replace('_', '-')} says it" if name in WITH_OPTIONS else "is not searched"
        raise InvalidConfiguration("fix", f"{name}: {own}")
    if name == SCHEDULE:
        fixed.ranges["schedules"] = tuple(texts)
        return
    if name not in OPTIONS and name not in parameters:
        known = (SCHEDULE, *OPTIONS, *parameters)
        raise InvalidConfiguration("fix", f"there is no {name!r}{did_you_mean(name, known)}")
    option = OPTIONS[name] if name in OPTIONS else parameters[name][0]
    is_range = name in RANGES or name in DIMENSIONS or name in parameters
    if len(texts) > 1 and not is_range:
        raise InvalidConfiguration("fix", f"{name} takes one value, not {len(texts)}")
    with blaming("--fix"):
        values = tuple(_value(name, option.kind, text) for text in texts)
    if name in RANGES:
        fixed.ranges[name] = values
    elif name in DIMENSIONS or name in parameters:
        fixed.only[name] = values
    else:
        (fixed.of_model if name in OF_MODEL else fixed.others)[name] = values[0]


def _value(name: str, kind: str, text: str) -> Any:
    if name == "run_length" and text == ALL:
        return None
    value = read_value(name, kind, text)
    return chosen(CHOICES[name], name, value) if name in CHOICES else value
