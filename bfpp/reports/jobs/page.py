"""A job as a page: the verdict, its workers, the worst step above the even one, and all steps."""

from __future__ import annotations

import numpy as np

from bfpp.api.recorded.stragglers import JobExplanation
from bfpp.reports.jobs.remedies import REMEDY_COLUMNS, remedy_rows
from bfpp.reports.jobs.verdict import SLOWDOWN_COLUMNS, TITLES, slowdown_rows, verdict
from bfpp.schedules.columns import Flags, Integers, Seconds
from bfpp.schedules.operations.operations import Operation
from bfpp.terminal.outputs import Output
from bfpp.traces.figures.appearance import fill
from bfpp.traces.figures.svg.heat_map import svg_heat_map
from bfpp.traces.figures.svg.worker_rows import WorkerRows, svg_worker_rows
from bfpp.traces.page.static_page import Section, static_page
from bfpp.traces.stragglers.kinds import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    PARAMETERS,
    TRANSFERS,
    communicates,
)
from bfpp.traces.timeline.units import in_words

MOST_ROWS = 32
"""Workers that are drawn: those of the slowest replicas."""

LISTED = 24
"""Culprits of each kind that a table has."""

COLOURS = {
    "send or receive": fill(Operation.TRANSFER_ACTIVATIONS),
    "all-gather": fill(Operation.GATHER),
    "reduction": fill(Operation.REDUCE),
    "other": fill(Operation.NORM),
    "optimizer": fill(Operation.OPTIMIZER),
    "forward": fill(Operation.FORWARD),
    "backward": fill(Operation.BACKWARD),
}
"""Colours of operations, those drawn later on top."""


def write_job_page(file: Output, explained: JobExplanation, name: str) -> None:
    """Write the page of a job."""
    lead = list(verdict(explained))
    sections = [_workers(explained), _steps_drawn(explained), *_tables(explained)]
    with file.written() as path:
        page = static_page(f"Stragglers of {name}", lead, [*sections, _steps(explained)])
        path.write_text(page, encoding="utf-8")


def _workers(explained: JobExplanation) -> Section:
    table, by_worker = explained.table, explained.slowdowns.by_worker
    values = np.array(
        [
            [by_worker[replica, rank].mean or np.nan for replica in table.replicas]
            for rank in table.ranks
        ]
    )
    ranks, replicas = (list(map(str, each)) for each in (table.ranks, table.replicas))
    return Section(
        "Workers",
        "The mean step with all but this worker made even, over the even step.",
        svg_heat_map(values, ranks, replicas, ("pipeline rank", "replica"), least=1.0),
    )


def _steps_drawn(explained: JobExplanation) -> Section:
    slowdowns = explained.slowdowns
    worst = int(slowdowns.replayed.argmax())
    number = explained.steps[worst]
    job, replicas = slowdowns.job, _slowest_replicas(explained)
    drawn = (job.step == job.steps[worst]) & np.isin(job.replica, replicas)
    left_out = len(explained.table.replicas) - len(replicas)
    own = _rows(
        explained,
        f"Step {number} as measured: {in_words(float(job.measured_steps[worst]))}",
        drawn & job.is_known,
        _measured_end(explained),
        job.replay_time,
    )
    even = _rows(
        explained,
        f"The same, even: {in_words(float(slowdowns.even[worst]))}",
        drawn,
        job.tasks.replay(job.even_time),
        job.even_time,
    )
    return Section(
        "The worst step, and the even one",
        "Rows are workers, replica/pipeline rank; blank is waiting, and gaps between operations."
        + (f" {left_out} replicas that are less slow are not drawn." if left_out else ""),
        svg_worker_rows([own, even], COLOURS),
    )


def _slowest_replicas(explained: JobExplanation) -> list[int]:
    """Places of the slowest replicas, as many as there is room for."""
    table, by_replica = explained.table, explained.slowdowns.by_replica
    most = max(MOST_ROWS // len(table.ranks), 1)
    return sorted(table.replicas.index(replica) for replica in list(by_replica)[:most])


def _measured_end(explained: JobExplanation) -> Seconds:
    """Measured end of each task, from the first start of its step on."""
    table, job = explained.table, explained.job
    first = np.full(len(table.steps), np.inf)
    np.minimum.at(first, table.step, table.start)
    end: Seconds = table.end[job.row] - first[job.step]
    return end


def _rows(
    explained: JobExplanation, title: str, drawn: Flags, end: Seconds, seconds: Seconds
) -> WorkerRows:
    table, job = explained.table, explained.job
    worker = job.replica[drawn].astype(np.int64) * len(table.ranks) + job.rank[drawn]
    workers, row = np.unique(worker, return_inverse=True)
    names = [
        f"{table.replicas[each // len(table.ranks)]}/{each % len(table.ranks)}"
        for each in workers.tolist()
    ]
    colours = list(COLOURS)
    of_kind: Integers = np.array([colours.index(_colour_of(kind)) for kind in table.kinds])
    begin = np.maximum(end - np.maximum(seconds, 0.0), 0.0)
    return WorkerRows(title, names, row, of_kind[job.kind[drawn]], begin[drawn], end[drawn])


def _colour_of(kind: str) -> str:
    named = {FORWARD: "forward", BACKWARD: "backward", OPTIMIZER: "optimizer"}
    if kind in named:
        return named[kind]
    if kind in TRANSFERS:
        return "send or receive"
    if kind == PARAMETERS:
        return "all-gather"
    return "reduction" if communicates(kind) else "other"


def _tables(explained: JobExplanation) -> list[Section]:
    sections = [
        Section(
            "Remedies",
            "The share of the mean step that each would save, for as much work.",
            columns=REMEDY_COLUMNS,
            rows=remedy_rows(explained.remedies),
        )
    ]
    for kind, title in TITLES.items():
        rows = slowdown_rows(explained.by[kind], explained.steps, LISTED)
        if rows:
            columns = title, *SLOWDOWN_COLUMNS
            sections.append(Section(f"By {title}", columns=columns, rows=rows))
    return sections


def _steps(explained: JobExplanation) -> Section:
    slowdowns = explained.slowdowns
    differing = {each.step: each for each in explained.different_steps}
    rows = [
        (
            str(step),
            in_words(float(measured)),
            in_words(float(replayed)),
            in_words(float(even)),
            f"{replayed / even:.4f}",
            f"{differing[step].change:+.1%} {differing[step].operation or ''}"
            if step in differing
            else "",
        )
        for step, measured, replayed, even in zip(
            explained.steps,
            slowdowns.job.measured_steps,
            slowdowns.replayed,
            slowdowns.even,
            strict=True,
        )
    ]
    columns = ("step", "measured", "without gaps", "even", "slowdown", "differs")
    return Section("Steps", columns=columns, rows=rows)
