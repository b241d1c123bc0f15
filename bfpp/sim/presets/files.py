"""Settings from TOML files: presets by name, others by path, checked before use.

Every fault is an `InvalidConfiguration` of one line that names the file, the
key and the reason; its field is `model` or `cluster`.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.errors import did_you_mean
from bfpp.schedules.reading import read_file
from bfpp.sim.presets.numbers import LARGEST, LARGEST_COUNT, LEAST, is_count, is_usable

PRESETS = Path(__file__).parent

Table = dict[str, Any]

MOST_PARTS = 1000
"""Parts of a dotted key, at most."""

_BETWEEN_PARTS = re.compile(rb"(?<![0-9])\.|\.(?![0-9])|\.[0-9]+(?=\.)")
"""Dots that are not those of a number."""


def preset_names(field: str) -> list[str]:
    """The names of the presets for `model` or `cluster`, sorted."""
    return sorted(path.stem for path in (PRESETS / f"{field}s").glob("*.toml"))


def read_settings(field: str, name_or_path: str) -> tuple[str, Table]:
    """A preset by name, or a file by its path (one that ends in .toml): name and table."""
    names = preset_names(field)
    if name_or_path in names:
        path = PRESETS / f"{field}s" / f"{name_or_path}.toml"
    elif name_or_path.endswith(".toml"):
        path = Path(name_or_path)
    else:
        known = ", ".join(names)
        raise InvalidConfiguration(
            field,
            f"{name_or_path!r} is neither a preset ({known}) nor a path to a file"
            + did_you_mean(name_or_path, names),
        )
    name = path.stem.encode(errors="replace").decode()  # it may be no text at all
    return name, read_toml(field, path)


def read_toml(field: str, path: Path | str) -> Table:
    """The table of a TOML file."""
    path = Path(path)
    try:
        text = read_file(path)
        _require_short_keys(text)
        table = tomllib.loads(text.decode())
        _require_64_bits(table)
        return table
    except OSError as error:
        reason = f"cannot read {str(path)!r}: {error.strerror}"
    except (ValueError, RecursionError) as error:
        reason = f"{str(path)!r} is not TOML: {error}"
    raise InvalidConfiguration(field, reason)


def _require_short_keys(text: bytes) -> None:
    """Refuse keys of very many parts, which take `tomllib` a time that is quadratic in them."""
    for number, line in enumerate(text.split(b"\n"), 1):
        if line.count(b".") > MOST_PARTS and len(_BETWEEN_PARTS.findall(line)) > MOST_PARTS:
            raise ValueError(f"line {number} has a key of more than {MOST_PARTS} parts")


def _require_64_bits(value: object) -> None:
    """Refuse whole numbers that TOML does not have; they have too many digits to be shown."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            _require_64_bits(each)
    elif isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError("a whole number is of more than 64 bits")


@cache
def fitted_settings(kind: str) -> Mapping[str, Table]:
    """The shipped results of `bfpp fit`, for `clusters` or `implementations`, by name."""
    settings: Mapping[str, Table] = _fitted().get(kind, {})
    return settings


@cache
def fitted_uncertainty() -> Table:
    """The shipped constants that were fitted together, and their logarithms' covariance."""
    return _fitted().get("uncertainty") or {"constants": [], "covariance": []}


def _fitted() -> Table:
    path = PRESETS / "fitted.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def leaves(table: Table) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Values of a table and of the tables inside it, by dotted name."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from (((key, *path), leaf) for path, leaf in leaves(value))
        else:
            yield (key,), value


def require_keys(
    field: str,
    where: str,
    table: object,
    kinds: Mapping[str, type],
    optional: tuple[str, ...] = (),
    zero: tuple[str, ...] = (),
) -> Table:
    """The table, if it has exactly these keys, with values of these kinds; numbers are positive.

    Those of the keys in `zero` may be 0, too.
    A kind is `int`, `float` (whole numbers become one), `bool`, `str`, `dict` or `list`.
    """
    if not isinstance(table, dict):
        raise InvalidConfiguration(field, f"{where}: must be a table")
    if unknown := sorted(table.keys() - kinds.keys()):
        known = ", ".join(kinds)
        raise InvalidConfiguration(
            field,
            f"{where}: unknown key {unknown[0]!r}, not one of {known}"
            + did_you_mean(unknown[0], kinds),
        )
    for key, kind in kinds.items():
        if key in table:
            if key not in zero or repr(table[key]) not in ("0", "0.0"):
                _require_value(field, f"{where}: {key}", table[key], kind)
        elif key not in optional:
            raise InvalidConfiguration(field, f"{where}: the key {key!r} is missing")
    return {key: float(value) if kinds[key] is float else value for key, value in table.items()}


def require_fields(field: str, where: str, table: object, kind: type) -> Table:
    """The table, if it has the fields of a dataclass but its name; defaults may be left out.

    Fields that are dataclasses themselves are tables.
    """
    kinds = {each.name: each for each in fields(kind) if each.name != "name"}
    types = {
        name: _TYPES.get(str(each.type).removesuffix(" | None"), dict)
        for name, each in kinds.items()
    }
    optional = tuple(name for name, each in kinds.items() if each.default is not MISSING)
    return require_keys(field, where, table, types, optional)


_TYPES: dict[str, type] = {each.__name__: each for each in (int, float, bool, str)}

_KINDS: dict[type, tuple[tuple[type, ...], str]] = {
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    bool: ((bool,), "true or false"),
    str: ((str,), "a word"),
    dict: ((dict,), "a table"),
    list: ((list,), "a list"),
}


def _require_value(field: str, where: str, value: object, kind: type) -> None:
    accepted, title = _KINDS[kind]
    if isinstance(value, bool) != (kind is bool) or not isinstance(value, accepted):
        raise InvalidConfiguration(field, f"{where} must be {title}, not {shown(value)}")
    for kinds, holds, reason in _RANGES:
        if kind in kinds and not holds(value):
            raise InvalidConfiguration(field, f"{where} must be {reason}, not {shown(value)}")


_RANGES: tuple[tuple[tuple[type, ...], Callable[[Any], bool], str], ...] = (
    ((int, float), lambda value: 0 < value <= sys.float_info.max, "positive and finite"),
    ((int,), is_count, f"at most {LARGEST_COUNT:,}"),
    ((float,), is_usable, f"from {LEAST:g} to {LARGEST:g}"),
)
"""For each kind of number, its condition, in words too."""


def shown(value: object) -> str:
    """The value as written; whole numbers may have more digits than can be shown."""
    if isinstance(value, int) and abs(value) > LARGEST:
        return f"a number of more than {LARGEST:g}"
    return repr(value)
