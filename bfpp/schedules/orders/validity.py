"""Checker of compute orders: whether they can run, whatever their placement.

Only the orders are given, so nothing is taken for granted: the stages and
micro-batches are those that the orders name. What a step waits for:

    forward          the forward pass of the stage before
    backward, input  its own forward pass, and the gradient from the stage after
    weight           its own input half

A block waits for what both of its passes wait for, and others wait for its end.

Each rule reports what no other rule reports: a wait for a step that is missing,
or that comes too late on the same rank, is not also a deadlock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice, pairwise

import numpy as np

from bfpp.schedules.operations.operations import OPERATIONS, Operation, compute_steps, writers
from bfpp.schedules.orders.actions import action
from bfpp.schedules.orders.steps import Order, Step, wrong_block

MOST_LISTED = 20
"""Violations of one rule that are listed; the others are counted."""

MOST_NAMED = 3
"""Micro-batches, or places, that one message names."""


@dataclass(frozen=True)
class OrderViolation:
    """One broken rule; `steps` are the actions involved, such as `2F3 on rank 1`."""

    rule: str
    message: str
    steps: tuple[str, ...] = ()


def order_violations(orders: Sequence[Order]) -> list[OrderViolation]:
    """All broken rules, in the order of `RULES`; none for orders that can run.

    Takes compute steps alone, as `read_orders` gives them. Lists at most
    `MOST_LISTED` violations of each rule, then one that counts the rest.
    """
    table = _look_up(orders)
    listed: list[OrderViolation] = []
    for rule, violations in RULES.items():
        broken = iter(violations(table))
        listed.extend(OrderViolation(rule, *finding) for finding in islice(broken, MOST_LISTED))
        if more := sum(1 for _ in broken):
            listed.append(OrderViolation(rule, f"and {more} more"))
    return listed


@dataclass(frozen=True)
class _Table:
    """Steps rank by rank; the (rank, position) places of each; steps that come too late.

    `late` holds, for a step and what it waits for, the rank that runs the two
    in the wrong order. Steps are without blocks here: `blocks` holds the rank and the steps
    of each, as they are in the orders, and `over` what is done when a step of a block is.
    """

    ranks: list[list[Step]]
    places: dict[Step, list[tuple[int, int]]]
    late: dict[tuple[Step, Step], int]
    blocks: list[tuple[int, list[Step]]]
    over: dict[Step, tuple[Step, ...]]

    def named(self, *steps: Step) -> tuple[str, ...]:
        """These steps with their ranks, `MOST_LISTED` at most."""
        places = (_on(rank, step) for step in steps for rank, _ in self.of(step))
        return tuple(islice(places, MOST_LISTED))

    def of(self, step: Step) -> list[tuple[int, int]]:
        """The places of a step; none for one that never runs."""
        return self.places.get(step, [])


def _on(rank: int, step: Step) -> str:
    return f"{action(step)} on rank {rank}"


_Finding = tuple[str, tuple[str, ...]]
"""A message, and the steps involved."""


def _look_up(orders: Sequence[Order]) -> _Table:
    ranks = [[_step(*step[:3]) for step in order.tolist()] for order in orders]
    places: dict[Step, list[tuple[int, int]]] = {}
    for rank, steps in enumerate(ranks):
        for position, step in enumerate(steps):
            places.setdefault(step, []).append((rank, position))
    late = {}
    for step, ((rank, position), *_) in places.items():
        for producer in _producers(step):
            made = places.get(producer)
            if made and all(at[0] == rank and at[1] > position for at in made):
                late[step, producer] = rank
    blocks: list[tuple[int, list[Step]]] = []
    over: dict[Step, tuple[Step, ...]] = {}
    for rank, order in enumerate(orders):
        for at in np.flatnonzero(order["fused"]).tolist():
            blocks.append((rank, block := order[at : at + 2].tolist()))
            if not wrong_block(block):
                first, second = ranks[rank][at : at + 2]
                over |= {first: (), second: (first, second)}
    return _Table(ranks, places, late, blocks, over)


def _step(operation: int, stage: int, microbatch: int) -> Step:
    return (operation, stage, microbatch, False)


def _producers(step: Step) -> Iterator[Step]:
    """The steps that a step waits for; a gradient comes from a whole pass or from a half."""
    operation, stage, microbatch, _ = step
    for producer, units_on in _makers(operation):
        yield _step(producer, stage + units_on, microbatch)


@cache
def _makers(operation: int) -> list[tuple[int, int]]:
    """The operations that make the inputs of one, and how many stages on from it."""
    if operation not in compute_steps():
        return []
    return [
        (int(maker), needed.units_on)
        for needed in OPERATIONS[operation].reads
        if needed.datum.buffer is None
        for maker in writers(needed.datum)
    ]


def _placement(table: _Table) -> Iterator[_Finding]:
    """Every rank runs something, and each stage lives on one rank; or on two, which share all."""
    if not any(table.ranks):
        yield "there is no step to run", ()
        return
    first: dict[int, dict[int, Step]] = defaultdict(dict)
    for rank, steps in enumerate(table.ranks):
        if not steps:
            yield f"rank {rank} runs no stage", ()
        for step in steps:
            first[step[1]].setdefault(rank, step)
    are_copies = _are_copies(table, [list(step_of) for step_of in first.values()])
    for stage, step_of in sorted(first.items()):
        if len(step_of) > 1 and not are_copies:
            involved = tuple(_on(rank, step) for rank, step in step_of.items())
            yield f"stage {stage} runs on ranks {_listed(step_of)}", involved


def _are_copies(table: _Table, ranks_of: list[list[int]]) -> bool:
    """True if ranks in pairs share all their stages, and no micro-batch of any."""
    cells = [{step[1:3] for step in steps} for steps in table.ranks]
    held = [{stage for stage, _ in own} for own in cells]
    return all(
        len(ranks) == 2
        and held[ranks[0]] == held[ranks[1]]
        and not cells[ranks[0]] & cells[ranks[1]]
        for ranks in ranks_of
    )


def _numbering(table: _Table) -> Iterator[_Finding]:
    """Stages and micro-batches are numbered from 0, without gaps; operations are of passes."""
    for operation in sorted({step[0] for step in table.places} - set(map(int, compute_steps()))):
        strange = [step for step in table.places if step[0] == operation]
        yield f"operation {operation} is no pass", table.named(*strange)
    names = {1: ("stage", "stages"), 2: ("micro-batch", "micro-batches")}
    for column, (one, several) in names.items():
        numbers = sorted({step[column] for step in table.places})
        if numbers and numbers[0] < 0:
            yield f"{one} {numbers[0]} is below 0", ()
        for below, above in pairwise([-1, *numbers]):
            if (missing := above - below - 1) > 0:
                gap = f"{one} {below + 1} is" if missing == 1 else None
                gap = gap or f"{several} {below + 1} to {above - 1} are"
                yield f"{gap} missing, though there is {one} {above}", ()


def _forward(table: _Table) -> Iterator[_Finding]:
    """Each stage runs each micro-batch forward exactly once."""
    yield from _absent(table, (Operation.FORWARD,), "forward")
    for step, places in sorted(table.places.items(), key=lambda item: item[0][1:3]):
        if step[0] == Operation.FORWARD and len(places) > 1:
            message = f"stage {step[1]} runs micro-batch {step[2]} forward {len(places)} times"
            yield message, table.named(step)


def _backward(table: _Table) -> Iterator[_Finding]:
    """Each stage runs each micro-batch backward exactly once, whole or in two halves."""
    kinds = (Operation.BACKWARD, Operation.BACKWARD_INPUT, Operation.BACKWARD_WEIGHT)
    yield from _absent(table, kinds, "backward")
    for stage, microbatch in sorted({step[1:3] for step in table.places}):
        steps = [_step(kind, stage, microbatch) for kind in kinds]
        times = tuple(len(table.of(step)) for step in steps)
        if any(times) and times not in ((1, 0, 0), (0, 1, 1)):
            ran = [action(step) for step in steps for _ in table.of(step)]
            yield (
                (
                    f"stage {stage} must run micro-batch {microbatch} backward once, whole or as "
                    f"both halves, not as {_listed(ran)}"
                ),
                table.named(*steps),
            )


def _absent(table: _Table, kinds: Sequence[Operation], direction: str) -> Iterator[_Finding]:
    """Per stage, the micro-batches that others run and that it does not."""
    every = sorted({step[2] for step in table.places})
    present: dict[int, set[int]] = {step[1]: set() for step in table.places}
    for operation, stage, microbatch, _ in table.places:
        if operation in kinds:
            present[stage].add(microbatch)
    for stage, ran in sorted(present.items()):
        if count := len(every) - len(ran):
            some = list(islice((one for one in every if one not in ran), MOST_NAMED))
            noun = "micro-batch" if count == 1 else "micro-batches"
            yield (
                f"stage {stage} never runs {noun} {_listed(some, count)} {direction}",
                tuple(action(_step(kinds[0], stage, one)) for one in some),
            )


def _blocks(table: _Table) -> Iterator[_Finding]:
    """A block is a forward and a backward pass that do not wait for each other."""
    for rank, steps in table.blocks:
        if reason := wrong_block(steps):
            yield f"rank {rank}: {reason}", tuple(_on(rank, step) for step in steps)


def _local_order(table: _Table) -> Iterator[_Finding]:
    """A rank runs a step after those of its own that the step waits for."""
    for (step, producer), rank in table.late.items():
        message = f"rank {rank} runs {action(step)} before {action(producer)}, which it waits for"
        yield message, table.named(step, producer)


def _deadlock(table: _Table) -> Iterator[_Finding]:
    """Every rank gets to the end of its order, each waiting where it must."""
    done: set[Step] = set()
    following = [iter(steps) for steps in table.ranks]
    stuck: dict[Step, list[tuple[int, Step]]] = {}
    heads = [(rank, step) for rank, steps in enumerate(following) for step in islice(steps, 1)]
    while heads:
        rank, step = heads.pop()
        if (producer := _unmet(table, step, done)) is not None:
            stuck.setdefault(producer, []).append((rank, step))
            continue
        heads.extend((rank, after) for after in islice(following[rank], 1))
        for ended in table.over.get(step, (step,)):
            done.add(ended)
            heads.extend(stuck.pop(ended, ()))
    for rank, step, producer in sorted((*head, key) for key in stuck for head in stuck[key]):
        where = table.of(producer)[0][0]
        message = f"rank {rank} stops before {action(step)}, which waits for {_on(where, producer)}"
        yield message, (_on(rank, step), _on(where, producer))


def _unmet(table: _Table, step: Step, done: set[Step]) -> Step | None:
    """The first step not done yet that this one waits for."""
    for producer in _producers(step):
        exists = producer in table.places and (step, producer) not in table.late
        if exists and producer not in done:
            return producer
    return None


def _listed(items: Iterable[object], count: int | None = None) -> str:
    """Up to `MOST_NAMED` items, and how many more there are: `0, 1, 2 and 5 more`."""
    texts = [str(item) for item in items]
    more = (count or len(texts)) - len(texts[:MOST_NAMED])
    return ", ".join(texts[:MOST_NAMED]) + (f" and {more} more" if more else "")


RULES: dict[str, Callable[[_Table], Iterable[_Finding]]] = {
    "placement": _placement,
    "numbering": _numbering,
    "forward": _forward,
    "backward": _backward,
    "blocks": _blocks,
    "local order": _local_order,
    "deadlock": _deadlock,
}
"""The rules by name, in the order in which they are reported."""
