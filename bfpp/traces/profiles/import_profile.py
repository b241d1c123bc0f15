"""Import profiles of a pipeline's ranks as one timeline.

The graph is lowered from the orders in which the ranks ran their passes, or from given ones: then
the n-th pass of a rank is its n-th step.

- A transfer starts when both ends are ready (the pass that makes it has ended, and the receive has
  begun), and ends with the receive.
- Chunks that have numbers alone are stages around the ranks in turn (or on a V: where the last rank
  begins its second chunk before the first one does).
- A task that no trace shows takes no time, at the moment when it could have begun; `about` counts
  these.
- A pass lasts from its first to its last kernel: `about` says how much of all passes is compute.
- Clocks are those of the traces. Where a pass would start (or a receive end) before what it waits
  for ends on another rank, its rank's clock is put forward, by as little as makes it right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from bfpp.schedules import Communication, InvalidInput, TaskGraph
from bfpp.schedules.columns import Flags, Integers, Seconds
from bfpp.schedules.formats.torch_csv import layout_of
from bfpp.schedules.lowering import lower
from bfpp.schedules.operations.operations import OPERATIONS, Operation
from bfpp.schedules.orders.steps import STEP, Order
from bfpp.schedules.orders.validity import order_violations
from bfpp.traces.profiles.profile import Profile, TracedRange
from bfpp.traces.profiles.recognise_passes import (
    RecognisedPass,
    RecognisedStep,
    recognise_passes,
)
from bfpp.traces.timeline.intervals import Intervals, union
from bfpp.traces.timeline.timeline import MEASURED, Timeline
from bfpp.traces.timeline.units import SECONDS_PER_NANOSECOND, in_words

SHOWN = 3
"""Names that are listed; others are counted."""
NOTHING = "none"
"""The text in `about` where nothing is missing."""

EVEN = 0.01
"""The share of passes up to which holes in them are not mentioned."""

Numbers = Mapping[tuple[int, int, int], int]
"""The task of an operation, a stage and a micro-batch."""


def import_profiles(
    traces: Sequence[Profile],
    orders: Sequence[Order] | None = None,
    step: int | None = None,
    name: str = "trace",
) -> Timeline:
    """The timeline of one step: that of the given number, or the last one.

    Raises `InvalidInput` where the traces do not show one step of every rank.
    """
    if not traces:
        raise InvalidInput("the trace shows no process that did anything")
    traces = _in_order(traces)
    ranks = ranks_of_step(traces, step)
    if orders is None:
        _require_linked(ranks)
    timeline = timeline_of_ranks(ranks, _bases(traces), orders, name)
    return replace(timeline, about={**timeline.about, **_holes(traces, ranks)})


def ranks_of_step(traces: Sequence[Profile], step: int | None = None) -> list[RecognisedStep]:
    """Passes of one step in each trace: that of the number, or the last one."""
    return [recognise_passes(each) for each in _of_step(traces, step)]


def timeline_of_ranks(
    ranks: Sequence[RecognisedStep],
    bases: Seconds,
    orders: Sequence[Order] | None = None,
    name: str = "trace",
) -> Timeline:
    """The timeline of one step of all ranks, whose times count from their `bases`.

    Raises `InvalidInput` where their passes are not one step.
    """
    ran = orders or _orders(ranks, bases)
    _require_runnable(ran)
    graph = lower(ran, layout_of(ran), Communication(), name)
    start, end = _measured(graph, ran, ranks) + bases[_clock(graph)]
    is_known = ~np.isnan(end)
    shift, clocks = _shift(graph, start, end)
    start, end = complete_times(graph, *(times + shift[_clock(graph)] for times in (start, end)))
    about = {
        "passes": "by the orders given" if orders else _recognised_by(ranks),
        "clocks": clocks,
        "not_measured": counted_operations(graph, ~is_known),
        "unknown_ranges": _counted(name for each in ranks for name in each.unknown),
    }
    if unmatched := _unmatched(graph, ranks):
        about["unmatched_receives"] = f"{unmatched}: is the trace of another rank missing?"
    first = start.min()
    return Timeline(graph, start - first, end - first, MEASURED, about=about)


def _require_linked(ranks: Sequence[RecognisedStep]) -> None:
    """Raise `InvalidInput` for several ranks with no sign that they are stages."""
    are_linked = any(each.received or each.are_named for each in ranks)
    if len(ranks) > 1 and any(each.passes for each in ranks) and not are_linked:
        raise InvalidInput(
            "the ranks receive nothing from each other: they are replicas or shards, not stages; "
            "bfpp explain TRACE... says what each did (--orders FILE makes them a pipeline)"
        )


def _holes(traces: Sequence[Profile], ranks: Sequence[RecognisedStep]) -> dict[str, str]:
    """A note on how much of the passes is compute; none where no device ran them."""
    if not all(each.kernels for each in traces):
        return {}
    compute = length = 0.0
    for trace, rank in zip(traces, ranks, strict=True):
        passes = _union(rank.passes)
        compute += float(_union(trace.work).within(*passes).sum())
        length += passes.length
    note = f"{in_words(compute)} of {in_words(length)}, the rest are holes: bfpp explain TRACE..."
    return {"compute_in_passes": note} if compute < (1 - EVEN) * length else {}


def _union(spans: Sequence[RecognisedPass] | Sequence[TracedRange]) -> Intervals:
    times = np.array([(it.start, it.end) for it in spans]).reshape(-1, 2)
    return union(times[:, 0], times[:, 1])


# Which rank, and which step


def _in_order(traces: Sequence[Profile]) -> list[Profile]:
    """Traces by the ranks that they name, if all do; else as they are given."""
    ranks = [each.rank for each in traces if each.rank is not None]
    if len(ranks) < len(traces):
        return list(traces)
    if twice := [rank for rank, times in Counter(ranks).items() if times > 1]:
        raise InvalidInput(f"two traces are of rank {twice[0]}")
    return [trace for _, trace in sorted(zip(ranks, traces, strict=True), key=lambda it: it[0])]


def _of_step(traces: Sequence[Profile], step: int | None) -> list[Profile]:
    """One step, the last one by default; the whole trace where it marks no steps."""
    counted = set.intersection(*(set(each.steps) for each in traces))
    if step is None and not counted:
        return list(traces)
    if step is not None and step not in counted:
        known = ", ".join(map(str, sorted(counted))) or "none"
        raise InvalidInput(f"step {step} is not in all traces; those that are: {known}")
    number = max(counted) if step is None else step
    return [each.during(each.steps[number]) for each in traces]


# Orders


def _orders(ranks: Sequence[RecognisedStep], bases: Seconds) -> list[Order]:
    """Each rank's steps as they ran."""
    for number, each in enumerate(ranks):
        if not each.passes:
            raise InvalidInput(f"rank {number}: no forward or backward pass is known in its trace")
    on_vee = _is_on_vee(ranks, bases)
    return [
        _order(each, partial(_stage, rank=number, ranks=len(ranks), on_vee=on_vee))
        for number, each in enumerate(ranks)
    ]


