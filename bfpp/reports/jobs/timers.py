"""Timers of Megatron-LM on the terminal: what ranks spent on what."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.text import Text

from bfpp.api.recorded.timers import Timer, TimerExplanation, load_timers
from bfpp.options import shared
from bfpp.schedules import InvalidConfiguration
from bfpp.terminal.printing import counted, output, print_json, print_table
from bfpp.traces.timeline.units import in_words

COLUMNS = ("timer", "least", "largest", "largest / least", "slowest rank")


def explain_timers(options: argparse.Namespace) -> int:
    """Explain the timers in a log."""
    for name in ("set", "against", "what_if", "html"):
        if getattr(options, name):
            raise InvalidConfiguration(name, "is of a timeline or a job: a log has sums alone")
    if options.traces:
        raise InvalidConfiguration("traces", f"one log at a time: not {options.traces[0]} too")
    if given := shared.given(options):
        raise InvalidConfiguration(min(given), "a log is as it ran")
    explained = load_timers(Path(options.schedule), "LOG")
    if options.json:
        print_json(explained.record())
    else:
        _print(explained)
    return 0


def _print(explained: TimerExplanation) -> None:
    seconds = explained.iteration_seconds
    took = f": {in_words(seconds)} an iteration" if seconds is not None else ""
    lines = [
        f"{counted(len(explained.reports), 'report')} of timers{took}.",
        *explained.verdict,
        *explained.not_measured,
    ]
    for line in lines:
        output().print(Text(line), soft_wrap=True)
    output().print()
    title = "Mean seconds of an iteration, on the fastest and on the slowest rank"
    print_table(title, COLUMNS, [_row(each) for each in explained.timers])


def _row(timer: Timer) -> tuple[str, ...]:
    least = timer.least
    slowest = "" if timer.slowest is None else f"{timer.slowest} ({timer.excess:+.1%})"
    return (
        timer.name,
        "not measured" if least is None else in_words(least),
        in_words(timer.largest),
        f"{timer.largest / least:.3f}" if least else "",
        slowest,
    )
