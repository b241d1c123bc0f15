"""Forward and backward passes, and receives, found in what a profiler saw of a rank.

Known names:

- torch.distributed.pipelining names actions as `PP:2F1` (stage, letter, micro-batch), and GPipe's
  passes `Forward 1` and `Backward 1`.
- Megatron-LM's schedules call `forward_step` and `backward_step`, which a profile with stacks has,
  and one of Nsight Systems that traces these functions.
- Zero bubble's runtime names ranges `F3.1.0` (micro-batch, chunk, slice of the sequence). `B3` is
  the gradient of the input where there is a `W3`, and else all of the backward pass.

Where nothing is named (as by PyTorch's 1F1B), passes are runs of operators: one ends where the
rank communicates, or where forward and backward meet. What autograd runs is backward; forward are
the operators that autograd comes back to.

A range is open while a pass waits for what it receives; so a pass is what is left of its range
without that wait, or the kernels that were launched in it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import NamedTuple

from bfpp.schedules.operations import OPERATIONS, Operation
from bfpp.schedules.torch_format import CARRIED, MalformedOrders, steps_of
from bfpp.traces.recorded import COMMUNICATES, STEP, Recorded, TracedRange, outermost, within


class RecognisedPass(NamedTuple):
    """A pass that a thread of the host ran; its stage and micro-batch, where its name says so.

    Or else its chunk: which one of its rank's stages it is of.
    """

    operation: Operation
    stage: int | None
    microbatch: int | None
    thread: object
    start: float
    end: float
    chunk: int | None = None


class Receive(NamedTuple):
    """A transfer by the stage that sent it, and from when to when the rank received it."""

    operation: Operation
    sender: int
    microbatch: int
    start: float
    end: float


@dataclass(frozen=True)
class Recognised:
    """What is known of a rank's step.

    `receives` are those of which it is known what arrived; `received` are all of them. `unknown`
    are the names of annotations that mean nothing here.
    """

    passes: list[RecognisedPass]
    are_named: bool
    receives: list[Receive]
    received: list[TracedRange]
    update: TracedRange | None
    unknown: list[str]


_ACTION = "PP:"
_AUTOGRAD = "autograd::engine::evaluate_function"
_NUMBERED = re.compile(r"(Forward|Backward) (\d+)")
_FUNCTION = re.compile(r"(?:.*[:.] ?)?(forward|backward)_step")
_CHUNKED = re.compile(r"([FBW])(\d+)(?:\.(\d+)(?:\.0)?)?")
_RECEIVE = re.compile(r"PP:(\d+)RECV_([FB])(\d+)")
_RECEIVING = re.compile(r"gloo:recv|nccl:recv")
_UPDATE = re.compile(r"Optimizer\.step#")
_KNOWN = re.compile(
    r"PP:|gloo:|nccl|Optimizer\.|(Forward|Backward) \d"
    r"|[FBW]\d+(\.\d+)*$|(.*[:.] ?)?(forward|backward)_step$"
)
"""Names that have a meaning, whether or not a timeline has a place for them."""

_KINDS = {"forward": Operation.FORWARD, "backward": Operation.BACKWARD}
_LETTERS = {"F": Operation.FORWARD, "B": Operation.BACKWARD, "W": Operation.BACKWARD_WEIGHT}


def recognised(seen: Recorded) -> Recognised:
    """What a rank did."""
    spans = chain(seen.annotations, seen.functions)
    named_by = {span: passes for span in spans if (passes := _named_so(seen, span))}
    # Functions of one name may call each other.
    named = [it for span in outermost(named_by) for it in named_by[span]]
    kernels = [it for it in seen.kernels if "SendRecv" in it.name]
    received = kernels or [it for it in seen.annotations if _RECEIVING.match(it.name)]
    found = _halved(named) or list(_by_operators(seen))
    passes = [_computing(seen, it, received) for it in found]
    updates = [it for it in seen.annotations if _UPDATE.match(it.name)]
    return Recognised(
        passes=_joined(sorted(passes, key=lambda it: it.start)),
        are_named=bool(named),
        receives=list(_receives(seen, received)),
        received=received,
        update=_on_device(seen, updates[-1]) if updates else None,
        unknown=[
            it.name
            for it in seen.annotations
            if not _KNOWN.match(it.name) and not STEP.fullmatch(it.name)
        ],
    )


def _named_so(seen: Recorded, span: TracedRange) -> list[RecognisedPass]:
    """The passes that a range's name says it is: none, one, or the two of a block."""
    whole = span.thread, span.start, span.end
    if found := _NUMBERED.fullmatch(span.name):
        return [RecognisedPass(_KINDS[found[1].lower()], None, int(found[2]), *whole)]
    if found := _FUNCTION.fullmatch(span.name):
        return [RecognisedPass(_KINDS[found[1]], None, None, *whole)]
    if found := _CHUNKED.fullmatch(span.name):
        return [RecognisedPass(_LETTERS[found[1]], None, int(found[2]), *whole, int(found[3] or 0))]
    if not span.name.startswith(_ACTION):
        return []
    try:
        steps = list(steps_of(span.name.removeprefix(_ACTION)))
    except MalformedOrders:
        return []
    parts = [(span.start, span.end)]
    if len(steps) > 1:  # PyTorch runs the passes of a block in turn
        parts = [(it.start, it.end) for it in _by_operators(seen.during(span))]
    return [
        RecognisedPass(OPERATIONS[operation], stage, microbatch, span.thread, *times)
        for (operation, stage, microbatch, _), times in zip(steps, parts, strict=False)
    ]


