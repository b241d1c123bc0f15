"""The paper's figures and tables, made from our own graphs and timelines.

Every item writes its files into a folder and may have a table to print; the
published numbers stand beside ours wherever the paper prints them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bfpp.paper import figure_3, figure_4, figure_9, method_comparison
from bfpp.paper.item import Made

ITEMS: dict[str, Callable[[Path], Made]] = {
    "figure-3": figure_3.make,
    "figure-4": figure_4.make,
    "figure-9": figure_9.make,
    "table-method-comparison": method_comparison.make,
}
"""Every item by the name that `bfpp paper` knows it by."""
