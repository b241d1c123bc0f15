"""Operations of many steps on many workers, as a whole job's profiler records them.

A worker is a pipeline rank of a replica. Rules that each table keeps:

- Rows are sorted by step, replica, rank, kind and `nth`, and no two are the same in all of these.
- Times are seconds, of whatever clock. What a row does not say is -1 (`NONE`).
- Columns hold places in `steps`, `replicas`, `ranks` and `kinds`, which have what they are called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from bfpp.schedules.columns import (
    NONE,
    Flags,
    Integers,
    Seconds,
    place_in_segment,
    segment_starts,
)


@dataclass(frozen=True, eq=False)
class OperationTable:
    """Columns over operations.

    `nth` is an operation's place among those of its kind of a worker's step; `chunk` the model
    chunk on the rank, `stage` the one in the model, of passes and of what belongs to a chunk.
    `device` is the number of the GPU in the job. `left_out` counts what is in no row, by reason.
    """

    steps: tuple[int, ...]
    replicas: tuple[int, ...]
    ranks: tuple[int, ...]
    kinds: tuple[str, ...]
    step: Integers
    replica: Integers
    rank: Integers
    kind: Integers
    nth: Integers
    microbatch: Integers
    chunk: Integers
    stage: Integers
    device: Integers
    start: Seconds
    end: Seconds
    left_out: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.start)

    def __repr__(self) -> str:
        sizes = (self.steps, "steps"), (self.replicas, "replicas"), (self.ranks, "ranks")
        counted = ", ".join(f"{len(each):,} {name}" for each, name in sizes)
        return f"<OperationTable: {counted}, {len(self):,} operations>"

    def of(self, rows: Flags) -> OperationTable:
        """These rows alone."""
        columns = {
            each.name: value[rows]
            for each in fields(self)
            if isinstance(value := getattr(self, each.name), np.ndarray)
        }
        return OperationTable(
            self.steps, self.replicas, self.ranks, self.kinds, **columns, left_out=self.left_out
        )


@dataclass(frozen=True, eq=False)
class RawOperations:
    """Rows as they are read, in any order; numbers that a file does not have are NaN."""

    step: Seconds
    replica: Seconds
    rank: Seconds
    device: Seconds
    start: Seconds
    duration: Seconds
    nth: Seconds
    microbatch: Seconds
    chunk: Seconds
    stage: Seconds
    kind: Sequence[str]


def operation_table(
    raw: RawOperations, left_out: Mapping[str, int] | None = None
) -> OperationTable:
    """Rows sorted and numbered: by the file's own numbers where they are whole, else by start.

    A worker with several devices (tensor or sequence parallel) has the operations of its first.
    """
    steps, step = _coded(raw.step)
    replicas, replica = _coded(raw.replica)
    ranks, rank = _coded(raw.rank)
    names, kind = np.unique(np.asarray(raw.kind, dtype=str), return_inverse=True)
    device = _whole(raw.device)
    worker = replica.astype(np.int64) * len(ranks) + rank
    first = np.full(len(replicas) * len(ranks), np.iinfo(np.int32).max)
    np.minimum.at(first, worker, device)
    own = device == first[worker]
    columns: dict[str, npt.NDArray[Any]] = {
        "step": step, "replica": replica, "rank": rank, "kind": kind, "device": device,
        "microbatch": _whole(raw.microbatch), "chunk": _whole(raw.chunk),
        "stage": _whole(raw.stage), "nth": _whole(raw.nth),
        "start": raw.start, "end": raw.start + np.maximum(raw.duration, 0.0),
    }  # fmt: skip
    columns = {name: column[own] for name, column in columns.items()}
    group = columns["step"], columns["replica"], columns["rank"], columns["kind"]
    order = np.lexsort((columns["nth"], columns["start"], *group[::-1]))
    columns = {name: column[order] for name, column in columns.items()}
    columns["nth"] = _numbered(columns)
    order = np.lexsort([columns[name] for name in ("nth", "kind", "rank", "replica", "step")])
    columns = {name: column[order] for name, column in columns.items()}
    counts = {**(left_out or {}), "of a worker's other devices": int((~own).sum())}
    return OperationTable(
        steps, replicas, ranks, tuple(names.tolist()), **columns,
        left_out={reason: count for reason, count in counts.items() if count},
    )  # fmt: skip


def _numbered(columns: Mapping[str, npt.NDArray[Any]]) -> Integers:
    """The place of each row among its kind, of rows sorted by start within a kind."""
    begins = segment_starts(*(columns[name] for name in ("step", "replica", "rank", "kind")))
    place = place_in_segment(begins).astype(np.int32)
    given = columns["nth"]
    if (given < 0).any() or given.max() >= 2 * len(given):
        return place
    group = np.cumsum(begins)
    order = np.lexsort((given, group))
    same = (np.diff(group[order]) == 0) & (np.diff(given[order]) == 0)
    return place if same.any() else given


def _coded(values: Seconds) -> tuple[tuple[int, ...], Integers]:
    labels, code = np.unique(values.astype(np.int64), return_inverse=True)
    return tuple(labels.tolist()), code.astype(np.int32)


def _whole(values: Seconds) -> Integers:
    most = np.iinfo(np.int32).max
    whole: Integers = np.where(np.isfinite(values), values, NONE).clip(NONE, most).astype(np.int32)
    return whole
