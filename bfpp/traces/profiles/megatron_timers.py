"""Read the timers of Megatron-LM from the log of a run.

Forms that are read, whatever stands before them on a line:

- `(min, max) time across ranks (ms):` and `max time across ranks (ms):`, a line for each timer;
- `times across ranks (ms):` (`--timing-log-option all`): a timer, then a line for each rank;
- `time (ms) | forward-compute: 58.16 | ...`, of one rank, as before release 3.

Times are of one iteration: Megatron-LM divides by those between two reports. A report follows the
line of its iteration. A timer that did not run on a rank is 0 there, which is no measurement.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from bfpp.schedules.errors import InvalidFile

MILLISECONDS = 1e-3

_NUMBER = r"\d+(?:\.\d+)?"
_HEADER = re.compile(r"(\(min, max\) time|max time|times) across ranks \(ms\):")
_RANGE = re.compile(rf"([\w/.-]+) \.*: \(({_NUMBER}), ({_NUMBER})\)")
_LARGEST = re.compile(rf"([\w/.-]+) \.*: ({_NUMBER})\s*$")
_NAME = re.compile(r"([\w/.-]+):\s*$")
_RANK = re.compile(rf"\brank +(\d+): ({_NUMBER})\s*$")
_ONE_LINE = re.compile(r"\btime \(ms\)((?: \| [\w/.-]+: [\d.]+)+)")
_ONE = re.compile(rf"\| ([\w/.-]+): ({_NUMBER})")
_ITERATION = re.compile(r"\biteration +(\d+)/")
_ELAPSED = re.compile(rf"elapsed time per iteration \(ms\): ({_NUMBER})")

MOST_RANKS = 2**20
"""A larger number is none of a rank."""


class NoTimers(InvalidFile):
    """A text without any timers of Megatron-LM."""


@dataclass
class TimedOperation:
    """A timer in one report, in seconds: of each rank, or only the least and the largest."""

    ranks: dict[int, float] = field(default_factory=dict)
    least: float | None = None
    largest: float | None = None


@dataclass
class TimerReport:
    """The timers of one report, and the iteration that it is of, if any was before it."""

    iteration: int | None
    timers: dict[str, TimedOperation] = field(default_factory=dict)


@dataclass
class TimerLog:
    """The reports of a log, and the seconds of the iterations that it names."""

    reports: list[TimerReport] = field(default_factory=list)
    iterations: dict[int, float] = field(default_factory=dict)


def has_timers(text: str) -> bool:
    """True for a text with a report of timers."""
    return bool(_HEADER.search(text) or _ONE_LINE.search(text))


def read_timers(text: str) -> TimerLog:
    """The timers of a log; raises `NoTimers` where there are none."""
    log = TimerLog()
    reader = _Reports(log)
    for line in text.splitlines():
        reader.read(line)
    log.reports = [each for each in log.reports if each.timers]
    if not log.reports:
        raise NoTimers("holds no timers of Megatron-LM: --timing-log-level 2 logs them")
    return log


class _Reports:
    """Reads lines one after the other; what follows a header belongs to its report."""

    def __init__(self, log: TimerLog) -> None:
        self.log = log
        self.iteration: int | None = None
        self.report: TimerReport | None = None
        self.form = ""
        self.timer: TimedOperation | None = None

    def read(self, line: str) -> None:
        """Read the next line."""
        if match := _ITERATION.search(line):
            self.iteration = int(match[1])
            self.report = None
            if elapsed := _ELAPSED.search(line):
                self.log.iterations[self.iteration] = float(elapsed[1]) * MILLISECONDS
        elif match := _HEADER.search(line):
            self.form = match[1]
            self.timer = None
            self._begin()
        elif match := _ONE_LINE.search(line):
            report = self._begin()
            for name, number in _ONE.findall(match[1]):
                if float(number):
                    report.timers[name] = TimedOperation({0: float(number) * MILLISECONDS})
            self.report = None
        elif self.report is not None and not self._continues(line, self.report):
            self.report = None

    def _begin(self) -> TimerReport:
        self.report = TimerReport(self.iteration)
        self.log.reports.append(self.report)
        return self.report

    def _continues(self, line: str, report: TimerReport) -> bool:
        """True if the line belongs to the report."""
        if self.form == "times":
            return self._of_ranks(line, report)
        if match := _RANGE.search(line):
            least, largest = (float(each) * MILLISECONDS for each in match.groups()[1:])
            report.timers[match[1]] = TimedOperation(least=least, largest=largest)
        elif match := _LARGEST.search(line):
            largest = float(match[2]) * MILLISECONDS
            report.timers[match[1]] = TimedOperation(largest=largest)
        return bool(match)

    def _of_ranks(self, line: str, report: TimerReport) -> bool:
        """A timer's name, or a rank's time; ranks of 0, ahead of all that ran, precede the name."""
        if match := _RANK.search(line):
            rank, seconds = int(match[1]), float(match[2]) * MILLISECONDS
            if self.timer is None or (self.timer.ranks and rank <= max(self.timer.ranks)):
                self.timer = None
            elif rank < MOST_RANKS and seconds:
                self.timer.ranks[rank] = seconds
        elif match := _NAME.search(line):
            self.timer = report.timers.setdefault(match[1], TimedOperation())
        return bool(match)


def timer_names(reports: Sequence[TimerReport]) -> list[str]:
    """All timers by name, in the order in which they first appear."""
    return list(dict.fromkeys(name for each in reports for name in each.timers))
