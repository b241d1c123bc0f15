"""The measured configurations of tables E.1 to E.3, as a table for `bfpp validate` and `fit`."""

from __future__ import annotations

from importlib.resources import files

from bfpp.paper.item import Folder, ItemOutput


def make(folder: Folder) -> ItemOutput:
    """Copy the rows that are available."""
    text = (files("bfpp.paper") / "measurements.csv").read_bytes()
    path = folder / "measurements.csv"
    path.write_bytes(text)
    rows = len(text.splitlines()) - 1
    sentence = f"The {rows} rows of tables E.1 to E.3 that are at hand, one configuration each."
    return ItemOutput([path], {"rows": rows}, sentence=sentence)
