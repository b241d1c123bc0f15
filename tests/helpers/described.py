"""Checks of JSON against its command's schema: nothing else, nothing without a description."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from bfpp.options.schemas import schema_of
from bfpp.schedules.formats.python_file import MARK

LONGEST = 24
"""Elements of a list that are looked at: the others are alike."""


def require_described(command: str, record: dict[str, Any]) -> None:
    """Raise unless the object is what the schema of the command describes."""
    has_own_schedule = MARK in json.dumps(record)
    error = best_match(_validator(command, has_own_schedule).iter_errors(_shortened(record)))
    assert error is None, f"bfpp {command} --json: {error.json_path}: {error.message}"


@cache
def _validator(command: str, has_own_schedule: bool) -> Draft202012Validator:
    """Parameters that no schedule of ours has are those of a user's, or a mistake."""
    schema = schema_of(command)
    if not has_own_schedule and "parameter" in schema["$defs"]:
        schema["$defs"]["parameter"] = False
    return Draft202012Validator(schema)


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _shortened(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shortened(each) for each in value[:LONGEST]]
    return value