def _is_on_vee(ranks: Sequence[RecognisedStep], bases: Seconds) -> bool:
    """True for a V: the last rank begins its second chunk before the first one does."""
    begins = [
        [it.start + base for it in ranks[end].passes if it.chunk == 1]
        for end, base in ((0, bases[0]), (-1, bases[-1]))
    ]
    return all(begins) and min(begins[-1]) < min(begins[0])


def _stage(chunk: int, rank: int, ranks: int, on_vee: bool) -> int:
    """The stage of a rank's chunk."""
    return chunk * ranks + (ranks - 1 - rank if on_vee and chunk % 2 else rank)


def _order(rank: RecognisedStep, stage_of: Callable[[int], int]) -> Order:
    """The rank's order; without names, it has one stage, and micro-batches are counted."""
    counts = Counter[tuple[int, int]]()
    steps = []
    for each in rank.passes:
        stage = stage_of(each.chunk or 0) if each.stage is None else each.stage
        counted = counts[each.operation, stage]
        counts[each.operation, stage] += 1
        microbatch = counted if each.microbatch is None else each.microbatch
        steps.append((int(each.operation), stage, microbatch, False))
    return np.array(steps, dtype=STEP)


def _require_runnable(orders: Sequence[Order]) -> None:
    if broken := order_violations(orders):
        raise InvalidInput(
            f"the passes are not one step ({broken[0].rule}: {broken[0].message}): let the trace "
            "hold one step, or mark its steps (profiler.step()), and give --orders if it has no "
            "names"
        )


def _recognised_by(ranks: Sequence[RecognisedStep]) -> str:
    return "by name" if all(each.are_named for each in ranks) else "by operators"


# Times


def _measured(
    graph: TaskGraph, orders: Sequence[Order], ranks: Sequence[RecognisedStep]
) -> Seconds:
    """Starts and ends on the clocks of the traces, in (2, task); NaN if unknown."""
    if len(orders) != len(ranks):
        raise InvalidInput(f"there are traces of {len(ranks)} ranks, and orders of {len(orders)}")
    columns = (graph.operation, graph.unit, graph.microbatch)
    cells = zip(*(column.tolist() for column in columns), strict=True)
    numbers = {cell: number for number, cell in enumerate(cells)}
    times = np.full((2, len(graph)), np.nan)
    for number, (order, rank) in enumerate(zip(orders, ranks, strict=True)):
        _require_same(order, rank, number)
        for (operation, stage, microbatch, _), it in zip(order.tolist(), rank.passes, strict=True):
            times[:, numbers[operation, stage, microbatch]] = it.start, it.end
        for task, span in _arrivals(graph, numbers, rank, number):
            times[:, task] = span
        if rank.update:
            own = (graph.rank == number) & (graph.operation == Operation.OPTIMIZER)
            times[:, own] = np.array([[rank.update.start], [rank.update.end]])
    return times


