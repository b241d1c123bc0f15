"""The paper's figures and tables, made from our own graphs and timelines.

Every item writes its files into a folder and may have a table to print; the
published numbers stand next to ours wherever the paper prints them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bfpp.paper.figures import (
    figure_1,
    figure_2,
    figure_3,
    figure_4,
    figure_5,
    figure_6,
    figure_7,
    figure_8,
    figure_9,
)
from bfpp.paper.item import Folder, ItemOutput
from bfpp.paper.studies import hybrid, next_step, zero_bubble
from bfpp.paper.tables import measurements, method_comparison, table_configurations, table_models

ITEMS: dict[str, Callable[[Folder], ItemOutput]] = {
    "figure-1": figure_1.make,
    "figure-2": figure_2.make,
    "figure-3": figure_3.make,
    "figure-4": figure_4.make,
    "figure-5": figure_5.make,
    "figure-6": figure_6.make,
    "figure-7": figure_7.make,
    "figure-8": figure_8.make,
    "figure-9": figure_9.make,
    "table-method-comparison": method_comparison.make,
    "table-models": table_models.make,
    "table-e1": partial(table_configurations.make, "E.1"),
    "table-e2": partial(table_configurations.make, "E.2"),
    "table-e3": partial(table_configurations.make, "E.3"),
    "hybrid": hybrid.make,
    "zero-bubble": zero_bubble.make,
    "next-step": next_step.make,
    "measurements": measurements.make,
}
"""Every item by the name that `bfpp paper` knows it by."""
