"""The verdict on a job in a few sentences: its losses, the culprits, and the times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bfpp.api.recorded.stragglers import JobExplanation
from bfpp.reports.jobs.remedies import best_remedy
from bfpp.terminal.error_lines import one_line
from bfpp.terminal.printing import counted
from bfpp.traces.stragglers.patterns import DifferentStep, Pattern, pattern
from bfpp.traces.stragglers.slowdowns import Slowdown
from bfpp.traces.timeline.units import in_words

SHOWN = 6
"""Steps and workers that a sentence lists."""

EXPLAINS = 0.5
"""The share of the slowdown from which on a worker or a stage is said to explain it."""

SLIGHT = 1.01
"""The slowdown up to which no worker is blamed."""

TITLES = {
    "stage": "pipeline rank",
    "replica": "replica",
    "worker": "worker (replica/pipeline rank)",
    "operation": "operation",
    "microbatch": "micro-batch",
}


def verdict(explained: JobExplanation) -> Iterator[str]:
    """Sentences on the job: its losses, the culprits, the times, and missing measurements."""
    table, slowdowns = explained.table, explained.slowdowns
    measured, replayed = slowdowns.job.measured_steps.mean(), slowdowns.replayed.mean()
    if explained.slowdown is None or not measured:
        yield "Its operations take no time: there is nothing to explain."
        return
    yield (
        f"{counted(len(explained.steps), 'step')} of {counted(len(table.replicas), 'replica')} x "
        f"{counted(len(table.ranks), 'pipeline rank')}: {in_words(measured)} measured, "
        f"{in_words(replayed)} without the gaps between operations "
        f"({replayed / measured - 1:+.1%}), {in_words(slowdowns.even.mean())} if all were even."
    )
    yield (
        f"Slowdown S = {explained.slowdown:.3f}: unevenness takes "
        f"{max(1 - 1 / explained.slowdown, 0.0):.1%} of the step."
    )
    if explained.slowdown > SLIGHT:
        yield from _blamed(explained)
        yield _recurs(explained)
    yield from best_remedy(explained.remedies)
    if differing := explained.different_steps:
        steps = [_differs(each) for each in differing[:SHOWN]]
        more = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
        yield f"Steps that differ from the median: {', '.join(steps)}{more}."
    yield from _not_measured(explained)


def _blamed(explained: JobExplanation) -> Iterator[str]:
    slowdowns, by = explained.slowdowns, explained.by
    last, worst = slowdowns.last_stage_share, slowdowns.worst_workers_share
    [stage, *_], [operation, *_] = by["stage"], by["operation"]
    if last is not None and last > EXPLAINS and stage == str(len(explained.table.ranks) - 1):
        yield (
            f"The last pipeline rank explains it: alone it costs {_cost(by['stage'][stage])}, and "
            f"with it even {min(last, 1.0):.0%} of the loss would be gone. With fewer layers there "
            "(the output layer is its own), it would be nearer to the others."
        )
    elif worst is not None and worst > EXPLAINS:
        names = ", ".join(f"{replica}/{rank}" for replica, rank in slowdowns.worst_workers[:SHOWN])
        is_one = len(slowdowns.worst_workers) == 1
        yield (
            f"The worst {counted(len(slowdowns.worst_workers), 'worker')} (replica/pipeline rank "
            f"{names}) explain{'s' * is_one} {min(worst, 1.0):.0%} of it: look at "
            f"{'its device and host' if is_one else 'their devices and hosts'}."
        )
    else:
        worker, replica = next(iter(by["worker"])), next(iter(by["replica"]))
        yield (
            f"No single worker explains it: the worst one, {worker} (replica/pipeline rank), costs "
            f"{_cost(by['worker'][worker])} alone, pipeline rank {stage} "
            f"{_cost(by['stage'][stage])}, replica {replica} {_cost(by['replica'][replica])}."
        )
    yield f"By operation, {one_line(operation)} costs most: {_cost(by['operation'][operation])}."


def _cost(slowdown: Slowdown) -> str:
    return "an unknown share" if slowdown.mean is None else f"{slowdown.mean - 1:.1%}"


def _recurs(explained: JobExplanation) -> str:
    recurs = explained.pattern
    return f"It is {when(recurs)}: {recurs.slow_steps} of {len(explained.steps)} steps are slow."


def when(recurs: Pattern) -> str:
    """The way in which slowness recurs, in words."""
    period = f", every {recurs.period} steps" if recurs.period else ""
    return f"{recurs.recurrence}{period}"


def _differs(step: DifferentStep) -> str:
    by = f", {one_line(step.operation)}" if step.operation else ""
    return f"{step.step} ({step.change:+.1%}{by})"


def _not_measured(explained: JobExplanation) -> Iterator[str]:
    if partial := explained.job.partial:
        listed = ", ".join(map(str, partial[:SHOWN])) + (", ..." if len(partial) > SHOWN else "")
        yield f"Not recorded whole, and left out: {counted(len(partial), 'step')} ({listed})."
    if explained.not_measured:
        yield (
            f"Not measured: {explained.not_measured:,} operations, taken to be as others of their "
            "kind on their pipeline rank."
        )
    for reason, count in explained.table.left_out.items():
        yield f"Left out: {count:,} rows {reason}."


def slowdown_rows(
    slowdowns: Mapping[str, Slowdown], steps: Sequence[int], most: int
) -> list[tuple[str, str, str]]:
    """The largest slowdowns: of whom, how large, and how it recurs."""
    return [
        (
            one_line(name),
            "not measured" if each.mean is None else f"{each.mean:.4f}",
            when(pattern(each, steps)),
        )
        for name, each in list(slowdowns.items())[:most]
    ]


SLOWDOWN_COLUMNS = ("slowdown", "slow")
