"""Recognise forward and backward passes, and receives, in a profile of a rank.

Theory of operation

1. *By name.* Ranges of annotations and functions with a known name are passes, the outermost
   where they are nested:
   - torch.distributed.pipelining names actions `PP:2F1` (stage, letter, micro-batch), and GPipe's
     passes `Forward 1` and `Backward 1`. It runs the two passes of a block in turn.
   - Megatron-LM's schedules call `forward_step` and `backward_step`: in a profile with stacks, or
     of Nsight Systems if it traces these functions.
   - Zero bubble's runtime names ranges `F3.1.0` (micro-batch, chunk, slice of the sequence). `B3`
     is the gradient of the input where there is a `W3`, and else the whole backward pass.
2. *By operators,* where nothing is named (as by PyTorch's 1F1B). A pass is a run of operators; it
   ends where the rank communicates, or where forward and backward meet. Backward operators are
   those that autograd runs, forward ones those that have a backward operator.
3. *Without waits.* A range is open while a pass waits for its receive. So a pass is the part of
   its range after that, or from the first to the last kernel launched in it.
4. *Receives* are known by name (`PP:2RECV_F1`), or only counted: `import_profile` then takes the
   n-th for the n-th pass that waits for one.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import NamedTuple

from bfpp.schedules.formats.torch_csv import CARRIED, MalformedOrders, steps_of
from bfpp.schedules.operations.operations import OPERATIONS, Operation
from bfpp.traces.profiles.profile import (
    COMMUNICATES,
    STEP,
    Profile,
    TracedRange,
    outermost,
    within,
)


class RecognisedPass(NamedTuple):
    """A pass and the thread of the host that ran it; stage and micro-batch if its name has them.

    `chunk` is the stage among those of its rank, where the name has that instead.
    """

    operation: Operation
    stage: int | None
    microbatch: int | None
    thread: object
    start: float
    end: float
    chunk: int | None = None


class Receive(NamedTuple):
    """A receive of a rank, by the stage that sent it."""

    operation: Operation
    sender: int
    microbatch: int
    start: float
    end: float


@dataclass(frozen=True)
class RecognisedStep:
    """The passes, receives and update of a rank's step.

    `receives` are those whose contents are known by name; `received` are all of them. `unknown`
    are the names of annotations that are not recognised.
    """

    passes: list[RecognisedPass]
    are_named: bool
    receives: list[Receive]
    received: list[TracedRange]
    update: TracedRange | None
    unknown: list[str]


_ACTION = "PP:"
_AUTOGRAD = "autograd::engine::evaluate_function"
_NUMBERED = re.compile(r"(Forward|Backward) (\d{1,9})")
_FUNCTION = re.compile(r"(?:.*[:.] ?)?(forward|backward)_step")
_CHUNKED = re.compile(r"([FBW])(\d{1,9})(?:\.(\d{1,9})(?:\.0)?)?")
_RECEIVE = re.compile(r"PP:(\d{1,9})RECV_([FB])(\d{1,9})")
_RECEIVING = re.compile(r"gloo:recv|nccl:recv")
_UPDATE = re.compile(r"Optimizer\.step#")
_KNOWN = re.compile(
    r"PP:|gloo:|nccl|Optimizer\.|(Forward|Backward) \d"
    r"|[FBW]\d+(\.\d+)*$|(.*[:.] ?)?(forward|backward)_step$"
)
"""Names that have a meaning, whether or not a timeline has a place for them."""

_KINDS = {"forward": Operation.FORWARD, "backward": Operation.BACKWARD}
_LETTERS = {"F": Operation.FORWARD, "B": Operation.BACKWARD, "W": Operation.BACKWARD_WEIGHT}


def recognise_passes(seen: Profile) -> RecognisedStep:
    """Recognise the passes of a rank in its profile."""
    spans = chain(seen.annotations, seen.functions)
    named_by = {span: passes for span in spans if (passes := _passes_named(seen, span))}
    # Functions of one name may call each other.
    named = [it for span in outermost(named_by) for it in named_by[span]]
    kernels = [it for it in seen.kernels if "SendRecv" in it.name]
    received = kernels or [it for it in seen.annotations if _RECEIVING.match(it.name)]
    ranges = _halved(named) or list(_by_operators(seen))
    passes = [_computing(seen, it, received) for it in ranges]
    updates = [it for it in seen.annotations if _UPDATE.match(it.name)]
    return RecognisedStep(
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


def _passes_named(seen: Profile, span: TracedRange) -> list[RecognisedPass]:
    """The passes that a range's name stands for: none, one, or the two of a block."""
    whole = span.thread, span.start, span.end
    if match := _NUMBERED.fullmatch(span.name):
        return [RecognisedPass(_KINDS[match[1].lower()], None, int(match[2]), *whole)]
    if match := _FUNCTION.fullmatch(span.name):
        return [RecognisedPass(_KINDS[match[1]], None, None, *whole)]
    if match := _CHUNKED.fullmatch(span.name):
        return [RecognisedPass(_LETTERS[match[1]], None, int(match[2]), *whole, int(match[3] or 0))]
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
    """Chunks' backward passes as halves, `BACKWARD_INPUT`, where there is a weight half (`W`)."""
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
    """Neighbouring ranges with one action as one pass: a trace of bfpp has one for each unit."""
    joined: list[RecognisedPass] = []
    for it in passes:
        if it.stage is not None and joined and it[:3] == joined[-1][:3]:
            joined[-1] = joined[-1]._replace(end=it.end)
        else:
            joined.append(it)
    return joined


