"""Repetitions on disk, a line each, from which a study goes on and its results follow.

A line is there, whole and on the disk, as soon as its repetition is over; a last line that was
cut off is dropped. The first one says what was measured where.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bfpp.api.study.study import Study, StudyCell, cell_key
from bfpp.schedules import InvalidInput
from bfpp.terminal.error_lines import blaming

FORMAT = "bfpp study journal 1"
NAME = "steps.jsonl"

Row = dict[str, Any]
"""One repetition of a cell."""

CLOCKS = "clocks"
"""The part of a repetition that those on one host may lack."""

NEEDED = ("network", "values", "step_times", "elapsed_times", "predicted", "parts", "ended")


class StudyJournal:
    """The repetitions of a study's cells, in the order in which they ended.

    Raises `InvalidInput` for a file that is no journal, or that of a study of another model, other
    hosts or networks.
    """

    def __init__(self, folder: Path, study: Study, about: Mapping[str, Any] | None = None) -> None:
        self.path = folder / NAME
        self.about: Mapping[str, Any] = about or {}
        self._rows: dict[str, list[Row]] = {}
        if self.path.exists() and self.path.stat().st_size:
            self._read(study)
        elif about is not None:
            self._write({"format": FORMAT, "study": study.digest, "about": dict(about)})

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def of(self, cell: StudyCell) -> list[Row]:
        """The repetitions of a cell."""
        return self._rows.get(cell.key, [])

    def medians(self, cell: StudyCell) -> list[float]:
        """The median step of each repetition."""
        return [median(row["step_times"]) for row in self.of(cell)]

    def add(self, cell: StudyCell, row: Row) -> None:
        """Keep a repetition: on the disk, before anything else is done."""
        whole = {"network": cell.network, "values": dict(cell.values), **row}
        self._write(whole)
        self._rows.setdefault(cell.key, []).append(whole)

    def _write(self, line: Mapping[str, Any]) -> None:
        with blaming("--out"), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _read(self, study: Study) -> None:
        text = self.path.read_bytes()
        whole, _, unfinished = text.rpartition(b"\n")
        first, *lines = whole.split(b"\n")
        try:
            head = json.loads(first)
            if head["format"] != FORMAT:
                raise InvalidInput(f"--out: {self.path} is no journal of a study")
            if head["study"] != study.digest:
                reason = "is of another model, other passes, hosts or networks"
                raise InvalidInput(f"--out: {self.path} {reason}")
            self.about = head["about"]
            for row in map(json.loads, lines):
                key = cell_key(row["network"], row["values"])
                kept = {name: row[name] for name in NEEDED} | {CLOCKS: row.get(CLOCKS)}
                self._rows.setdefault(key, []).append(kept)
        except InvalidInput:
            raise
        except (ValueError, KeyError, TypeError):
            raise InvalidInput(f"--out: {self.path} is no journal of a study") from None
        if unfinished:
            os.truncate(self.path, len(whole) + 1)


def seconds_of(journal: StudyJournal, cells: Sequence[StudyCell]) -> list[list[float]]:
    """The median step of each repetition, by cell."""
    return [journal.medians(cell) for cell in cells]
