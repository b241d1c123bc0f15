"""The rows of the paper's comparison of methods: what generates each, and what is printed.

A row names a schedule and a sharding, and the formulas that the paper prints for
it; where a count differs, the row's notes say why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from bfpp.paper.item import graph_of
from bfpp.schedules import Communication, Schedule, Sharding, TaskGraph, find_schedule

LAYERS, RANKS, MICROBATCHES = 16, 4, 8


class Size(NamedTuple):
    """Variables of the formulas: N_layers, N_PP, N_loop, N_mb, with S_mb = 1."""

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
        """True if the count is the formula's."""
        printed = self.value(size)
        return counted <= printed + 1e-9 if self.is_bound else abs(counted - printed) < 1e-9


@dataclass(frozen=True)
class ComparedMethod:
    """A row: what generates it, what the paper prints, and why the two may differ."""

    name: str
    schedule: str | Schedule
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
        return Size(LAYERS, layout.pp, layout.loops, MICROBATCHES)


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
PIPELINES = 2
"""N_Ch: those of Chimera, one in each direction."""
NOTE_1F1B = (
    "the printed bound is that of depth-first at one loop, 2 N_PP - 1 stages of N_PP; "
    "non-looped 1F1B runs at most N_PP micro-batches ahead, half of it"
)

METHODS = (
    ComparedMethod(
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
    ComparedMethod(
        "No pipeline (fully sharded)",
        "1f1b",
        Sharding.FULL,
        {**WITHOUT_PIPELINE, "state memory": TWO, "DP network": EVERY_TIME},
        has_pipeline=False,
    ),
    ComparedMethod(
        "GPipe", "gpipe", Sharding.NONE, {**NON_LOOPED, "activation memory": WHOLE_BATCH}
    ),
    ComparedMethod(
        "1F1B",
        "1f1b",
        Sharding.NONE,
        {**NON_LOOPED, "activation memory": ABOUT_TWO},
        notes={"activation memory": NOTE_1F1B},
    ),
    ComparedMethod(
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
    ComparedMethod(
        "Chimera",
        find_schedule("chimera", forward_doubling=True),
        Sharding.NONE,
        {
            "bubble": Formula("1/N_Ch", lambda _: 1 / PIPELINES),
            "state memory": Formula(
                "N_Ch N_layers/N_PP", lambda size: PIPELINES * size.layers / size.ranks
            ),
            "activation memory": Formula("<= 2 S_mb", lambda _: 2, is_bound=True),
            "DP network": Formula("2 N_Ch/N_PP", lambda size: 2 * PIPELINES / size.ranks),
            "DP overlap": Formula("~ 1-1/N_Ch", lambda _: 1 - 1 / PIPELINES),
            "PP network": ONE,
        },
        notes={
            "bubble": "counted with forward doubling, as the paper assumes: at most N_PP - 2 "
            "backward passes, however many micro-batches there are; the printed formula is of "
            "N_PP - 1 forward and backward passes",
            "DP overlap": "the printed share is approximate, and does not depend on N_mb; counted "
            "are the backward passes that are left when one of a rank's two stages is complete "
            "at both copies: the last N_PP/2 micro-batches of the other one, except for a layer",
        },
    ),
    ComparedMethod(
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
    ComparedMethod(
        "Breadth-first",
        "breadth-first",
        Sharding.NONE,
        {**LOOPED, "activation memory": WHOLE_BATCH, "DP overlap": WHOLE_BACKWARD},
    ),
    ComparedMethod(
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
FLEXIBLE |= {"Chimera": False, "Breadth-first": True, "Breadth-first (fully sharded)": True}
"""Printed column `Flexible N_mb`; the rows without a pipeline are left open by the paper."""
