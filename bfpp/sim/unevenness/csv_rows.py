"""Rows of a `.csv` file, as lists of cells without the spaces around them."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.reading import read_file


def csv_rows(field: str, path: str) -> list[list[str]]:
    """The rows that hold anything; raises `InvalidConfiguration`, which names the option."""
    lines = file_contents(field, path).decode("utf-8-sig", errors="replace").splitlines()
    try:
        rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO("\n".join(lines)))]
    except csv.Error as error:
        raise InvalidConfiguration(field, f"{path}: {error}") from None
    return [row for row in rows if any(row)]


def file_contents(field: str, path: str) -> bytes:
    """The bytes of a file; raises `InvalidConfiguration`, which names the option."""
    try:
        return read_file(Path(path))
    except OSError as error:
        raise InvalidConfiguration(field, f"{path}: {error.strerror or error}") from None
