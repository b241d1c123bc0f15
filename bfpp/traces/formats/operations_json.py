"""Write and read tables of operations, of many steps and replicas, as JSON.

One object: `format`, the labels `steps`, `replicas`, `ranks` and `kinds`, `left_out`, and
`columns`: for each column of an `OperationTable` a list with a number for each operation. A file is
compressed if its name ends in `.gz`, and is read either way.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from bfpp.schedules.columns import NONE, Integers, Seconds
from bfpp.schedules.errors import InvalidFile
from bfpp.schedules.reading import NotJson, not_of_format, parsed, read_file
from bfpp.traces.formats.text_files import written
from bfpp.traces.timeline.operation_table import OperationTable

FORMAT = "bfpp operations 1"

LABELS = ("steps", "replicas", "ranks", "kinds")
PLACES = {"step": "steps", "replica": "replicas", "rank": "ranks", "kind": "kinds"}
"""Columns of places among labels."""
NUMBERS = ("nth", "microbatch", "chunk", "stage", "device")
TIMES = ("start", "end")

MOST_SECONDS = 1e12
"""More than any clock; a microsecond is lost from there on."""


class MalformedOperations(InvalidFile):
    """A text that does not hold a table of operations; the reason is one line."""


def save_operations(table: OperationTable, path: Path | str) -> None:
    """Write the table to a file, compressed where its name ends in `.gz`."""
    columns = (*PLACES, *NUMBERS, *TIMES)
    record = {
        "format": FORMAT,
        **{name: list(getattr(table, name)) for name in LABELS},
        "left_out": dict(table.left_out),
        "columns": {name: getattr(table, name).tolist() for name in columns},
    }
    with written(path) as file:
        file.write(json.dumps(record, allow_nan=False) + "\n")


def load_operations(path: Path | str) -> OperationTable:
    """The table of a file; raises `MalformedOperations` with the reason, or `OSError`."""
    return recorded_operations(read_file(Path(path)))


def recorded_operations(text: str | bytes) -> OperationTable:
    """The table of a JSON text, compressed or not; raises `MalformedOperations`."""
    try:
        record = parsed(text)
    except NotJson as error:
        raise MalformedOperations(error.reason) from None
    if fault := not_of_format(record, "a table of operations", FORMAT):
        raise MalformedOperations(fault)
    try:
        return _table(record)
    except (KeyError, TypeError, AttributeError) as error:
        name = type(error).__name__
        raise MalformedOperations(f"is not a table of operations: {name} {error}") from None


def _table(record: dict[str, Any]) -> OperationTable:
    labels: dict[str, Any] = {name: _labels(record[name], name) for name in LABELS}
    listed = record["columns"]
    if any(not isinstance(listed[name], list) for name in (*PLACES, *NUMBERS, *TIMES)):
        raise MalformedOperations("a column is not a list")
    columns: dict[str, Any] = {name: _integers(listed[name], name) for name in (*PLACES, *NUMBERS)}
    columns |= {name: _seconds(listed[name], name) for name in TIMES}
    rows = len(columns["step"])
    if not rows or any(len(column) != rows for column in columns.values()):
        raise MalformedOperations("columns are empty, or not of one length")
    for name, place in PLACES.items():
        if columns[name].min() < 0 or columns[name].max() >= len(labels[place]):
            raise MalformedOperations(f"{name} is not a place among {place}")
    if columns["nth"].min() < 0 or columns["nth"].max() >= 2 * rows:
        raise MalformedOperations("nth is not a place among operations")
    left_out = {str(reason): int(count) for reason, count in record["left_out"].items()}
    order = np.lexsort([columns[name] for name in ("nth", "kind", "rank", "replica", "step")])
    columns = {name: column[order] for name, column in columns.items()}
    columns["end"] = np.maximum(columns["start"], columns["end"])
    return OperationTable(**labels, **columns, left_out=left_out)


def _labels(values: Any, name: str) -> tuple[Any, ...]:
    kind = str if name == "kinds" else int
    if any(type(value) is not kind for value in values) or len(set(values)) < len(values):
        raise MalformedOperations(f"{name} are not all different {kind.__name__}s")
    return tuple(values)


def _integers(values: Any, name: str) -> Integers:
    if any(type(value) is not int or not NONE <= value < 2**31 for value in values):
        raise MalformedOperations(f"{name} does not hold numbers from -1 on")
    return np.array(values, dtype=np.int32)


def _seconds(values: Any, name: str) -> Seconds:
    if any(type(value) not in (int, float) for value in values):
        raise MalformedOperations(f"{name} does not hold seconds")
    try:
        seconds = np.array(values, dtype=np.float64)
    except OverflowError:
        seconds = np.full(1, np.inf)
    if not (np.abs(seconds) <= MOST_SECONDS).all():
        raise MalformedOperations(f"{name} holds a number that is no time")
    return seconds
