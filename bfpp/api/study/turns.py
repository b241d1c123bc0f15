"""Turns of a study's cells: blocks in random order, until intervals are narrow enough."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from statistics import median

from bfpp.api.study.intervals import interval
from bfpp.api.study.study import Measuring
from bfpp.executor.settings import CALIBRATION


class StudyTurns:
    """The turns of some cells, of which each has been measured so often already.

    `seconds` has the median step of each repetition, by cell. The order in a block follows from
    the seed alone, so that a study that is resumed goes on with the same one.
    """

    def __init__(
        self, measuring: Measuring, seconds: Sequence[Sequence[float]], is_calibrated: bool
    ) -> None:
        self._measuring, self._is_calibrated = measuring, is_calibrated
        self._seconds = [[*each] for each in seconds]

    def next(self) -> int | None:
        """The cell that is next: of those measured least often, the first in their block."""
        if not (due := self.due):
            return None
        if not self._is_calibrated:
            return CALIBRATION
        block = min(len(self._seconds[cell]) for cell in due)
        order = [*range(len(self._seconds))]
        Random(f"{self._measuring.seed} {block}").shuffle(order)  # noqa: S311  no secret
        of_block = (cell for cell in order if cell in due and len(self._seconds[cell]) == block)
        chosen: int = next(of_block)
        return chosen

    @property
    def due(self) -> list[int]:
        """The cells that are to be measured again."""
        enough = (is_enough(self._measuring, each) for each in self._seconds)
        return [cell for cell, is_done in enumerate(enough) if not is_done]

    def taken(self, job: int, seconds: Sequence[float]) -> None:
        """Note a repetition."""
        if job == CALIBRATION:
            self._is_calibrated = True
        else:
            self._seconds[job].append(median(seconds))


def is_enough(measuring: Measuring, seconds: Sequence[float]) -> bool:
    """True if a cell needs no further repetition."""
    if not measuring.least <= len(seconds) < measuring.most:
        return len(seconds) >= measuring.most
    known = interval(seconds)
    return (known.high - known.low) / 2 <= measuring.width * known.mean
