"""Remedies for unevenness in words, of jobs and of experiments: the best one, and a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bfpp.terminal.printing import print_table
from bfpp.traces.stragglers.gains import Remedy
from bfpp.traces.timeline.units import in_words

WORTH = 0.005
"""The gain from which on a remedy is said to help."""

REMEDY_COLUMNS = ("remedy", "saves", "90 % of steps save", "mean step", "what changes")


def best_remedy(remedies: Sequence[Remedy]) -> Iterator[str]:
    """A sentence on the remedy with the largest gain, where one helps."""
    if remedies and (best := remedies[0]).gain is not None and best.gain >= WORTH:
        within = "" if best.low is None else f" (90 % of steps: {_interval(best)})"
        yield f"The best remedy, {best.name}, would save {best.gain:.1%}{within}: {best.change}."


def remedy_rows(remedies: Sequence[Remedy]) -> list[tuple[str, ...]]:
    """Each remedy's gain and interval, as shares of the step, and what it changes."""
    return [
        (
            each.name,
            "cannot be told" if each.gain is None else f"{each.gain:+.1%}",
            "" if each.low is None else _interval(each),
            "" if each.step_time is None else in_words(each.step_time),
            each.change,
        )
        for each in remedies
    ]


def print_remedies(remedies: Sequence[Remedy]) -> None:
    """The table of remedies on the terminal."""
    print_table("Remedies, by what they would save", REMEDY_COLUMNS, remedy_rows(remedies))


def _interval(remedy: Remedy) -> str:
    return f"{remedy.low:+.1%} to {remedy.high:+.1%}"
