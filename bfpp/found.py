"""What a search has found, on disk: a journal to resume from, and tables to keep."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from schedules import InvalidConfiguration
from sim.search import Configuration, Outcome, Problem, outcome_of


class Journal:
    """The outcomes of one problem; with a path, each is on disk as soon as it is known.

    The first line says which model, cluster and number of GPUs the file is
    about; a file about others is refused. A last line that an interruption
    left unfinished is dropped.
    """

    def __init__(self, path: Path | None, problem: Problem) -> None:
        self.outcomes: list[Outcome] = []
        self._path = path
        subject = json.dumps(
            {
                "model": asdict(problem.model),
                "cluster": asdict(problem.cluster),
                "gpus": problem.gpus,
            }
        )
        if path is None:
            return
        if path.exists() and path.stat().st_size:
            self._read(path, subject)
        else:
            path.write_text(subject + "\n")

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Keep some more outcomes."""
        new = list(outcomes)
        self.outcomes += new
        if self._path:
            with self._path.open("a") as file:
                file.writelines(json.dumps(outcome.record) + "\n" for outcome in new)

    def _read(self, path: Path, subject: str) -> None:
        text = path.read_text()
        whole, _, unfinished = text.rpartition("\n")
        first, *lines = whole.split("\n")
        try:
            if json.loads(first)["gpus"] and first != subject:
                raise InvalidConfiguration("journal", f"{path} is about another search")
            self.outcomes = [outcome_of(json.loads(line)) for line in lines]
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError):
            raise InvalidConfiguration("journal", f"{path} is not a search's journal") from None
        if unfinished:
            path.write_text(whole + "\n")


def write_table(path: Path, outcomes: Sequence[Outcome], front: set[Configuration]) -> None:
    """Write outcomes, one a row, as the file's name says: .csv or .parquet.

    Raises `InvalidConfiguration` for other names, or if the format's package is
    not installed.
    """
    if path.suffix not in WRITERS:
        known = " or ".join(WRITERS)
        raise InvalidConfiguration("out", f"{path.name!r} does not end in {known}")
    rows = [_flat({**each.record, "pareto": each.configuration in front}) for each in outcomes]
    WRITERS[path.suffix](path, rows)


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """The row with a column for each number of a table inside it."""
    parts = {name: value for name, value in row.items() if isinstance(value, dict)}
    inner = {f"{name}.{key}": number for name in parts for key, number in parts[name].items()}
    return {name: value for name, value in row.items() if name not in parts} | inner


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)


def _write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    try:
        from pyarrow import Table
        from pyarrow.parquet import write_table as write
    except ModuleNotFoundError:
        raise InvalidConfiguration("out", "Parquet needs the package pyarrow") from None
    write(Table.from_pylist(rows), path)


WRITERS: dict[str, Callable[[Path, list[dict[str, Any]]], None]] = {
    ".csv": _write_csv,
    ".parquet": _write_parquet,
}
