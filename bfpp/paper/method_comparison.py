"""The table that compares the methods, with every countable column counted.

The paper's formulas are evaluated beside counts from generated graphs: 16
layers, one to a stage, on 4 devices, 8 micro-batches of one sample. Units are
the paper's: bubble in (N_PP - 1) / N_mb, state memory in layers, activation
memory in samples of the whole model, network in models, overlap as a share of
the backward pass.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bfpp.paper.item import Made, PaperTable, graph_of
from schedules import Communication, InvalidConfiguration, Sharding, TaskGraph
from schedules.counts import (
    data_network,
    peak_activations,
    reduction_window,
    sends_per_microbatch,
    weight_buffers,
)
from sim.costs import AbstractCosts
from sim.engines import simulate
from traces.metrics import bubble

LAYERS, RANKS, MICROBATCHES = 16, 4, 8


class Size(NamedTuple):
    """What the formulas speak of: N_layers, N_PP, N_loop, N_mb, with S_mb = 1."""

    layers: int
    ranks: int
    loops: int
    microbatches: int


@dataclass(frozen=True)
class Formula:
    """A cell as printed, and its value; some formulas are only upper bounds."""

    text: str
    value: Callable[[Size], float]
    is_bound: bool = False

    def agrees(self, counted: float, size: Size) -> bool:
        """Whether the count is what the formula says."""
        printed = self.value(size)
        return counted <= printed + 1e-9 if self.is_bound else abs(counted - printed) < 1e-9


@dataclass(frozen=True)
class Method:
    """A row: what generates it, what the paper prints, and why the two may differ."""

    name: str
    schedule: str
    sharding: Sharding
    printed: Mapping[str, Formula]
    has_pipeline: bool = True
    notes: Mapping[str, str] = field(default_factory=dict)

    def graph(self, microbatches: int = MICROBATCHES) -> TaskGraph:
        """The graph of the row."""
        ranks = RANKS if self.has_pipeline else 1
        communication = Communication(self.sharding)
        return graph_of(self.schedule, ranks, microbatches, LAYERS // ranks, communication)

    @property
    def size(self) -> Size:
        """The numbers that the row's formulas take."""
        layout = self.graph().layout
        return Size(LAYERS, layout.pipeline_parallel, layout.loops, MICROBATCHES)


def _bubble(graph: TaskGraph) -> float:
    ranks = graph.layout.pipeline_parallel
    share = bubble(simulate(graph, AbstractCosts()))
    return share * graph.layout.microbatches / (ranks - 1) if ranks > 1 else share


def _activations(graph: TaskGraph) -> float:
    return float(peak_activations(graph).max()) / graph.layout.stages


COUNTS: dict[str, Callable[[TaskGraph], float]] = {
    "bubble": _bubble,
    "state memory": lambda graph: float(weight_buffers(graph).max()),
    "activation memory": _activations,
    "DP network": lambda graph: float(data_network(graph).max()),
    "DP overlap": lambda graph: float(reduction_window(graph).min()),
    "PP network": lambda graph: float(sends_per_microbatch(graph).max()),
}
"""Each countable column, and how it is counted (on the rank where it is worst)."""

ZERO = Formula("0", lambda _: 0)
ONE = Formula("1", lambda _: 1)
PER_LOOP = Formula("1/N_loop", lambda size: 1 / size.loops)
LOOPS = Formula("N_loop", lambda size: size.loops)
TWO = Formula("2", lambda _: 2)
OWN_LAYERS = Formula("N_layers/N_PP", lambda size: size.layers / size.ranks)
WHOLE_BATCH = Formula("S_mb N_mb/N_PP", lambda size: size.microbatches / size.ranks)
ABOUT_TWO = Formula("<~ 2 S_mb", lambda _: 2, is_bound=True)
TWICE = Formula("2/N_PP", lambda size: 2 / size.ranks)
EVERY_TIME = Formula("3 N_mb", lambda size: 3 * size.microbatches)
LAST_MICROBATCH = Formula(
    "(1-N_PP/N_layers)/N_mb", lambda size: (1 - size.ranks / size.layers) / size.microbatches
)
WHOLE_BACKWARD = Formula("1-N_PP/N_layers", lambda size: 1 - size.ranks / size.layers)
WITHOUT_PIPELINE = {
    "bubble": ZERO,
    "activation memory": Formula("S_mb", lambda _: 1),
    "DP overlap": Formula(
        "(1-1/N_layers)/N_mb", lambda size: (1 - 1 / size.layers) / size.microbatches
    ),
    "PP network": ZERO,
}
NON_LOOPED = {
    "bubble": ONE,
    "state memory": OWN_LAYERS,
    "DP network": TWICE,
    "DP overlap": LAST_MICROBATCH,
    "PP network": ONE,
}
LOOPED = {
    "bubble": PER_LOOP,
    "state memory": OWN_LAYERS,
    "DP network": TWICE,
    "PP network": LOOPS,
}
NOTE_1F1B = (
    "the printed bound is that of depth-first at one loop, 2 N_PP - 1 stages of N_PP; "
    "non-looped 1F1B runs at most N_PP micro-batches ahead, half of it"
)

