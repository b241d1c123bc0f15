"""Offloading pass of the lowering: which activations leave, and when they are reloaded.

With `Communication.offload_ahead` of n, a reload begins with the backward pass n before the one
that needs it (n = 1: while one backward pass runs, the next one's activations come). For the first
ones of a rank, which have fewer before them, the passes before the first backward pass count
instead. The other way, a pass waits until no more than n offloads before it are unfinished, and so
does a reload that begins with it. So what a device holds is bounded by its order, however slow the
copies are.
"""

from __future__ import annotations

import numpy as np

from bfpp.schedules.columns import NONE, Integers, place_in_segment
from bfpp.schedules.errors import InvalidConfiguration
from bfpp.schedules.lowering.draft import Draft, Tasks
from bfpp.schedules.lowering.step_table import Steps
from bfpp.schedules.operations.operations import Operation


def add_offloads(draft: Draft, steps: Steps) -> None:
    """Add copies of activations to the host after a forward pass, back before its backward pass.

    For passes with enough others in between, one of them while the activations are not resident.
    """
    least, ahead = draft.communication.offload, draft.communication.offload_ahead
    require_backward(steps)
    begin = np.where(steps.block == NONE, np.arange(len(steps.rank)), steps.block)
    end = np.where(steps.block == NONE, begin, begin + 1)
    forward, backward = _passes(steps, draft.layout.microbatches)
    reload = _reloads(steps, backward, ahead, begin)
    away = (backward - forward > least) & (reload > end[forward] + 1)
    forward, backward, reload = forward[away], backward[away], reload[away]
    in_order = np.argsort(forward)
    offloaded = forward[in_order]
    offload = draft.add(len(offloaded), _tasks(steps, Operation.OFFLOAD, offloaded))
    draft.depend(offload, offloaded)
    waits_for = np.full(len(steps.rank), NONE, dtype=np.int32)
    same = steps.rank[offloaded[:-ahead]] == steps.rank[offloaded[ahead:]]
    waiting, left = end[offloaded[ahead:][same]] + 1, offload[:-ahead][same]
    waits_for[waiting] = left
    draft.depend(waiting, left)
    when = _tasks(steps, Operation.RELOAD, backward)
    task = draft.add(len(backward), when._replace(round=steps.round[reload - 1]))
    own = np.empty_like(offload)
    own[in_order] = offload
    draft.depend(task, own)
    draft.depend(task, reload - 1)
    left = waits_for[reload]
    others = (left != NONE) & (left != own)
    draft.depend(task[others], left[others])
    draft.depend(backward, task)


def require_backward(steps: Steps) -> None:
    """Raise `InvalidConfiguration` for an evaluation."""
    if not steps.adds_gradients.any():
        raise InvalidConfiguration("offload", "an evaluation keeps no activations")


def _passes(steps: Steps, microbatches: int) -> tuple[Integers, Integers]:
    """The forward pass of each backward pass or input half, and these, rank by rank in order."""
    cell = steps.unit.astype(np.int64) * microbatches + steps.microbatch
    backward = np.flatnonzero(steps.produces_input_grad).astype(np.int32)
    forward = np.flatnonzero(steps.is_forward).astype(np.int32)
    of_cell = np.empty(len(forward), dtype=np.int32)
    of_cell[cell[forward]] = forward
    return of_cell[cell[backward]], backward


def _reloads(steps: Steps, backward: Integers, ahead: int, begin: Integers) -> Integers:
    """The pass with which each reload may begin; a block's first."""
    begins = np.append(True, np.diff(steps.rank[backward]) != 0)
    turn = place_in_segment(begins)
    first = np.arange(len(backward)) - turn
    ahead_of_first = np.maximum(ahead - turn, 0)
    reload = backward[np.maximum(np.arange(len(backward)) - ahead, first)] - ahead_of_first
    begins_with: Integers = begin[np.maximum(reload, 0)]
    return begins_with


def _tasks(steps: Steps, operation: Operation, step: Integers) -> Tasks:
    return Tasks(
        operation, steps.rank[step], steps.unit[step], steps.round[step], steps.microbatch[step],
    )  # fmt: skip
