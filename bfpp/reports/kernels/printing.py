"""Traces of any ranks on the terminal: where their devices' time goes, rank by rank."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.text import Text

from bfpp.api.recorded.kernels import TracedRank, TraceExplanation, load_traces
from bfpp.options import shared
from bfpp.reports.tables import print_idle, print_shares
from bfpp.schedules import InvalidConfiguration
from bfpp.terminal.error_lines import one_line
from bfpp.terminal.printing import RANKS_SHOWN, counted, output, print_json, print_table
from bfpp.traces.kernels.breakdown import Called, TimeParts
from bfpp.traces.profiles.device_profile import ActivityKind
from bfpp.traces.timeline.units import in_words

SHOWN = 8
"""Kernels, collectives and streams in text; JSON has more."""

LONGEST = 60
"""Characters of a kernel's name."""

UNKNOWN = "not measured"

COLUMNS = "seconds", "compute", "exposed comm.", "exposed copies", "idle", "overlapped comm."


def explain_traces(options: argparse.Namespace) -> int:
    """Explain the traces of some ranks."""
    for name in ("set", "against", "html"):
        if getattr(options, name):
            raise InvalidConfiguration(
                name, "is of a timeline: bfpp import makes one of a pipeline's traces"
            )
    if given := shared.given(options):
        raise InvalidConfiguration(min(given), "a trace is as it ran")
    explained = load_traces([Path(each) for each in (options.schedule, *options.traces)], "TRACE")
    if options.json:
        print_json(explained.record())
    else:
        _print(explained)
    return 0


def _print(explained: TraceExplanation) -> None:
    ranks = explained.ranks
    for note in dict.fromkeys(each.replayed for each in ranks if each.replayed):
        _say(f"{note}\n")
    shown = ranks[:RANKS_SHOWN]
    more = f" (the first {len(shown)}; --json has all)" if len(shown) < len(ranks) else ""
    print_table(
        f"Where the devices' time goes, from the first kernel or copy to the last{more}",
        (
            "rank",
            "seconds",
            "compute",
            "exposed comm.",
            "exposed copies",
            "idle",
            "overlapped comm.",
        ),
        [(_name(each), *_row(each.breakdown.whole)) for each in shown],
    )
    if steps := [(each, *each.breakdown.steps[-1]) for each in shown if each.breakdown.steps]:
        print_table(
            "The same while the host was in the last marked step",
            ("rank", "step", *COLUMNS),
            [(_name(rank), str(step.number), *_row(parts)) for rank, step, parts in steps],
        )
    for each in shown[:1]:
        _print_rank(each, of_several=len(ranks) > 1)
    if explained.pipeline and explained.shares:
        _say(f"The ranks are a pipeline; its step takes {in_words(explained.pipeline.step_time)}.")
        print_shares(explained.shares)
        print_idle(explained.pipeline.idle)
    else:
        _say(f"No pipeline is explained: {explained.no_pipeline}.")
    _say_not_measured(ranks)


def _print_rank(rank: TracedRank, of_several: bool) -> None:
    """Print the activities of one rank."""
    breakdown = rank.breakdown
    of = f" of {_name(rank)} (--json has all ranks)" if of_several else ""
    groups = [
        (_group(rank, place), *_called(each))
        for place, each in [*breakdown.by_group.items()][:SHOWN]
    ]
    _print_called(f"Communication{of}, by process group", "group", groups)
    if kernels := _rows(breakdown.by_name(ActivityKind.COMPUTE)):
        title = f"Computing kernels{of} that take longest"
        print_table(title, ("", "number", "seconds"), [row[:3] for row in kernels])
    copies = _rows(breakdown.by_name(ActivityKind.COPY))
    _print_called(f"Copies{of} that take longest", "", copies)
    streams = list(breakdown.by_stream.items())[:SHOWN]
    if streams:
        print_table(
            f"Streams{of}",
            ("device/stream", "kernels and copies", "busy", *(kind.title for kind in ActivityKind)),
            [
                (one_line(name), f"{number:,}", *map(in_words, (busy, *kinds.values())))
                for name, (number, busy, kinds) in streams
            ],
        )
    if rank.passes:
        print_table(
            f"Passes{of}: from the first to the last kernel of each",
            ("", "passes", *COLUMNS),
            [(name, str(each.passes), *_row(each.parts)) for name, each in rank.passes.items()],
        )
    for line in _launches(rank):
        _say(line)


def _name(rank: TracedRank) -> str:
    number, size = rank.devices.rank, rank.devices.world_size
    if number is None:
        return one_line(rank.file)
    return f"rank {number}" + (f" of {size}" if size else "")


def _row(parts: TimeParts | None) -> tuple[str, ...]:
    """The columns of a breakdown."""
    if parts is None:
        return (UNKNOWN,) * 6
    shares = (parts.compute, parts.exposed_communication, parts.exposed_copies, parts.idle)
    hidden = parts.overlapped_communication
    return (
        in_words(parts.seconds),
        *(_with_share(each, parts.seconds) for each in shares),
        _with_share(hidden, parts.communication) if parts.communication else "none ran",
    )


def _with_share(seconds: float, whole: float) -> str:
    return f"{in_words(seconds)} ({seconds / whole:.1%})" if whole else in_words(seconds)


def _group(rank: TracedRank, place: int) -> str:
    group = rank.devices.collectives[place].group
    if group is None:
        return "not said"
    described = f" ({group.description})" if group.description else ""
    return one_line(f"{group.name}{described}" + (f", {group.size} ranks" if group.size else ""))


def _rows(by_name: Mapping[str, Called]) -> list[tuple[str, ...]]:
    return [(_short(name), *_called(each)) for name, each in list(by_name.items())[:SHOWN]]


def _called(each: Called) -> tuple[str, ...]:
    size = UNKNOWN if each.bytes is None else f"{each.bytes:.3g}"
    return f"{each.number:,}", in_words(each.seconds), in_words(each.exposed), size


def _print_called(title: str, first: str, rows: Sequence[Sequence[str]]) -> None:
    if rows:
        print_table(title, (first, "number", "seconds", "beside no compute", "bytes"), rows)


def _short(name: str) -> str:
    name = one_line(name)
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 3]}..."


def _launches(rank: TracedRank) -> Iterator[str]:
    breakdown = rank.breakdown
    if breakdown.delays:
        each = breakdown.delays
        yield (
            f"Launches: {each.launches:,}, from the host's call to the start of what it launched "
            f"{in_words(each.median)} in the median, {in_words(each.largest)} at most."
        )
    if breakdown.whole and breakdown.waiting.for_launch is not None and breakdown.whole.idle:
        before, after = breakdown.waiting.for_launch, breakdown.waiting.after_launch or 0.0
        yield (
            f"Idle time: {in_words(before)} before the host launched what ends it, "
            f"{in_words(after)} after that"
            + (
                f", {in_words(breakdown.waiting.unknown)} unknown."
                if breakdown.waiting.unknown
                else "."
            )
        )


def _say_not_measured(ranks: Sequence[TracedRank]) -> None:
    for rank in ranks[:RANKS_SHOWN]:
        for reason in rank.not_measured:
            _say(f"Not measured, {_name(rank)}: {reason}")
        if fused := sum(each.number for each in rank.fused_communication.values()):
            kernels = counted(fused, "kernel")
            _say(f"Compute of {_name(rank)} has {kernels} that also read other devices' memory.")


def _say(line: str) -> None:
    output().print(Text(line), soft_wrap=True)
