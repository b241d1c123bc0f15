"""The table that compares the methods, with every countable column counted.

The paper's formulas are compared with counts from generated graphs: 16
layers, one to a stage, on 4 devices, 8 micro-batches of one sample. Units are
the paper's: bubble in (N_PP - 1) / N_mb, state memory in layers, activation
memory in samples of the whole model, network in models, overlap as a share of
the backward pass.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bfpp.paper.item import Folder, ItemOutput, PaperTable
from bfpp.paper.tables.methods import FLEXIBLE, LAYERS, METHODS, MICROBATCHES, RANKS, ComparedMethod
from bfpp.schedules import InvalidConfiguration, TaskGraph
from bfpp.schedules.graph.counts import (
    data_network,
    peak_microbatches,
    reduction_window,
    sends_per_microbatch,
    weight_buffers,
)
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.engines import simulate
from bfpp.traces.timeline.metrics import bubble


def _bubble(graph: TaskGraph) -> float:
    ranks = graph.layout.pp
    share = bubble(simulate(graph, AbstractCosts()))
    return share * graph.layout.microbatches / (ranks - 1) if ranks > 1 else share


def _activations(graph: TaskGraph) -> float:
    return float(peak_microbatches(graph).max()) / graph.layout.pp


COUNTS: dict[str, Callable[[TaskGraph], float]] = {
    "bubble": _bubble,
    "state memory": lambda graph: float(weight_buffers(graph).max()),
    "activation memory": _activations,
    "DP network": lambda graph: float(data_network(graph).max()),
    "DP overlap": lambda graph: float(reduction_window(graph).min()),
    "PP network": lambda graph: float(sends_per_microbatch(graph).max()),
}
"""Each countable column, and how it is counted (on the rank where it is worst)."""


@dataclass(frozen=True)
class ComparedCell:
    """A formula as printed, its value, what was counted, and why they may differ."""

    formula: str
    printed: float | bool
    counted: float | bool
    agrees: bool
    note: str | None

    def __str__(self) -> str:
        if self.agrees:
            return f"{_short(self.counted)}\n({self.formula})"
        return f"{_short(self.counted)} (!)\n(printed {self.formula} = {_short(self.printed)})"


def make(folder: Folder) -> ItemOutput:
    """Count every row, and write the table for programs and for people."""
    table = {method.name: _cells(method) for method in METHODS}
    record = {
        "generator": "bfpp",
        "layers": LAYERS,
        "pp": RANKS,
        "microbatches": MICROBATCHES,
        "rows": [
            {"method": name, "columns": {column: vars(cell) for column, cell in cells.items()}}
            for name, cells in table.items()
        ],
    }
    path = folder / "table-method-comparison"
    as_json, as_markdown = path.with_suffix(".json"), path.with_suffix(".md")
    as_json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    layout = _layout(table)
    layout.write(as_markdown)
    cells = [cell for row in table.values() for cell in row.values()]
    agreeing = sum(cell.agrees for cell in cells)
    sentence = (
        f"{agreeing} of {len(cells)} cells, counted from graphs, are what the paper's formulas "
        "give; the notes say why the others differ."
    )
    return ItemOutput([as_json, as_markdown], record, layout, sentence)


def _cells(method: ComparedMethod) -> dict[str, ComparedCell]:
    graph, size = method.graph(), method.size
    cells = {}
    for column, count in COUNTS.items():
        formula, counted = method.printed[column], count(graph)
        cells[column] = ComparedCell(
            formula.text,
            formula.value(size),
            counted,
            formula.agrees(counted, size),
            method.notes.get(column),
        )
    if method.name in FLEXIBLE:
        printed, counted = FLEXIBLE[method.name], _runs(method, MICROBATCHES + 1)
        cells["flexible N_mb"] = ComparedCell(
            "yes" if printed else "no",
            printed,
            counted,
            printed == counted,
            method.notes.get("flexible N_mb"),
        )
    return cells


def _runs(method: ComparedMethod, microbatches: int) -> bool:
    """True if the schedule runs a number of micro-batches that the ranks do not divide."""
    try:
        method.graph(microbatches)
    except InvalidConfiguration:
        return False
    return True


def _layout(table: Mapping[str, Mapping[str, ComparedCell]]) -> PaperTable:
    columns = [*COUNTS, "flexible N_mb"]
    rows = [
        [name, *(str(cells[column]) if column in cells else "" for column in columns)]
        for name, cells in table.items()
    ]
    notes = [
        f"{name}, {column}: {cell.note}"
        for name, cells in table.items()
        for column, cell in cells.items()
        if cell.note
    ]
    title = (
        f"Counted from graphs, and (as the paper prints it): {LAYERS} layers, {RANKS} devices, "
        f"{MICROBATCHES} micro-batches"
    )
    return PaperTable(title, ["method", *columns], rows, notes)


def _short(value: float | bool) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}"
