"""A model in one word: its sizes, as `layers=24,hidden=1024,heads=16,...,experts.routed=8`.

Keys are those of a model file, and `name`; those of a table in it come with the table's name and
a dot. So a model that no file holds can be written wherever one is named.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from bfpp.schedules import InvalidConfiguration
from bfpp.sim.presets.files import Table
from bfpp.sim.presets.numbers import real, whole

FIELD = "model"

NAME, UNNAMED = "name", "own"

_FLAGS = {"true": True, "false": False}

_SEPARATORS = str.maketrans(dict.fromkeys("=, ", "-"))


def is_text(name: str) -> bool:
    """True for sizes, valid or not, rather than a name or a path."""
    return "=" in name


def read_text(text: str) -> tuple[str, Table]:
    """The name of the model, and its sizes by the keys of a model file."""
    table: Table = {}
    for pair in text.split(","):
        key, mark, value = (part.strip() for part in pair.partition("="))
        if not mark:
            raise InvalidConfiguration(FIELD, f"{pair.strip()!r} is not a size, as layers=24 is")
        part, dot, inner = key.partition(".")
        into = table.setdefault(part, {}) if dot else table
        if not isinstance(into, dict) or (inner or key) in into:
            raise InvalidConfiguration(FIELD, f"{key} is given twice")
        into[inner or key] = _value(value)
    return str(table.pop(NAME, UNNAMED)), table


def _value(text: str) -> Any:
    if text in _FLAGS:
        return _FLAGS[text]
    if (count := whole(text)) is not None:
        return count
    number = real(text)
    return text if math.isnan(number) else number


def text_of(model: Any) -> str:
    """The sizes other than the defaults of a model: `read_text` reads them.

    >>> import bfpp
    >>> text_of(bfpp.Transformer("small", 24, 1024, 16, sequence=1024, vocabulary=50257))
    'name=small,layers=24,hidden=1024,heads=16,sequence=1024,vocabulary=50257'
    """
    return ",".join(_pairs(model))


def _pairs(part: Any, prefix: str = "") -> list[str]:
    pairs = []
    for each in fields(part):
        value = getattr(part, each.name)
        if each.default is not MISSING and value == each.default:
            continue
        if is_dataclass(value):
            pairs += _pairs(value, f"{each.name}.")
            continue
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        pairs.append(f"{prefix}{each.name}={shown.translate(_SEPARATORS)}")
    return pairs
