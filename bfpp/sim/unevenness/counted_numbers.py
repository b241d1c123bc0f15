"""Whole numbers, and how often each occurs: of a list, a histogram or a column of a file.

- In the text itself: `512,4096,2048`, or with how often: `512:10,4096:1`.
- `FILE.csv`: a column `length`, `images` or the only one, and perhaps a column `count`.
- `FILE.txt`: a number a line.
- `FILE.parquet`, `FILE.parquet:COLUMN`: numbers, or lists and texts by how many entries these have.

In texts and `.csv` files, `1024-2048` is a bin of a histogram: its numbers are taken to be spread
evenly over the logarithm, as those of a long tail are within powers of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.columns import Offsets
from bfpp.sim.presets.numbers import whole
from bfpp.sim.unevenness.csv_rows import csv_rows, file_contents

COUNT = "count"
"""The column that says how often a number occurs."""

MOST = 2**31 - 1
"""The largest number, and the most that all may occur."""

PARQUET = ".parquet"

Bin = tuple[int, int]
"""The least and the largest number of a histogram's bin; a number is both."""

PARTS = 32
"""Numbers that stand for those of a bin, each for as wide a part of its logarithm."""


@dataclass(frozen=True, eq=False)
class CountedNumbers:
    """Different numbers, in order, and how often each occurs."""

    numbers: Offsets
    counts: Offsets

    @property
    def largest(self) -> int:
        """The largest number."""
        return int(self.numbers.max())

    @property
    def mean(self) -> float:
        """The mean of all."""
        return float(np.average(self.numbers, weights=self.counts))

    def drawn(self, number: int, random: np.random.Generator) -> Offsets:
        """So many at random, as often as they occur; or all in some order, if these are fewer."""
        if int(self.counts.sum()) <= number:
            return random.permutation(np.repeat(self.numbers, self.counts))
        return random.choice(self.numbers, number, p=self.counts / self.counts.sum())


def counted(field: str, text: str) -> CountedNumbers:
    """The numbers of a text or of the file that it names; raises `InvalidConfiguration`."""
    path, _, column = text.partition(f"{PARQUET}:")
    if column or text.endswith(PARQUET):
        return _checked(field, text, _of_parquet(field, path.removesuffix(PARQUET), column), None)
    if text.endswith((".csv", ".txt")):
        return _of_lines(field, text)
    pairs = [each.partition(":") for each in text.split(",")]
    rows = [_row(each, count if colon else "1") for each, colon, count in pairs]
    if None in rows:
        reason = f"{text!r} is not a list of numbers (512,4096), of numbers and counts (512:10), "
        reason += "of bins and counts (512-1024:10), "
        raise InvalidConfiguration(field, f"{reason}or a .csv, .txt or .parquet file")
    return _of_bins(field, text, [row for row in rows if row])


def _row(number: str, count: str) -> tuple[Bin, int] | None:
    """A bin and how often its numbers occur; None for a text that is neither."""
    low, dash, high = number.partition("-")
    read = [whole(each.strip()) for each in (low, high if dash else low, count)]
    if None in read or (dash and not 1 <= (read[0] or 0) <= (read[1] or 0)):
        return None
    least, most, often = (min(each or 0, MOST + 1) for each in read)
    return (least, most), often


def _of_bins(field: str, what: str, rows: Sequence[tuple[Bin, int]]) -> CountedNumbers:
    numbers, counts = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for (least, most), often in rows:
        if least == most or often < 1:
            numbers.append(np.array([least]))
            counts.append(np.array([often]))
            continue
        edges = np.geomspace(least, most, PARTS + 1)
        numbers.append(np.rint(np.sqrt(edges[:-1] * edges[1:])).astype(np.int64))
        counts.append(np.diff(np.arange(PARTS + 1) * often // PARTS))
    return _checked(field, what, np.concatenate(numbers), np.concatenate(counts))


def _checked(field: str, what: str, numbers: Offsets, counts: Offsets | None) -> CountedNumbers:
    values = np.asarray(numbers, dtype=np.int64)
    often = np.ones_like(values) if counts is None else np.asarray(counts, dtype=np.int64)
    if not len(values) or often.sum() < 1:
        raise InvalidConfiguration(field, f"{what} holds no numbers")
    if values.min() < 0 or often.min() < 0 or max(values.max(), often.sum()) > MOST:
        raise InvalidConfiguration(field, f"{what} holds a number out of range (0 to {MOST:,})")
    different, place = np.unique(values[often > 0], return_inverse=True)
    return CountedNumbers(different, np.bincount(place, often[often > 0]).astype(np.int64))


def _of_lines(field: str, path: str) -> CountedNumbers:
    """The numbers of a CSV file's column, or of a file's lines."""
    rows = csv_rows(field, path)
    if not rows:
        raise InvalidConfiguration(field, f"{path} holds no numbers")
    header = rows[0]
    if _row(header[0], "1") is None:
        rows = rows[1:]
    else:
        header = ["", COUNT][: len(header)]
    names = [name for name in header if name != COUNT]
    if not names:
        raise InvalidConfiguration(field, f"{path} has no column but {COUNT}")
    at = header.index(field.rstrip("s")) if field.rstrip("s") in header else header.index(names[0])
    often = header.index(COUNT) if COUNT in header else None
    read = []
    for number, row in enumerate(rows, 1):
        cells = [*row, *([""] * len(header))]
        entry = _row(cells[at], "1" if often is None else cells[often])
        if entry is None:
            raise InvalidConfiguration(field, f"{path}: row {number} does not hold whole numbers")
        read.append(entry)
    return _of_bins(field, path, read)


def _of_parquet(field: str, stem: str, column: str) -> Offsets:
    """The numbers of a column, or the lengths of its lists and texts."""
    path = stem + PARQUET
    if find_spec("pyarrow") is None:
        reason = f"{path} needs pyarrow, which is not installed: pip install 'bfpp[parquet]'"
        raise InvalidConfiguration(field, reason)
    import pyarrow.compute as compute
    from pyarrow import ArrowException, BufferReader, types
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(BufferReader(file_contents(field, path))) as file:
            names = file.schema_arrow.names
            if column not in (names if column else [column]):
                known = ", ".join(names)
                raise InvalidConfiguration(field, f"{path} has no column {column}; it has {known}")
            if not names:
                raise InvalidConfiguration(field, f"{path} has no columns")
            name = column or names[0]
            read = file.read(columns=[name]).column(name).combine_chunks().drop_null()
        kind = read.type
        if types.is_list(kind) or types.is_large_list(kind):
            read = compute.list_value_length(read)
        elif types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind):
            read = compute.binary_length(read)
        numbers: Offsets = read.cast("int64").to_numpy(zero_copy_only=False)
    except (ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidConfiguration(field, f"{path} holds no such numbers: {reason}") from None
    return numbers
