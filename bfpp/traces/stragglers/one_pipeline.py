"""The timeline of one replica's step, from a table of a job's operations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bfpp.schedules import InvalidConfiguration, InvalidInput
from bfpp.schedules.columns import NONE
from bfpp.schedules.operations.operations import Operation
from bfpp.traces.profiles.import_profile import timeline_of_ranks
from bfpp.traces.profiles.profile import TracedRange
from bfpp.traces.profiles.recognise_passes import Receive, RecognisedPass, RecognisedStep
from bfpp.traces.stragglers.chunks import with_chunks
from bfpp.traces.stragglers.kinds import BACKWARD, FORWARD, OPTIMIZER, TRANSFERS
from bfpp.traces.stragglers.rank_operations import Rank
from bfpp.traces.stragglers.typical_step import Operations
from bfpp.traces.timeline.operation_table import OperationTable
from bfpp.traces.timeline.timeline import Timeline

PASSES = {FORWARD: Operation.FORWARD, BACKWARD: Operation.BACKWARD}
CARRIED = {
    FORWARD: Operation.TRANSFER_ACTIVATIONS,
    BACKWARD: Operation.TRANSFER_GRADIENTS,
}


def pipeline_timeline(
    table: OperationTable, step: int | None, replica: int | None, name: str = "trace"
) -> Timeline:
    """The timeline of a step of a replica: by default the last one, of the first replica.

    Raises `InvalidInput` where the table does not have it, or its passes are not one step.
    """
    step = _known(step, table.steps, table.steps[-1], "step")
    replica = _known(replica, table.replicas, table.replicas[0], "replica")
    rows = (table.step == table.steps.index(step)) & (
        table.replica == table.replicas.index(replica)
    )
    own = with_chunks(table.of(rows))
    if not len(own):
        raise InvalidInput(f"there is no operation of replica {replica} in step {step}")
    operations = Operations(
        own.kinds, own.rank, own.kind, own.nth, own.microbatch, own.chunk, own.stage, own.start,
        own.end,
    )  # fmt: skip
    ranks = [_recognised(Rank(operations, number)) for number in range(len(table.ranks))]
    timeline = timeline_of_ranks(ranks, np.zeros(len(ranks)), name=name)
    return replace(timeline, about={"step": step, "replica": replica, **timeline.about})


def _known(given: int | None, known: tuple[int, ...], default: int, what: str) -> int:
    if given is None:
        return default
    if given not in known:
        listed = ", ".join(map(str, known))
        raise InvalidConfiguration(what, f"{given} is not in the table; those that are: {listed}")
    return given


def _recognised(rank: Rank) -> RecognisedStep:
    each = rank.operations
    passes = [_pass(rank, row, kind) for kind in PASSES for row in rank.numbered(kind).tolist()]
    updates = rank.of(OPTIMIZER).tolist()
    names = (each.kinds[kind] for kind in each.kind[rank.all].tolist())
    return RecognisedStep(
        passes=sorted(passes, key=lambda it: it.start),
        are_named=all(it.microbatch is not None for it in passes),
        receives=_receives(rank),
        received=[],
        update=_range(rank, updates[-1]) if updates else None,
        unknown=[name for name in names if name not in {*PASSES, *TRANSFERS, OPTIMIZER}],
    )


def _pass(rank: Rank, row: int, kind: str) -> RecognisedPass:
    each = rank.operations
    microbatch = int(each.microbatch[row])
    return RecognisedPass(
        PASSES[kind],
        rank.stage(row),
        None if microbatch == NONE else microbatch,
        None,
        float(each.start[row]),
        float(each.end[row]),
    )


def _receives(rank: Rank) -> list[Receive]:
    each, receives = rank.operations, []
    for kind, transfer in TRANSFERS.items():
        if transfer.sends:
            continue
        for row, own in rank.transfers(kind).items():
            microbatch = int(each.microbatch[own])
            if rank.is_inside(own, transfer) and microbatch != NONE:
                sender = rank.stage(own) + transfer.stages_on
                times = float(each.start[row]), float(each.end[row])
                receives.append(Receive(CARRIED[transfer.pass_], sender, microbatch, *times))
    return receives


def _range(rank: Rank, row: int) -> TracedRange:
    each = rank.operations
    start, end = float(each.start[row]), float(each.end[row])
    return TracedRange(each.kinds[each.kind[row]], None, start, start, end)