def _halved(passes: Sequence[RecognisedPass]) -> list[RecognisedPass]:
    """Of chunks, the backward passes that have a second half are first halves."""
    halves = {
        (it.microbatch, it.chunk) for it in passes if it.operation == Operation.BACKWARD_WEIGHT
    }
    return [
        it._replace(operation=Operation.BACKWARD_INPUT)
        if it.operation == Operation.BACKWARD
        and it.chunk is not None
        and (it.microbatch, it.chunk) in halves
        else it
        for it in passes
    ]


def _joined(passes: Sequence[RecognisedPass]) -> list[RecognisedPass]:
    """Each run of ranges with one action as one pass, as our own traces of several units have."""
    joined: list[RecognisedPass] = []
    for it in passes:
        if it.stage is not None and joined and it[:3] == joined[-1][:3]:
            joined[-1] = joined[-1]._replace(end=it.end)
        else:
            joined.append(it)
    return joined


def _by_operators(seen: Recorded) -> Iterator[RecognisedPass]:
    """Runs of operators that are of one kind, with no communication between them."""
    kinds = ((_kind(seen, it), it) for it in seen.operators)
    known = ((kind, it) for kind, it in kinds if kind)
    for kind, members in groupby(known, key=lambda pair: pair[0]):
        if kind in _KINDS:
            run = [it for _, it in members]
            yield RecognisedPass(_KINDS[kind], None, None, run[0].thread, run[0].start, run[-1].end)


def _kind(seen: Recorded, operator: TracedRange) -> str:
    """Of which pass an operator is, or that it communicates, or nothing."""
    if COMMUNICATES.match(operator.name):
        return "communication"
    if operator.name.startswith(_AUTOGRAD):
        return "backward"
    next_kept = bisect_left(seen.kept, operator.start)
    is_kept = next_kept < len(seen.kept) and seen.kept[next_kept] <= operator.end
    return "forward" if is_kept else ""


def _computing(
    seen: Recorded, it: RecognisedPass, received: Sequence[TracedRange]
) -> RecognisedPass:
    """The pass without its wait; a half may have nothing else, and lasts no time.

    On a device, from its first to its last kernel. On the host, what Python does around the
    operators is part of the pass, but not what comes before its receive has ended, nor
    communication before its first or after its last operator.
    """
    if not seen.work:
        return it  # the profile has annotations alone
    span = TracedRange("", it.thread, it.start, it.start, it.end)
    parts = _begun(seen, seen.work, span)
    if not parts:
        return it._replace(start=it.end)
    first, last = min(part.start for part in parts), max(part.end for part in parts)
    if seen.kernels:
        return it._replace(start=first, end=last)
    computing = set(parts)
    others = [each for each in _begun(seen, seen.operators, span) if each not in computing]
    before = [each.end for each in (*received, *others) if it.start < each.end <= first]
    after = [each.start for each in others if each.start >= last]
    return it._replace(start=max([it.start, *before]), end=min([it.end, *after]))


def _on_device(seen: Recorded, span: TracedRange) -> TracedRange:
    """From the first to the last kernel that was launched in a range; itself without any."""
    kernels = within(seen.kernels, span)
    if not kernels:
        return span
    return span._replace(start=min(it.start for it in kernels), end=max(it.end for it in kernels))


def _begun(
    seen: Recorded, ranges: Sequence[TracedRange], span: TracedRange
) -> Sequence[TracedRange]:
    """What began in a range: by its own thread, but kernels may be launched for it by others."""
    inside = within(ranges, span)
    return inside if seen.kernels else [it for it in inside if it.thread == span.thread]


def _receives(seen: Recorded, received: Sequence[TracedRange]) -> Iterator[Receive]:
    """What arrived in ranges that say what they receive."""
    for span in seen.annotations:
        found = _RECEIVE.fullmatch(span.name)
        inside = _begun(seen, received, span) if found else ()
        if found and inside:
            operation, stages_on = CARRIED[found[2]]
            sender, microbatch = int(found[1]) - stages_on, int(found[3])
            yield Receive(operation, sender, microbatch, inside[0].start, inside[-1].end)
