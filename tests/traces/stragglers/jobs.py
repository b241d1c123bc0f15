"""Tables of jobs, made up or published, as the analysis reads them."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bfpp.traces.stragglers.joint_steps import joint_steps
from bfpp.traces.stragglers.slowdowns import Slowdowns
from bfpp.traces.timeline.operation_table import OperationTable, RawOperations, operation_table
from tests.helpers.straggler_jobs import JOBS, Row, columns_of

FOLDER = Path(__file__).parent
ANSWERS = json.loads((FOLDER / "answers.json").read_text())["jobs"]
PUBLISHED = "published job"

NUMBERS = {
    "step": "step", "replica": "dp_rank", "rank": "stage", "device": "rank", "start": "start_ts",
    "duration": "duration", "nth": "seq_id", "microbatch": "mb_id", "chunk": "mc", "stage": "gmc",
}  # fmt: skip


def published_rows() -> list[Row]:
    """Four steps of the published job."""
    lines = (FOLDER / "published_job.csv").read_text().splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    counts: dict[tuple[Any, ...], int] = defaultdict(int)
    found = []
    for row in map(_published, rows):
        key = tuple(row[name] for name in ("step", "dp_rank", "stage", "optype"))
        found.append({**row, "seq_id": counts[key]})
        counts[key] += 1
    return found


def _published(row: Mapping[str, str]) -> Row:
    whole = ("step", "dp_rank", "stage", "rank", "mb_id", "mc", "gmc")
    times = {"start_ts": "start_us", "duration": "duration_us"}
    return {
        "optype": row["optype"],
        **{name: int(row[name]) for name in whole if row[name]},
        **{name: int(row[own]) * 1e-6 for name, own in times.items()},
    }


def rows_of(name: str) -> list[Row]:
    """The rows of a job that has answers."""
    return published_rows() if name == PUBLISHED else JOBS[name].rows()


def table_of(rows: Sequence[Row]) -> OperationTable:
    """The rows as a table of operations."""
    columns: dict[str, list[Any]] = columns_of(list(rows))
    numbers = {name: np.array(columns[own], dtype=float) for name, own in NUMBERS.items()}
    return operation_table(RawOperations(**numbers, kind=columns["optype"]))


def slowdowns_of(rows: Sequence[Row]) -> Slowdowns:
    """The slowdowns of a job with these rows."""
    return Slowdowns(joint_steps(table_of(rows)))


def means(found: Mapping[Any, Any]) -> dict[str, float]:
    """Mean slowdowns by name."""
    return {str(name): each.mean for name, each in found.items()}
