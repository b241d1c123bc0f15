"""Timers of Megatron-LM explained: what each rank spent on what, and which rank is slow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from bfpp.schedules.reading import read_file
from bfpp.terminal.error_lines import blaming
from bfpp.traces.profiles.megatron_timers import (
    TimerLog,
    TimerReport,
    has_timers,
    read_timers,
    timer_names,
)

SUFFIXES = (".log", ".txt", ".out", ".err")
"""Names of logs end in these."""

COMPUTE = ("forward-compute", "backward-compute")
"""Timers of passes, from level 2 on."""


class Timer(NamedTuple):
    """A timer over all reports of iterations, in seconds of an iteration; None: not measured.

    `least` and `largest` are the means of the least and largest rank's; `ranks` of each rank.
    """

    name: str
    reports: int
    least: float | None
    largest: float
    ranks: dict[int, float] | None

    @property
    def slowest(self) -> int | None:
        """The rank that takes longest, where ranks are known and differ."""
        if not self.ranks or len(self.ranks) == 1:
            return None
        return max(self.ranks, key=self.ranks.__getitem__)

    @property
    def excess(self) -> float | None:
        """By how much the slowest rank takes longer than the median one."""
        if not self.ranks or self.slowest is None:
            return None
        return self.ranks[self.slowest] / median(self.ranks.values()) - 1


@dataclass(frozen=True, eq=False)
class TimerExplanation:
    """The timers of a run."""

    log: TimerLog

    @cached_property
    def reports(self) -> list[TimerReport]:
        """Reports of iterations; all, where none is of one."""
        of_iterations = [each for each in self.log.reports if each.iteration is not None]
        return of_iterations or self.log.reports

    @cached_property
    def timers(self) -> list[Timer]:
        """Each timer, in the order of the log."""
        return [self._timer(name) for name in timer_names(self.reports)]

    def _timer(self, name: str) -> Timer:
        reports = [each.timers[name] for each in self.reports if name in each.timers]
        by_rank: dict[int, list[float]] = {}
        for each in reports:
            for rank, seconds in each.ranks.items():
                by_rank.setdefault(rank, []).append(seconds)
        if by_rank:
            ranks = {rank: fmean(by_rank[rank]) for rank in sorted(by_rank)}
            return Timer(name, len(reports), min(ranks.values()), max(ranks.values()), ranks)
        least = [each.least for each in reports if each.least is not None]
        largest = [each.largest for each in reports if each.largest is not None]
        return Timer(
            name, len(reports), fmean(least) if least else None, fmean(largest or [0.0]), None
        )

    @property
    def iteration_seconds(self) -> float | None:
        """Mean seconds of the iterations that the log names; None where it names none."""
        return fmean(self.log.iterations.values()) if self.log.iterations else None

    @property
    def not_measured(self) -> Iterator[str]:
        """Sentences on what the log does not say."""
        if self.iteration_seconds is None:
            yield "Not measured: the time of an iteration."
        missing = [name for name in COMPUTE if name not in {each.name for each in self.timers}]
        if missing:
            yield f"Not measured: {' and '.join(missing)} (--timing-log-level 2 logs them)."
        if not any(each.ranks and len(each.ranks) > 1 for each in self.timers):
            yield "Not measured: which rank is slow (--timing-log-option all logs each rank)."

    @property
    def verdict(self) -> Iterator[str]:
        """The slowest rank in each kind of pass, where ranks are known."""
        for each in self.timers:
            if each.name in COMPUTE and each.excess is not None:
                yield (
                    f"Rank {each.slowest} is the slowest in {each.name}: {each.excess:+.1%} "
                    "against the median rank."
                )

    def record(self) -> dict[str, Any]:
        """The explanation as a JSON object; times in seconds."""
        return {
            "reports": len(self.reports),
            "iteration_seconds": self.iteration_seconds,
            "timers": [
                {
                    "timer": each.name,
                    "reports": each.reports,
                    "least": each.least,
                    "largest": each.largest,
                    "ranks": each.ranks and {str(rank): it for rank, it in each.ranks.items()},
                    "slowest_rank": each.slowest,
                    "slowest_excess": each.excess,
                }
                for each in self.timers
            ],
            "not_measured": list(self.not_measured),
        }


def is_timer_log(name: str) -> bool:
    """True for the log of a run that has timers."""
    path = Path(name)
    try:
        return path.suffix in SUFFIXES and path.is_file() and has_timers(_text(path))
    except OSError:
        return False


def load_timers(path: Path, option: str) -> TimerExplanation:
    """The timers of a log; the option is named where the file is at fault."""
    with blaming(f"{option}: {path}"):
        return TimerExplanation(read_timers(_text(path)))


def _text(path: Path) -> str:
    return read_file(path).decode("utf-8", errors="replace")
