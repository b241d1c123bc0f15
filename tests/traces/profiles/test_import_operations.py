"""Jobs' tables in Parquet: columns of any types, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from bfpp.schedules import InvalidInput
from bfpp.traces.profiles import operation_parquet
from bfpp.traces.profiles.operation_parquet import read_operations
from bfpp.traces.profiles.profile import MalformedTrace
from tests.helpers.straggler_jobs import Job, columns_of, parquet_of
from tests.traces.stragglers.jobs import rows_of, table_of

arrow = pytest.importorskip("pyarrow")

COLUMNS = Job(dp=2, pp=2).columns()
WHOLE = ("dp_rank", "stage", "rank", "step", "seq_id", "mb_id", "mc", "gmc")
TIMES = ("start_ts", "duration")


def typed(kind: str) -> dict:
    """The columns as Arrow arrays of other types."""
    whole = {name: arrow.array(COLUMNS[name]) for name in WHOLE}
    times = {name: arrow.array(COLUMNS[name]) for name in TIMES}
    operations = arrow.array(COLUMNS["optype"])
    if kind == "small integers and a dictionary":
        whole = {name: column.cast(arrow.int8()) for name, column in whole.items()}
        operations = operations.dictionary_encode()
    if kind == "floats and large texts":
        whole = {name: column.cast(arrow.float64()) for name, column in whole.items()}
        operations = operations.cast(arrow.large_string())
    if kind == "texts":
        whole = {name: column.cast(arrow.string()) for name, column in whole.items()}
        times = {name: column.cast(arrow.string()) for name, column in times.items()}
    if kind == "timestamps":
        nanoseconds = {name: np.round(np.array(COLUMNS[name]) * 1e9).astype(int) for name in TIMES}
        times = {
            "start_ts": arrow.array(nanoseconds["start_ts"], arrow.timestamp("ns")),
            "duration": arrow.array(nanoseconds["duration"], arrow.duration("ns")),
        }
    return {**whole, **times, "optype": operations}


KINDS = (
    "plain",
    "small integers and a dictionary",
    "floats and large texts",
    "texts",
    "timestamps",
)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_may_be_of_any_type(kind):
    plain, other = read_operations(parquet_of(COLUMNS)), read_operations(parquet_of(typed(kind)))
    assert (other.kinds, other.steps, other.replicas) == (plain.kinds, plain.steps, plain.replicas)
    for name in ("step", "replica", "rank", "kind", "nth", "microbatch", "chunk", "stage"):
        assert np.array_equal(getattr(other, name), getattr(plain, name)), name
    assert other.start == pytest.approx(plain.start, abs=1e-8)
    assert other.end == pytest.approx(plain.end, abs=1e-8)


def test_rows_without_a_time_or_a_worker_are_left_out_and_counted():
    columns = {name: list(values) for name, values in COLUMNS.items()}
    columns["duration"][3] = columns["optype"][5] = columns["stage"][7] = None
    columns["start_ts"][9] = float("nan")
    table = read_operations(parquet_of(columns))
    assert len(table) == len(COLUMNS["step"]) - 4
    assert table.left_out == {"without a time or a worker": 4}


def test_a_send_and_a_receive_at_once_are_two_operations():
    rows = rows_of("published job")
    fused, others = [], []
    for row in rows:
        at = {**row, "optype": ""}
        same = [each for each in rows if {**each, "optype": "", "seq_id": row["seq_id"]} == at]
        names = {each["optype"] for each in same}
        if names != {"forward-send", "backward-recv"}:
            others.append(row)
        elif row["optype"] == "forward-send":
            fused.append({**row, "optype": "forward-send-backward-recv"})
    assert len(fused) > 10
    table, whole = read_operations(parquet_of(columns_of([*others, *fused]))), table_of(rows)
    assert table.kinds == whole.kinds
    for name in ("step", "replica", "rank", "kind", "nth", "start", "end"):
        assert np.array_equal(getattr(table, name), getattr(whole, name)), name


def without(name: str) -> bytes:
    return parquet_of({each: values for each, values in COLUMNS.items() if each != name})


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        (b"", "is not a Parquet table"),
        (b"PAR1" + bytes(40) + b"PAR1", "is not a Parquet table"),
        (without("stage"), "has no column stage"),
        (without("optype"), "has no column optype"),
        (parquet_of({**COLUMNS, "step": ["x"] * len(COLUMNS["step"])}), "step does not hold"),
        (parquet_of({name: values[:0] for name, values in COLUMNS.items()}), "has no row with"),
    ],
)
def test_another_file_is_refused_in_one_line(contents, reason):
    with pytest.raises(MalformedTrace, match=reason) as refused:
        read_operations(contents)
    assert "\n" not in str(refused.value)


def test_without_pyarrow_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(operation_parquet, "find_spec", lambda _: None)
    with pytest.raises(InvalidInput, match=r"needs pyarrow.*bfpp\[parquet\]"):
        read_operations(b"")


def test_a_table_has_only_so_many_rows(monkeypatch):
    monkeypatch.setattr(operation_parquet, "MOST_ROWS", 10)
    with pytest.raises(MalformedTrace, match="more than 10 rows"):
        read_operations(parquet_of(COLUMNS))
