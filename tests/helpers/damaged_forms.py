"""Files that are of their form, TOML, SQLite or another, and say something else than they did."""

from __future__ import annotations

import json
import sqlite3
import tomllib
from collections.abc import Callable
from contextlib import closing, suppress
from io import BytesIO

from hypothesis import strategies as st

from bfpp.sim.costs.measured.profile_file import inline, key
from bfpp.traces.formats.protobuf import MalformedMessage, delimited, field, fields, messages
from tests.helpers.damage import ODD_VALUES, change, changed_json, damaged

Damage = Callable[[bytes], st.SearchStrategy[bytes]]
"""Functions that damage whole contents."""


@st.composite
def changed_lines(draw, contents: bytes) -> bytes:
    """Lines of JSON, one of which says something else."""
    lines = contents.splitlines(keepends=True)
    at = draw(st.integers(0, len(lines) - 1))
    lines[at] = draw(changed_json(lines[at])) + b"\n"
    return b"".join(lines)


@st.composite
def changed_toml(draw, contents: bytes) -> bytes:
    """TOML that is still TOML, with some values of other kinds, or none."""
    record = tomllib.loads(contents.decode())
    for _ in range(draw(st.integers(1, 3))):
        change(draw, record)
    return _toml(record).encode(errors="replace")


def _toml(record):
    """Values that TOML does not have become texts."""
    text = json.dumps(record)  # of NaN and Infinity, the words that TOML has are lower case
    plain = json.loads(text, parse_constant=str)
    return "".join(f"{key(name)} = {inline(_said(each))}\n" for name, each in plain.items())


def _said(value):
    if isinstance(value, dict):
        return {name: _said(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_said(each) for each in value]
    return "none" if value is None else value


@st.composite
def changed_columns(draw, contents: bytes) -> bytes:
    """A Parquet file with some columns gone, or of other values or types."""
    import pyarrow as arrow
    from pyarrow.parquet import read_table, write_table

    columns = read_table(arrow.BufferReader(contents)).to_pydict()
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(sorted(columns)))
        values = list(columns[name])
        at = draw(st.integers(0, len(values) - 1))
        values[at] = draw(st.sampled_from([*ODD_VALUES, *values[:4]]))
        whole = [str(each) for each in values], [values[at]] * len(values), None, values
        columns[name] = draw(st.sampled_from(whole))
        if columns[name] is None:
            del columns[name]
    with suppress(arrow.ArrowException, OverflowError, UnicodeEncodeError, TypeError):
        file = BytesIO()
        write_table(arrow.table(columns), file)
        return file.getvalue()
    return contents


@st.composite
def changed_tables(draw, contents: bytes) -> bytes:
    """An SQLite file with some values, columns or tables that are not as they were."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(contents)
        for _ in range(draw(st.integers(1, 3))):
            with suppress(sqlite3.Error, OverflowError, UnicodeEncodeError):
                _change_table(draw, database)
        database.commit()
        return bytes(database.serialize())


def _change_table(draw, database):
    tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    table = draw(st.sampled_from([name for (name,) in tables.fetchall()]))
    names = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
    column = draw(st.sampled_from(names))
    rows = draw(st.sampled_from(["", " WHERE rowid % 2", " WHERE rowid = 1"]))
    odd = draw(st.sampled_from([*ODD_VALUES, b"\xff", b"x" * 9999, 2**62, -(2**62)]))
    change = draw(st.sampled_from(["odd", "odd", "odd", "column", "drop", "view", "none", "more"]))
    if change == "odd":
        database.execute(f"UPDATE {table} SET {column} = ?{rows}", (odd,))
    elif change == "none":
        database.execute(f"DELETE FROM {table}{rows}")
    elif change == "column":
        database.execute(f"ALTER TABLE {table} RENAME COLUMN {column} TO other")
    elif change == "more":
        database.execute(f"INSERT INTO {table} SELECT * FROM {table}")
    else:
        database.execute(f"DROP TABLE {table}")
        if change == "view":
            database.execute(f"CREATE VIEW {table} AS {ENDLESS}")


ENDLESS = (
    "WITH RECURSIVE more(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM more) "
    "SELECT start, start AS end, 59 AS eventType, start AS globalTid, 'x' AS text, 1 AS textId, "
    "1 AS correlationId, 1 AS globalPid, 1 AS deviceId, 1 AS streamId, 1 AS shortName, "
    "1 AS utcEpochNs, 1 AS id, 'x' AS value FROM more"
)
"""A view that has no last row."""


@st.composite
def changed_messages(draw, contents: bytes) -> bytes:
    """Protocol buffers that still are, some of whose fields are other ones, or lost."""
    inside = [*messages(contents)]
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(inside) - 1))
        inside[at] = _changed_message(draw, inside[at])
    return b"".join(map(delimited, inside))


def _changed_message(draw, message):
    parts = _parts(message)
    if not parts:
        return draw(st.binary(max_size=20))
    at = draw(st.integers(0, len(parts) - 1))
    number, value = parts[at]
    if isinstance(value, bytes) and draw(st.integers(0, 3)):
        return _joined([*parts[:at], (number, _changed_value(draw, value)), *parts[at + 1 :]])
    others = st.sampled_from(
        [0, 1, 2**31, 2**63, 0.5, float("nan"), float("inf"), b"", b"\xff", b"x"]
    )
    other = [] if draw(st.booleans()) else [(draw(st.sampled_from([number, 1, 3])), draw(others))]
    return _joined([*parts[:at], *other, *parts[at + 1 :]])


def _changed_value(draw, value):
    if value.startswith(b"{"):
        return draw(changed_json(value))
    return _changed_message(draw, value) if _parts(value) else draw(damaged(value))


def _parts(message):
    with suppress(MalformedMessage):
        return [*fields(message)]
    return []


def _joined(parts):
    return b"".join(field(number, value) for number, value in parts)


def either(*ways: Damage) -> Damage:
    """One of several ways each time."""
    return lambda contents: st.one_of(*(way(contents) for way in ways))