def _require_same(order: Order, rank: RecognisedStep, number: int) -> None:
    if len(order) != len(rank.passes):
        raise InvalidInput(
            f"rank {number}: the trace has {len(rank.passes)} passes, and the order {len(order)}"
        )
    ahead = order["operation"] == Operation.FORWARD
    for place, (each, is_forward) in enumerate(zip(rank.passes, ahead, strict=True), 1):
        if (each.operation == Operation.FORWARD) != is_forward:
            raise InvalidInput(
                f"rank {number}: pass {place} of the trace is {each.operation.title}, and not of "
                "the order"
            )


def _arrivals(
    graph: TaskGraph, numbers: Numbers, rank: RecognisedStep, number: int
) -> Iterator[tuple[int, tuple[float, float]]]:
    """Transfers that arrive at a rank, with the times of their receives, as far as known.

    By name, or else the n-th receive is for the n-th pass that waits for one.
    """
    if rank.receives:
        for it in rank.receives:
            task = numbers.get((it.operation, it.sender, it.microbatch))
            if task is not None:
                yield task, (it.start, it.end)
        return
    arriving = np.flatnonzero(graph.is_transfer & (graph.peer == number)).tolist()
    if len(arriving) == len(rank.received):
        waiting = sorted(arriving, key=lambda task: _after(graph, task))
        for task, span in zip(waiting, rank.received, strict=True):
            yield task, (span.start, span.end)


def _unmatched(graph: TaskGraph, ranks: Sequence[RecognisedStep]) -> int:
    """The number of receives of all ranks beyond the transfers that arrive there."""
    arriving = np.bincount(graph.peer[graph.is_transfer], minlength=len(ranks)).tolist()
    return sum(
        max(len(rank.receives or rank.received) - number, 0)
        for rank, number in zip(ranks, arriving, strict=True)
    )


def _after(graph: TaskGraph, transfer: int) -> int:
    """The pass that waits for a transfer."""
    return int(graph.dependents.of(transfer)[0])


def complete_times(graph: TaskGraph, start: Seconds, end: Seconds) -> tuple[Seconds, Seconds]:
    """Times with gaps filled, and no transfer before the pass that makes it."""
    for number in range(len(graph)):
        before = graph.dependencies.of(number)
        ready = end[before].max() if len(before) else np.nanmin(start)
        if np.isnan(end[number]):
            start[number] = end[number] = ready
        elif graph.is_transfer[number]:
            start[number] = max(start[number], ready)
    return start, np.maximum(start, end)


# Clocks


def _clock(graph: TaskGraph) -> Integers:
    """The rank on whose clock each task was measured: of a transfer, the receiver."""
    return np.where(graph.is_transfer, graph.peer, graph.rank)


def _bases(traces: Sequence[Profile]) -> Seconds:
    """The origin of each trace's times, in seconds after the earliest origin."""
    first = min(each.base for each in traces)
    return np.array([(each.base - first) * SECONDS_PER_NANOSECOND for each in traces])


def _shift(graph: TaskGraph, start: Seconds, end: Seconds) -> tuple[Seconds, str]:
    """Seconds to put each rank's clock forward by, and a note about it."""
    carrying = np.flatnonzero(graph.is_transfer)
    after = [_after(graph, task) for task in carrying.tolist()]
    made = np.array([end[graph.dependencies.of(task)].max() for task in carrying.tolist()])
    arrived = np.where(np.isnan(end[carrying]), start[after], end[carrying])
    shift = np.zeros(graph.layout.pp)
    # Longest paths, as Bellman and Ford find them: what still grows after as many rounds as there
    # are ranks grows for ever.
    for _ in range(graph.layout.pp):
        least = shift.copy()
        needed = shift[graph.rank[carrying]] + made - arrived
        np.maximum.at(least, graph.peer[carrying], needed)
        if (least == shift).all():
            return shift, _clock_note(shift)
        shift = least
    return np.zeros(graph.layout.pp), "as in the traces, which contradict each other"


def _clock_note(shift: Seconds) -> str:
    moved = [f"rank {rank} by {in_words(by)}" for rank, by in enumerate(shift.tolist()) if by]
    return f"put forward: {', '.join(moved)}" if moved else "as in the traces"


def counted_operations(graph: TaskGraph, tasks: Flags) -> str:
    """Tasks counted by operation, as text."""
    codes = graph.operation[tasks].tolist()
    return _counted(OPERATIONS[code].called(graph.communication) for code in codes)


def _counted(names: Iterable[str]) -> str:
    """Names counted, most frequent first, as text."""
    counts = Counter(names).most_common()
    counted = [f"{times} {name}" for name, times in counts[:SHOWN]]
    if others := sum(times for _, times in counts[SHOWN:]):
        counted.append(f"{others} others")
    return ", ".join(counted) or NOTHING