METHODS = (
    Method(
        "No pipeline",
        "1f1b",
        Sharding.NONE,
        {
            **WITHOUT_PIPELINE,
            "state memory": Formula("N_layers", lambda size: size.layers),
            "DP network": TWO,
        },
        has_pipeline=False,
    ),
    Method(
        "No pipeline (fully sharded)",
        "1f1b",
        Sharding.FULL,
        {**WITHOUT_PIPELINE, "state memory": TWO, "DP network": EVERY_TIME},
        has_pipeline=False,
    ),
    Method("GPipe", "gpipe", Sharding.NONE, {**NON_LOOPED, "activation memory": WHOLE_BATCH}),
    Method(
        "1F1B",
        "1f1b",
        Sharding.NONE,
        {**NON_LOOPED, "activation memory": ABOUT_TWO},
        notes={"activation memory": NOTE_1F1B},
    ),
    Method(
        "1F1B (fully sharded)",
        "1f1b",
        Sharding.FULL,
        {
            **NON_LOOPED,
            "state memory": TWO,
            "activation memory": ABOUT_TWO,
            "DP network": EVERY_TIME,
            "DP overlap": WHOLE_BACKWARD,
        },
        notes={
            "activation memory": NOTE_1F1B,
            "DP network": "printed without the division by N_PP that the rows above and below "
            "have; a rank gathers and reduces its own layers alone: 3 N_mb/N_PP",
            "DP overlap": "the reductions of earlier micro-batches hide behind nearly all of the "
            "backward pass, as printed; counted are the final ones, which only the last "
            "micro-batch can hide",
        },
    ),
    Method(
        "Depth-first",
        "depth-first",
        Sharding.NONE,
        {
            **LOOPED,
            "activation memory": Formula(
                "<~ S_mb + S_mb/N_loop", lambda size: 1 + 1 / size.loops, is_bound=True
            ),
            "DP overlap": Formula(
                "(1-N_PP/N_layers) N_PP/N_mb",
                lambda size: (1 - size.ranks / size.layers) * size.ranks / size.microbatches,
            ),
        },
        notes={
            "activation memory": "counted N_layers + N_PP - 1 checkpoints of N_layers, as the "
            "paper's memory appendix says; the printed bound leaves out the - 1"
        },
    ),
    Method(
        "Breadth-first",
        "breadth-first",
        Sharding.NONE,
        {**LOOPED, "activation memory": WHOLE_BATCH, "DP overlap": WHOLE_BACKWARD},
    ),
    Method(
        "Breadth-first (fully sharded)",
        "breadth-first",
        Sharding.FULL,
        {
            **LOOPED,
            "state memory": TWO,
            "activation memory": WHOLE_BATCH,
            "DP network": Formula("3/N_PP", lambda size: 3 / size.ranks),
            "DP overlap": WHOLE_BACKWARD,
        },
    ),
)

FLEXIBLE = {"GPipe": True, "1F1B": True, "1F1B (fully sharded)": True, "Depth-first": False}
FLEXIBLE |= {"Breadth-first": True, "Breadth-first (fully sharded)": True}
"""Printed column `Flexible N_mb`; the rows without a pipeline are left open by the paper."""

CHIMERA = "Chimera"
"""Printed between 1F1B and depth-first; there is no generator for it."""


@dataclass(frozen=True)
class Cell:
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


def make(directory: Path) -> Made:
    """Count every row, and write the table for programs and for people."""
    table = {method.name: _cells(method) for method in METHODS}
    record = {
        "layers": LAYERS,
        "pipeline_parallel": RANKS,
        "microbatches": MICROBATCHES,
        "rows": [
            {"method": name, "columns": {column: vars(cell) for column, cell in cells.items()}}
            for name, cells in table.items()
        ]
        + [{"method": CHIMERA, "columns": {}, "note": "not yet"}],
    }
    path = directory / "table-method-comparison"
    as_json, as_markdown = path.with_suffix(".json"), path.with_suffix(".md")
    as_json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    layout = _layout(table)
    as_markdown.write_text(layout.markdown(), encoding="utf-8")
    cells = [cell for row in table.values() for cell in row.values()]
    agreeing = sum(cell.agrees for cell in cells)
    sentence = (
        f"{agreeing} of {len(cells)} cells, counted from graphs, are what the paper's formulas "
        "give; the notes say why the others differ."
    )
    return Made([as_json, as_markdown], record, layout, sentence)


def _cells(method: Method) -> dict[str, Cell]:
    graph, size = method.graph(), method.size
    cells = {}
    for column, count in COUNTS.items():
        formula, counted = method.printed[column], count(graph)
        cells[column] = Cell(
            formula.text,
            formula.value(size),
            counted,
            formula.agrees(counted, size),
            method.notes.get(column),
        )
    if method.name in FLEXIBLE:
        printed, counted = FLEXIBLE[method.name], _runs(method, MICROBATCHES + 1)
        cells["flexible N_mb"] = Cell(
            "yes" if printed else "no", printed, counted, printed == counted, None
        )
    return cells


def _runs(method: Method, microbatches: int) -> bool:
    """Whether the schedule runs a number of micro-batches that the ranks do not divide."""
    try:
        method.graph(microbatches)
    except InvalidConfiguration:
        return False
    return True


def _layout(table: Mapping[str, Mapping[str, Cell]]) -> PaperTable:
    columns = [*COUNTS, "flexible N_mb"]
    rows = [
        [name, *(str(cells[column]) if column in cells else "" for column in columns)]
        for name, cells in table.items()
    ]
    after_1f1b = 1 + max(at for at, row in enumerate(rows) if row[0].startswith("1F1B"))
    rows.insert(after_1f1b, [CHIMERA, *("not yet" for _ in columns)])
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
