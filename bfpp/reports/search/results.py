"""The results of a search on disk: a journal to resume from, and tables."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from bfpp.schedules import InvalidConfiguration, InvalidInput
from bfpp.schedules.families.registry import ORDERS
from bfpp.schedules.formats.python_file import MARK, file_of, with_imported
from bfpp.schedules.reading import read_file
from bfpp.sim.cluster.software_profiles import FITTED
from bfpp.sim.search.objectives import Objective
from bfpp.sim.search.outcomes import Outcome, Outcomes, outcome_of
from bfpp.sim.search.problem import Problem
from bfpp.sim.search.space import Space
from bfpp.terminal.error_lines import blaming
from bfpp.terminal.formats import FOUND_CSV, FOUND_PARQUET, FileFormat
from bfpp.terminal.outputs import Output

CONTENT = "content of the schedule's files"
"""A column of a journal: no name, which a schedule's own parameter could have."""


class Journal:
    """The outcomes of one problem; with a path, each is on disk as soon as it is known.

    The first line says which model, cluster and number of GPUs the file is
    about; a file about others is refused. Results of schedules from files
    that have changed since, or import what has, are not known, and a last line that an
    interruption left unfinished is dropped. Where the file cannot be written any more,
    `failure` says so; outcomes are kept all the same.
    """

    def __init__(self, path: Path | None, problem: Problem) -> None:
        self._parts: list[Outcomes] = []
        self.failure: InvalidInput | None = None
        self._path = path
        self._content_of = cache(_content_of)
        for schedule in problem.rules:
            self._content_of(schedule.reference)  # as the search takes it: it may change later
        subject = json.dumps(
            {
                "format": "bfpp search journal 10",
                "model": asdict(problem.model),
                "cluster": asdict(problem.cluster),
                "implementation": {
                    name: getattr(problem.implementation, name) for name in ("name", *FITTED)
                },
                "gpus": problem.gpus,
                "fixed": dict(problem.fixed),
                "jitter": problem.jitter if problem.objective is Objective.ROBUSTNESS else None,
            }
        )
        if path is None:
            return
        if path.exists() and path.stat().st_size:
            self._read(path, subject, problem)
        else:
            path.write_text(subject + "\n", encoding="utf-8")

    @property
    def outcomes(self) -> Outcomes:
        """All outcomes that are known."""
        return Outcomes.joined(self._parts) if self._parts else Outcomes.of([])

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Keep some more outcomes."""
        new = Outcomes.of(outcomes)
        self._parts += [new] if len(new) else []
        if self._path and not self.failure:
            try:
                with blaming("--journal"), self._path.open("a", encoding="utf-8") as file:
                    file.writelines(json.dumps(self._row(each)) + "\n" for each in new)
            except InvalidInput as error:
                self.failure = error

    def _row(self, outcome: Outcome) -> dict[str, Any]:
        content = self._content_of(outcome.configuration.schedule.reference)
        return outcome.whole_record | {CONTENT: content}

    def _read(self, path: Path, subject: str, problem: Problem) -> None:
        text = read_file(path)
        whole, _, unfinished = text.rpartition(b"\n")
        first, *lines = whole.split(b"\n")
        try:
            if json.loads(first)["gpus"] and first != subject.encode():
                raise InvalidConfiguration("journal", f"{path} is about another search")
            rows = [json.loads(line) for line in lines]
            # Code runs that the search names, not what a journal does.
            own = {schedule.reference for schedule in problem.rules}
            known = [
                outcome_of(row)
                for row in rows
                if (row["schedule"] in own or MARK not in row["schedule"])
                and row[CONTENT] == self._content_of(row["schedule"])
            ]
            # Searches that ran at once have each added what the others have, too.
            once = {each.configuration: each for each in known}
            self._parts = [Outcomes.of(once.values())] if once else []
        except InvalidConfiguration:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise InvalidConfiguration("journal", f"{path} is not a search's journal") from None
        if unfinished:
            with path.open("r+b") as file:
                file.truncate(len(whole) + 1)


def _content_of(reference: str) -> list[str]:
    """Hashes of a schedule's files; a registered schedule has none."""
    files = with_imported(file_of(reference)) if MARK in reference else ()
    if reference.endswith(ORDERS):
        files = (Path(reference),)
    return [sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()]


def write_table(table: Output, outcomes: Outcomes, front: Space) -> None:
    """Write outcomes, one a row, in the format of the file's name; some are on the front."""
    columns = outcomes.columns(pareto=outcomes.space.are_in(front))
    with table.written() as path:
        WRITERS[table.format](path, columns)


def _write_csv(path: Path, columns: Mapping[str, Any]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(each.tolist() for each in columns.values()), strict=True))


def _write_parquet(path: Path, columns: Mapping[str, Any]) -> None:
    import pyarrow
    from pyarrow.parquet import write_table as write

    table = pyarrow.table({name: pyarrow.array(each.tolist()) for name, each in columns.items()})
    write(table.replace_schema_metadata({"generator": "bfpp search"}), path)


WRITERS: dict[FileFormat, Callable[[Path, Mapping[str, Any]], None]] = {
    FOUND_CSV: _write_csv,
    FOUND_PARQUET: _write_parquet,
}
