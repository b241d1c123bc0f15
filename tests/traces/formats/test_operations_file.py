"""Saved jobs: read as they were written, or refused in one line."""

from __future__ import annotations

import json
from dataclasses import fields

import numpy as np
import pytest

from bfpp.traces.formats.operations_json import (
    MalformedOperations,
    load_operations,
    recorded_operations,
    save_operations,
)
from tests.helpers.straggler_jobs import Job
from tests.traces.stragglers.jobs import table_of

TABLE = table_of(Job(dp=2, pp=2, steps=(1, 4)).rows())


@pytest.mark.parametrize("name", ["job.json", "job.json.gz"])
def test_a_job_is_read_as_it_was_written(tmp_path, name):
    save_operations(TABLE, tmp_path / name)
    read = load_operations(tmp_path / name)
    for each in fields(TABLE):
        one, other = (getattr(table, each.name) for table in (TABLE, read))
        assert np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other


@pytest.fixture
def record(tmp_path) -> dict:
    save_operations(TABLE, tmp_path / "job.json")
    return json.loads((tmp_path / "job.json").read_text())


def test_whole_seconds_are_seconds(record):
    for name in ("start", "end"):
        record["columns"][name] = [round(each) for each in record["columns"][name]]
    read = recorded_operations(json.dumps(record))
    assert read.start.dtype == read.end.dtype == np.float64
    assert read.end.tolist() == record["columns"]["end"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda it: it.update(format="bfpp timeline 1"), "operations"),
        (lambda it: it.pop("steps"), "KeyError"),
        (lambda it: it.update(steps=[1, 1]), "not all different"),
        (lambda it: it["columns"]["start"].pop(), "not of one length"),
        (lambda it: it["columns"]["rank"].__setitem__(0, 9), "rank is not a place"),
        (lambda it: it["columns"]["nth"].__setitem__(0, 10**6), "nth is not a place"),
        (lambda it: it["columns"]["end"].__setitem__(0, 1e30), "end holds a number"),
        (lambda it: it["columns"]["end"].__setitem__(0, 10**400), "end holds a number"),
        (lambda it: it["columns"]["end"].__setitem__(0, "x"), "end does not hold seconds"),
        (lambda it: it["columns"]["kind"].__setitem__(0, -2), "kind does not hold"),
    ],
)
def test_what_is_not_a_job_is_refused(record, change, reason):
    change(record)
    with pytest.raises(MalformedOperations, match=reason):
        recorded_operations(json.dumps(record))
