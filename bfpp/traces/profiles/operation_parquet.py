"""Read a job's operations from a Parquet table, as ByteDance's straggler analysis publishes them.

One row an operation: `dp_rank, stage, rank, step, optype, start_ts, duration` (seconds), and, where
there are such, `seq_id` (its place among its type in a worker's step), `mb_id` (micro-batch), `mc`
(model chunk on the rank) and `gmc` (in the model). Numbers may be of any type; timestamps and
durations of Arrow's own types are turned into seconds. The format is that of the artifact of
"Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025).
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np

from bfpp.schedules import InvalidInput
from bfpp.schedules.columns import Seconds
from bfpp.traces.profiles.profile import MalformedTrace
from bfpp.traces.timeline.operation_table import OperationTable, RawOperations, operation_table

MOST = 1e12
"""More than any number or time of an operation; NaN is not less."""

MOST_ROWS = 2**24
"""More than any analysis is asked for; their memory is bounded."""

NEEDED = ("dp_rank", "stage", "step", "optype", "start_ts", "duration")
OPTIONAL = ("rank", "seq_id", "mb_id", "mc", "gmc")

FUSED = {
    "forward-send-backward-recv": ("forward-send", "backward-recv"),
    "backward-send-forward-recv": ("backward-send", "forward-recv"),
}
"""Operations that are a send and a receive at once, with the same times."""

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def read_operations(contents: bytes) -> OperationTable:
    """The operations of a table, from the contents of its file.

    Raises `MalformedTrace` for another file, or `InvalidInput` without pyarrow.
    """
    columns = _columns(contents)
    if missing := [name for name in NEEDED if name not in columns]:
        raise MalformedTrace(f"has no column {missing[0]}: needed are {', '.join(NEEDED)}")
    kind = np.asarray(columns.pop("optype").to_pylist(), dtype=object)
    numbers = {name: _numbers(name, column) for name, column in columns.items()}
    unknown = np.full(len(kind), np.nan)
    whole = np.array([isinstance(each, str) for each in kind], dtype=bool)
    for name in NEEDED:
        if name != "optype":
            whole &= np.abs(numbers[name]) <= MOST
    for name in ("step", "dp_rank", "stage"):
        whole &= numbers[name] >= 0
    if not whole.any():
        raise MalformedTrace("has no row with all of " + ", ".join(NEEDED))
    raw = {name: numbers.get(name, unknown) for name in (*NEEDED, *OPTIONAL) if name != "optype"}
    kept = {name: column[whole] for name, column in raw.items()}
    kinds, kept = _parted(kind[whole], kept)
    return operation_table(
        RawOperations(
            step=kept["step"], replica=kept["dp_rank"], rank=kept["stage"], device=kept["rank"],
            start=kept["start_ts"], duration=kept["duration"], nth=kept["seq_id"],
            microbatch=kept["mb_id"], chunk=kept["mc"], stage=kept["gmc"], kind=kinds,
        ),
        {"without a time or a worker": int((~whole).sum())},
    )  # fmt: skip


def _columns(contents: bytes) -> dict[str, Any]:
    """The columns of a file that are of interest."""
    if find_spec("pyarrow") is None:
        raise InvalidInput("needs pyarrow, which is not installed: pip install 'bfpp[parquet]'")
    from pyarrow import ArrowException, BufferReader
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(BufferReader(contents)) as file:
            if file.metadata.num_rows > MOST_ROWS:
                raise MalformedTrace(f"has more than {MOST_ROWS:,} rows")
            names = [name for name in (*NEEDED, *OPTIONAL) if name in file.schema_arrow.names]
            table = file.read(columns=names)
            return {name: table.column(name) for name in names}
    except (ArrowException, OSError) as error:
        raise MalformedTrace(f"is not a Parquet table: {_first_line(error)}") from None


def _numbers(name: str, column: Any) -> Seconds:
    """A column as numbers, NaN where there is none."""
    import pyarrow as arrow

    kind, per_second = column.type, 1
    try:
        if arrow.types.is_dictionary(kind):
            kind = kind.value_type
            column = column.cast(kind)
        if arrow.types.is_timestamp(kind) or arrow.types.is_duration(kind):
            per_second = PER_SECOND[kind.unit]
            column = column.cast(arrow.int64())
        numbers = column.cast(arrow.float64(), safe=False).to_numpy()
    except arrow.ArrowException as error:
        raise MalformedTrace(f"{name} does not hold numbers: {_first_line(error)}") from None
    seconds: Seconds = numbers / per_second
    return seconds


def _parted(kind: Any, columns: dict[str, Seconds]) -> tuple[list[str], dict[str, Seconds]]:
    """Fused sends and receives as two rows; those of a type are then numbered by start."""
    rows, names = [np.arange(len(kind))], [kind]
    for name, parts in FUSED.items():
        fused = np.flatnonzero(kind == name)
        names[0] = np.where(kind == name, parts[0], names[0])
        rows.append(fused)
        names.append(np.full(len(fused), parts[1], dtype=object))
    every = np.concatenate(rows)
    parted = {name: column[every] for name, column in columns.items()}
    if len(every) > len(kind):
        parted["seq_id"] = np.full(len(every), np.nan)
    return np.concatenate(names).tolist(), parted


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