def _by_operators(seen: Profile) -> Iterator[RecognisedPass]:
    """Passes as runs of operators of one kind, with no communication between them."""
    kinds = ((_kind(seen, it), it) for it in seen.operators)
    known = ((kind, it) for kind, it in kinds if kind)
    for kind, members in groupby(known, key=lambda pair: pair[0]):
        if kind in _KINDS:
            run = [it for _, it in members]
            yield RecognisedPass(_KINDS[kind], None, None, run[0].thread, run[0].start, run[-1].end)


def _kind(seen: Profile, operator: TracedRange) -> str:
    """The kind of an operator: "forward", "backward", "communication", or none of these."""
    if COMMUNICATES.match(operator.name):
        return "communication"
    if operator.name.startswith(_AUTOGRAD):
        return "backward"
    begins, place = seen.differentiated, bisect_left(seen.differentiated, operator.start)
    is_forward = place < len(begins) and begins[place] <= operator.end
    return "forward" if is_forward else ""


def _computing(
    seen: Profile, it: RecognisedPass, received: Sequence[TracedRange]
) -> RecognisedPass:
    """The pass without its wait for a receive; of no length if it has no work of its own.

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


def _on_device(seen: Profile, span: TracedRange) -> TracedRange:
    """The range from the first to the last kernel launched in a range; itself without any."""
    kernels = within(seen.kernels, span)
    if not kernels:
        return span
    return span._replace(start=min(it.start for it in kernels), end=max(it.end for it in kernels))


def _begun(
    seen: Profile, ranges: Sequence[TracedRange], span: TracedRange
) -> Sequence[TracedRange]:
    """Ranges that began in a range, on its own thread; kernels, from any thread."""
    inside = within(ranges, span)
    return inside if seen.kernels else [it for it in inside if it.thread == span.thread]


def _receives(seen: Profile, received: Sequence[TracedRange]) -> Iterator[Receive]:
    """Receives in ranges that are named by their message."""
    for span in seen.annotations:
        match = _RECEIVE.fullmatch(span.name)
        inside = _begun(seen, received, span) if match else ()
        if match and inside:
            operation, stages_on = CARRIED[match[2]]
            sender, microbatch = int(match[1]) - stages_on, int(match[3])
            yield Receive(operation, sender, microbatch, inside[0].start, inside[-1].end)
