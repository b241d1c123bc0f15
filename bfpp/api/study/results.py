"""Results of a study: each cell measured with an interval beside predicted, and the rankings.

A group is the cells that differ in their schedule, or in its own parameters, alone: its ranking
says which one is best there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median
from typing import Any

from bfpp.api.study.clocks import ClockDrift, clock_drifts
from bfpp.api.study.intervals import MeanInterval, interval, rank_agreement
from bfpp.api.study.journal import Row, StudyJournal
from bfpp.api.study.study import Study, StudyCell, cell_key

NETWORK = "network"

CLOSE, SHARE = 0.1, "within_10_percent"
"""The error of a prediction that counts as close, and its share's name."""


@dataclass(frozen=True)
class CellResult:
    """A cell's repetitions: the mean step time with its interval, and the prediction."""

    cell: StudyCell
    repetitions: int
    measured: MeanInterval
    predicted: float
    parts: Mapping[str, tuple[float, float]]

    @property
    def error(self) -> float:
        """Of the prediction, relative to the mean; positive where it was too slow."""
        return self.predicted / self.measured.mean - 1

    @property
    def why(self) -> tuple[str, float] | None:
        """The part of the mean rank's step that is predicted worst, and by how many seconds.

        None where tasks have no times of their own.
        """
        if not self.parts:
            return None
        errors = {name: predicted - measured for name, (predicted, measured) in self.parts.items()}
        return max(errors.items(), key=lambda each: abs(each[1]))

    @property
    def record(self) -> dict[str, Any]:
        """All of it as JSON; times in seconds."""
        return {
            "network": self.cell.network,
            "values": dict(self.cell.values),
            "repetitions": self.repetitions,
            "measured": self.measured.mean,
            "measured_low": self.measured.low,
            "measured_high": self.measured.high,
            "predicted": self.predicted,
            "low": None,
            "high": None,
            "error": self.error,
            "parts": {
                name: {"predicted": one, "measured": other}
                for name, (one, other) in self.parts.items()
            },
        }


@dataclass(frozen=True)
class RankedCells:
    """Cells that differ in their schedule alone, and how well their ranking was predicted."""

    network: str
    values: Mapping[str, Any]
    results: list[CellResult]

    @property
    def tau(self) -> float | None:
        """Kendall's tau of predicted and measured step times."""
        return rank_agreement(
            [each.predicted for each in self.results],
            [each.measured.mean for each in self.results],
        )

    @property
    def best(self) -> CellResult:
        """The cell with the shortest measured step."""
        return min(self.results, key=lambda each: each.measured.mean)

    @property
    def predicted_best(self) -> CellResult:
        """The cell with the shortest predicted step."""
        return min(self.results, key=lambda each: each.predicted)

    @property
    def loss(self) -> float:
        """The share by which the schedule predicted best is slower than the best."""
        return self.predicted_best.measured.mean / self.best.measured.mean - 1

    @property
    def record(self) -> dict[str, Any]:
        """All of it as JSON."""
        return {
            "network": self.network,
            "values": dict(self.values),
            "cells": len(self.results),
            "kendall_tau": self.tau,
            "best": self.best.cell.schedule,
            "predicted_best": self.predicted_best.cell.schedule,
            "loss": self.loss,
        }


@dataclass(frozen=True)
class StudyResult:
    """All cells that were measured, in the order of the study."""

    study: Study
    about: Mapping[str, Any]
    results: Sequence[CellResult]
    clocks: Sequence[ClockDrift] = ()

    @cached_property
    def groups(self) -> list[RankedCells]:
        """Groups of at least two measured cells."""
        groups: dict[str, RankedCells] = {}
        names = {name for each in self.results for name in each.cell.others}
        for each in self.results:
            cell = each.cell
            key = cell_key(cell.network, {name: cell.value(name) for name in names})
            groups.setdefault(key, RankedCells(cell.network, cell.others, [])).results.append(each)
        return [group for group in groups.values() if len(group.results) > 1]

    @property
    def errors(self) -> list[float]:
        """The size of each cell's error."""
        return [abs(each.error) for each in self.results]

    @property
    def summary(self) -> dict[str, float | int | None]:
        """Numbers on the whole."""
        if not self.results:
            return {"all_cells": len(self.study.cells), "measured": 0}
        taus = [tau for group in self.groups if (tau := group.tau) is not None]
        return {
            "all_cells": len(self.study.cells),
            "measured": len(self.results),
            "median_error": median(self.errors),
            "largest_error": max(self.errors),
            SHARE: sum(error <= CLOSE for error in self.errors) / len(self.results),
            "mean_kendall_tau": fmean(taus) if taus else None,
            "largest_loss": max((group.loss for group in self.groups), default=None),
        }

    @property
    def record(self) -> dict[str, Any]:
        """All of it as JSON."""
        return {
            "title": self.study.title,
            "about": dict(self.about),
            **self.summary,
            "cells": [each.record for each in self.results],
            "groups": [each.record for each in self.groups],
            "clocks": [each.record for each in self.clocks],
            "refused": self.study.refused_record,
        }


def results_of(study: Study, journal: StudyJournal) -> StudyResult:
    """The results of what has been measured so far."""
    return StudyResult(
        study,
        journal.about,
        [_result(cell, journal) for cell in study.cells if journal.of(cell)],
        clock_drifts(study, journal),
    )


def _result(cell: StudyCell, journal: StudyJournal) -> CellResult:
    rows, medians = journal.of(cell), journal.medians(cell)
    return CellResult(
        cell,
        len(rows),
        interval(medians),
        rows[-1]["predicted"],
        {name: _part(rows, name) for row in rows for name in row["parts"]},
    )


def _part(rows: Sequence[Row], name: str) -> tuple[float, float]:
    """A part of a step, predicted and measured; one that is not in a repetition took no time."""
    both = [row["parts"].get(name, (0.0, 0.0)) for row in rows]
    return max(predicted for predicted, _ in both), fmean(measured for _, measured in both)
