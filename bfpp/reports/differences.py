"""A difference of two timelines as it is reported: JSON, and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from bfpp.api.results import NOISE
from bfpp.reports.memory_tables import unit_of
from bfpp.terminal.error_lines import one_line
from bfpp.terminal.printing import RANKS_SHOWN, output, print_table
from bfpp.traces.explain.difference import Difference, Pair, TaskDifference
from bfpp.traces.timeline.metrics import bubble
from bfpp.traces.timeline.units import in_words

TASKS_SHOWN = 5

Row = tuple[str, ...]


def difference_record(difference: Difference) -> dict[str, Any]:
    """The difference as a JSON object; times in seconds."""
    return {
        **_pair("step_time", difference.step_time),
        "simulated_source": difference.simulated.source,
        "measured_source": difference.measured.source,
        "digest": difference.simulated.graph.digest,
        "mean_rank": {name: _pair("seconds", pair) for name, pair in difference.mean_rank.items()},
        "operations": {
            operation.title: {
                "count": each.count,
                **_pair("mean", each.mean),
                **_pair("total", each.total),
                "error": each.total.error,
            }
            for operation, each in difference.operations.items()
        },
        "lanes": [
            {
                "rank": each.lane.rank,
                "lane": each.lane.title,
                **_pair("busy", each.busy),
                "error": each.busy.error,
            }
            for each in difference.lanes
        ],
        "ranks": [
            {"rank": each.rank, **_pair("compute_time", each.compute), **_pair("idle", each.idle)}
            for each in difference.ranks
        ],
        "replicas": [
            {
                "replica": each.replica,
                **_pair("compute", each.compute),
                **_pair("waits", each.waits),
            }
            for each in difference.replicas
        ],
        "not_measured": difference.not_measured,
        "memory": [
            {
                "rank": each.rank,
                **_pair("peak", each.peak),
                "parts": {name: _pair("bytes", pair) for name, pair in each.parts.items()},
                "simulated_task": each.simulated_task.number,
                "measured_task": each.measured_task.number,
            }
            for each in difference.memory
        ],
        "worst": [_task(each) for each in difference.worst],
        "drifted": [_task(each) for each in difference.drifted],
    }


def difference_in_words(difference: Difference) -> str:
    """In a sentence, how far the two step times are apart."""
    one, other = difference.names
    step = difference.step_time
    if step.error is None or abs(step.error) < NOISE:
        return f"{one} and {other} steps take as long: {in_words(step.measured)}."
    longer = "more" if step.error > 0 else "less"
    return (
        f"{one.capitalize()}, a step takes {in_words(step.simulated)}: {abs(step.error):.1%} "
        f"{longer} than {other} ({in_words(step.measured)})."
    )


def _pair(name: str, pair: Pair) -> dict[str, float | None]:
    """Both numbers under this name, and their error."""
    return {
        f"simulated_{name}": pair.simulated,
        f"measured_{name}": pair.measured,
        f"{name}_error": pair.error,
    }


def _task(each: TaskDifference) -> dict[str, Any]:
    fields = ("number", "rank", "peer", "stage", "unit", "microbatch")
    return {
        "operation": each.task.operation.title,
        **{name: getattr(each.task, name) for name in fields},
        "simulated_duration": each.duration.simulated,
        "measured_duration": each.duration.measured,
        "duration_difference": each.duration.difference,
        "simulated_start": each.start.simulated,
        "measured_start": each.start.measured,
        "drift": each.start.difference,
    }


def print_difference(difference: Difference, title: str) -> None:
    """The step and its parts, then operations, ranks, lanes and tasks."""
    one, other = map(one_line, difference.names)
    names = (one, other, "error")
    step = difference.step_time
    bubbles = [
        f"{bubble(timeline):.1%}" for timeline in (difference.simulated, difference.measured)
    ]
    print_table(
        title,
        ("", *names),
        [
            ("step time", *_in_words(step)),
            ("bubble ratio", *bubbles, ""),
            *(
                (f"  {name}", *_in_words(pair))
                for name, pair in difference.mean_rank.items()
                if max(pair.simulated, pair.measured) > NOISE * max(step.simulated, step.measured)
            ),
        ],
    )
    operations = difference.operations.items()
    communication = difference.simulated.graph.communication
    _print_pairs(
        "Seconds of a task, by operation",
        ("operation", "tasks", *names),
        [
            (operation.called(communication), f"{each.count:,}", *_in_words(each.mean))
            for operation, each in operations
        ],
    )
    _print_pairs(
        "Seconds that each lane is busy",
        ("rank", "lane", *names),
        [
            (str(each.lane.rank), each.lane.title, *_in_words(each.busy))
            for each in difference.lanes
            if each.busy.simulated or each.busy.measured
        ],
    )
    if difference.replicas:
        _print_pairs(
            "Replicas, their mean rank: compute, and waiting for other replicas",
            ("replica", "", *names),
            [
                (str(each.replica), what, *_in_words(pair))
                for each in difference.replicas
                for what, pair in (("compute", each.compute), ("waits", each.waits))
            ],
        )
    if unknown := difference.not_measured:
        output().print(Text(f"Not in the trace, so taken as no time: {unknown}\n"))
    _print_memory(difference, names)
    for label, worst in (("duration", difference.worst), ("start", difference.drifted)):
        _print_tasks(label, (one, other), worst)


def _print_pairs(title: str, columns: Row, rows: Sequence[Row]) -> None:
    left_out = len(rows) > RANKS_SHOWN
    more = f" (the first {RANKS_SHOWN}; --json has all)" if left_out else ""
    print_table(title + more, columns, rows[:RANKS_SHOWN])


def _print_memory(difference: Difference, names: Row) -> None:
    """Peak memory of each rank by part; nothing unless both timelines have it."""
    if difference.memory:
        unit, size = unit_of(max(each.peak.measured for each in difference.memory))
        _print_pairs(
            f"{unit} that each rank holds at its peak",
            ("rank", "", *names),
            [
                (
                    str(each.rank),
                    name,
                    *(f"{number / size:.4g}" for number in (pair.simulated, pair.measured)),
                    _error(pair),
                )
                for each in difference.memory
                for name, pair in {"all": each.peak, **each.parts}.items()
                if pair.simulated or pair.measured
            ],
        )


def _print_tasks(label: str, names: tuple[str, str], tasks: Sequence[TaskDifference]) -> None:
    if tasks:
        print_table(
            f"Tasks whose {label} differs most",
            ("task", *names, "difference"),
            [
                (
                    str(each.task),
                    in_words(pair.simulated),
                    in_words(pair.measured),
                    in_words(pair.difference),
                )
                for each in tasks[:TASKS_SHOWN]
                for pair in [getattr(each, label)]
            ],
        )


def _in_words(pair: Pair) -> Row:
    return in_words(pair.simulated), in_words(pair.measured), _error(pair)


def _error(pair: Pair) -> str:
    return "" if pair.error is None else f"{pair.error:+.1%}"
