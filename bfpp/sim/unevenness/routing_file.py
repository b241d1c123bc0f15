"""Tokens that a router sent to each expert, from a text or a file.

`90,10,50,50` are the loads of a layer's experts, for all layers; a `.csv` file has columns
`layer,expert,count`, and `observation` where there are several: micro-batches or steps.
"""

from __future__ import annotations

import numpy as np

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.columns import Offsets
from bfpp.sim.presets.numbers import whole
from bfpp.sim.unevenness.csv_rows import csv_rows

FIELD = "routing"
COLUMNS = ("layer", "expert", "count")
OBSERVATION = "observation"
MOST = 2**24
"""Loads at most."""

LARGEST = 2**31 - 1
"""Tokens at most that a load counts."""


def routing_loads(text: str) -> Offsets:
    """Loads by observation, layer and expert; raises `InvalidConfiguration`."""
    if text.endswith(".csv"):
        return _of_file(text)
    loads = [_number(each.strip()) for each in text.split(",")]
    if None in loads or not any(loads):
        reason = f"{text!r} is neither a list of loads, such as 90,10,50,50, nor a .csv file"
        raise InvalidConfiguration(FIELD, reason)
    return np.array(loads, dtype=np.int64).reshape(1, 1, -1)


def _of_file(path: str) -> Offsets:
    rows = csv_rows(FIELD, path)
    header = rows[0] if rows else []
    if missing := [name for name in COLUMNS if name not in header]:
        reason = f"{path} has no column {missing[0]}: needed are {', '.join(COLUMNS)}"
        raise InvalidConfiguration(FIELD, reason)
    places = [header.index(name) if name in header else None for name in (OBSERVATION, *COLUMNS)]
    entries = []
    for number, row in enumerate(rows[1:], 1):
        entry = [0 if at is None else _number(row[at]) if at < len(row) else None for at in places]
        if None in entry:
            reason = f"{path}: row {number} does not hold whole numbers (0 to {LARGEST:,})"
            raise InvalidConfiguration(FIELD, reason)
        entries.append(entry)
    if not entries:
        raise InvalidConfiguration(FIELD, f"{path} holds no loads")
    *keys, count = np.array(entries, dtype=np.int64).T
    numbered = [np.unique(key, return_inverse=True) for key in keys]
    shape = tuple(len(different) for different, _ in numbered)
    if np.prod([float(each) for each in shape]) > MOST:
        raise InvalidConfiguration(FIELD, f"{path} holds more than {MOST:,} loads")
    loads = np.zeros(shape, dtype=np.int64)
    np.add.at(loads, tuple(place for _, place in numbered), count)
    if not loads.any():
        raise InvalidConfiguration(FIELD, f"{path} holds no loads")
    return loads


def _number(text: str) -> int | None:
    """A number of tokens, a layer or the like; None for a text that is none."""
    number = whole(text)
    return None if number is None or not 0 <= number <= LARGEST else number
