"""Schemas of the output with `--json`: JSON Schema, draft 2020-12, one file a command.

Each key has a description, a title where it has a unit, and a place in an object that has no other
keys. `shared.json` has what several commands print. Options are described by their own table: the
values of an experiment are the definition `options`.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from bfpp.schedules import find_schedule, registered_schedules
from bfpp.schedules.reading import read_file
from bfpp.sim.experiment.reading import parameter_options
from bfpp.sim.experiment.values import DEFAULTS, OPTIONS
from bfpp.sim.experiment.values.option import Option

FOLDER = Path(__file__).parent
SHARED = "shared.json"

PREDICTION = "prediction"
"""An option of experiments; in rows of measurements, a predicted quantity."""

_REFERENCE = re.compile(r'"#/\$defs/(\w+)[/"]')

_TYPES: dict[str, dict[str, Any]] = {
    "count": {"title": "count", "type": ["integer"]},
    "seconds": {"title": "seconds", "type": ["number"]},
    "number": {"type": ["number"]},
    "flag": {"type": ["boolean"]},
    "offload": {"type": ["integer", "string"]},
}
"""The JSON of a value by the kind of its option; those of any other kind are texts."""


def schema_of(command: str) -> dict[str, Any]:
    """The schema of a command's JSON, complete: nothing in it refers to another file."""
    schema = _read(f"{command}.json")
    known = {**_shared(), **schema.pop("$defs", {})}
    used: dict[str, Any] = {}
    names = _names(schema)
    while names:
        name = names.pop()
        used[name] = known[name]
        names |= _names(known[name]) - used.keys()
    return {**schema, "$defs": {name: used[name] for name in known if name in used}}


def commands() -> list[str]:
    """The commands that have a schema."""
    return sorted(path.stem for path in FOLDER.glob("*.json") if path.name != SHARED)


def _read(name: str) -> dict[str, Any]:
    """The content of a file; references to the shared definitions become those to its own."""
    text = read_file(FOLDER / name).decode()
    content: dict[str, Any] = json.loads(text.replace(f'"{SHARED}#/', '"#/'))
    return content


@cache
def _shared() -> dict[str, Any]:
    """The definitions of the shared file, and those that other tables describe."""
    definitions: dict[str, Any] = _read(SHARED)["$defs"]
    options = {name: _value(option, DEFAULTS[name]) for name, option in OPTIONS.items()}
    columns = {name: value for name, value in options.items() if name != PREDICTION}
    parameters = {  # of any type: a user's schedule may have another one of that name
        name: {**definitions["parameter"], "description": option.help}
        for schedule in map(find_schedule, registered_schedules())
        for name, option in parameter_options(schedule).items()
    }
    return {
        **definitions,
        "options": _object(options, "Values by the names of the options."),
        "columns": _object(columns, "Values by the names of the columns of a table."),
        "parameters": _object(parameters, "Parameters of schedules."),
    }


def _object(properties: dict[str, Any], description: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "description": description}


def _value(option: Option, default: object) -> dict[str, Any]:
    """The schema of an option's value; null where it has no default."""
    schema = _TYPES.get(option.kind, {"type": ["string"]})
    null = ["null"] if default is None else []
    meaning = f"false: {option.help}" if default is True else option.help
    return {**schema, "type": [*schema["type"], *null], "description": meaning}


def _names(schema: dict[str, Any]) -> set[str]:
    """The definitions that a schema refers to."""
    return set(_REFERENCE.findall(json.dumps(schema)))
