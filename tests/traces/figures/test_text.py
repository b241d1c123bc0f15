"""Timelines as text: golden grids, and what each of them has to show."""

from __future__ import annotations

import itertools
import re
from typing import NamedTuple

import numpy as np
import pytest
from rich.text import Text

from bfpp.schedules import Communication, Layout, Operation, Sharding, build_graph
from bfpp.schedules.operations.operations import BUILT_IN
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.simpy_engine import simulate
from bfpp.traces.explain.looks import LOOKS
from bfpp.traces.figures.appearance import fill
from bfpp.traces.figures.terminal import text
from bfpp.traces.timeline.timeline import Timeline
from tests.helpers import GOLDEN

RANKS, MICROBATCHES = 4, 8
CELL = 2
"""Characters for the forward pass of one micro-batch through one stage."""

LAYOUTS = {
    "gpipe": Layout(RANKS, MICROBATCHES),
    "1f1b": Layout(RANKS, MICROBATCHES),
    "depth-first": Layout(RANKS, MICROBATCHES, 2),
    "breadth-first": Layout(RANKS, MICROBATCHES, 2),
}


def timeline(schedule: str, layout: Layout, sharding: str = "none", **costs: float) -> Timeline:
    graph = build_graph(schedule, layout, Communication(Sharding(sharding)))
    return simulate(graph, AbstractCosts(**costs).costs(graph))


class Pass(NamedTuple):
    """One task, as it is read off a grid."""

    is_forward: bool
    microbatch: int
    start: float
    end: float


Grid = list[list[Pass]]


def read(grid: str) -> Grid:
    """The passes of each rank of a grid, by its brackets and columns alone."""
    ranks = []
    for line in grid.splitlines():
        if not line.startswith("rank"):
            continue
        cells = line.split(" | ", 1)[1]
        passes = []
        for found in re.finditer(r"\[(\d+) *\]|(\d+)", cells):
            is_forward = found.group(2) is not None
            width = CELL if is_forward else len(found.group())
            start = found.start() / CELL
            number = int(found.group(1) or found.group(2))
            passes.append(Pass(is_forward, number, start, start + width / CELL))
        ranks.append(passes)
    return ranks


@pytest.fixture(params=LAYOUTS)
def schedule(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def golden(schedule: str) -> str:
    return (GOLDEN / f"{schedule}.txt").read_text(encoding="utf-8")


def test_matches_the_golden_grid(schedule: str) -> None:
    assert text(timeline(schedule, LAYOUTS[schedule]), width=140) == golden(schedule)


# What follows reads the golden grids alone: they are right by the rules of a
# pipeline and by the paper's formulas, whatever code drew them.


def with_loops(passes: list[Pass]) -> list[tuple[Pass, int]]:
    """Each pass with its loop, told by how often its micro-batch has come by before."""
    seen: dict[tuple[bool, int], int] = {}
    looped = []
    for one in passes:
        key = one.is_forward, one.microbatch
        seen[key] = seen.get(key, -1) + 1
        looped.append((one, seen[key]))
    return looped


def by_stage(schedule: str) -> dict[tuple[bool, int, int], Pass]:
    """The passes of a golden grid by (is forward, stage, micro-batch)."""
    loops = LAYOUTS[schedule].loops
    return {
        (
            one.is_forward,
            rank + RANKS * (loop if one.is_forward else loops - 1 - loop),
            one.microbatch,
        ): one
        for rank, passes in enumerate(read(golden(schedule)))
        for one, loop in with_loops(passes)
    }


def test_golden_grid_is_complete_and_to_scale(schedule: str) -> None:
    stages = LAYOUTS[schedule].stages
    found = by_stage(schedule)
    assert len(found) == 2 * stages * MICROBATCHES
    assert {one.end - one.start for one in found.values() if one.is_forward} == {1}
    assert {one.end - one.start for one in found.values() if not one.is_forward} == {2}
    for passes in read(golden(schedule)):
        assert all(a.end <= b.start for a, b in itertools.pairwise(passes))


def test_golden_grid_keeps_the_dependencies(schedule: str) -> None:
    last = LAYOUTS[schedule].stages - 1
    found = by_stage(schedule)
    for (is_forward, stage, microbatch), one in found.items():
        if is_forward:
            needs = (True, stage - 1, microbatch) if stage else None
        else:
            needs = (stage == last, stage if stage == last else stage + 1, microbatch)
        assert needs is None or found[needs].end <= one.start


def test_golden_grid_wastes_no_time(schedule: str) -> None:
    """A pass starts as soon as its rank is free and its input is there."""
    last = LAYOUTS[schedule].stages - 1
    found = by_stage(schedule)
    ready = {}
    for (is_forward, stage, microbatch), one in found.items():
        if is_forward:
            needs = (True, stage - 1, microbatch)
        else:
            needs = (stage == last, stage if stage == last else stage + 1, microbatch)
        ready[one, stage % RANKS] = found[needs].end if needs in found else 0.0
    for rank, passes in enumerate(read(golden(schedule))):
        free = 0.0
        for one in passes:
            assert one.start == max(free, ready[one, rank])
            free = one.end


def test_golden_grid_has_the_papers_bubble(schedule: str) -> None:
    """Bubble = (N_PP - 1) / (N_mb N_loop)."""
    loops = LAYOUTS[schedule].loops
    busy = MICROBATCHES * loops * 3
    ends = [passes[-1].end for passes in read(golden(schedule))]
    assert max(ends) == busy * (1 + (RANKS - 1) / (MICROBATCHES * loops))


def test_gpipe_runs_all_forwards_first() -> None:
    turn = RANKS - 1 + MICROBATCHES
    for rank, passes in enumerate(read(golden("gpipe"))):
        forwards = [Pass(True, m, rank + m, rank + m + 1) for m in range(MICROBATCHES)]
        first = turn + 2 * (RANKS - 1 - rank)
        backwards = [Pass(False, m, first + 2 * m, first + 2 * m + 2) for m in range(MICROBATCHES)]
        assert passes == forwards + backwards


def test_1f1b_holds_no_more_microbatches_than_ranks_to_come() -> None:
    for rank, passes in enumerate(read(golden("1f1b"))):
        alive, most = 0, 0
        for one in passes:
            alive += 1 if one.is_forward else -1
            most = max(most, alive)
        assert most == RANKS - rank


def test_depth_first_runs_sequences_and_breadth_first_does_not() -> None:
    for passes in read(golden("depth-first")):
        forwards = [one.microbatch for one in passes if one.is_forward]
        assert forwards == [*range(4), *range(4), *range(4, 8), *range(4, 8)]
        assert [one.microbatch for one in passes if not one.is_forward] == forwards
    for rank, passes in enumerate(read(golden("breadth-first"))):
        assert [one.microbatch for one in passes] == 4 * [*range(MICROBATCHES)]
        assert [one.is_forward for one in passes] == [True] * 16 + [False] * 16
        assert passes[0].start == rank
        assert passes[16].start == RANKS - 1 + 16 + 2 * (RANKS - 1 - rank)


# The rest is about other widths, costs and lanes.


def grid_lines(drawn: str) -> list[str]:
    return [line for line in drawn.splitlines() if line.startswith("rank")]


@pytest.mark.parametrize("width", [40, 60, 100, 200])
def test_keeps_to_the_width(width: int) -> None:
    drawn = text(timeline("breadth-first", Layout(4, 8, 2), "full", gather=1, reduce=3), width)
    assert max(map(len, grid_lines(drawn))) <= width
    assert max(map(len, drawn.splitlines()[:-5])) <= width


def test_narrow_grid_marks_what_it_cannot_label() -> None:
    drawn = text(timeline("gpipe", LAYOUTS["gpipe"]), width=51)
    assert grid_lines(drawn)[3] == "rank 3  compute |    012345670=1:2=3:4=5:6=7:"
    drawn = text(timeline("gpipe", Layout(1, 12)), width=54)
    assert grid_lines(drawn) == ["rank 0  compute | 0123456789-_0=1:2=3:4=5:6=7:8=9:==::"]


def test_channels_and_data_have_rows_if_they_take_time() -> None:
    free = text(timeline("1f1b", LAYOUTS["1f1b"]))
    assert [line.split(" | ")[0] for line in grid_lines(free)] == [
        f"rank {rank}  compute" for rank in range(4)
    ]
    costly = text(timeline("1f1b", LAYOUTS["1f1b"], reduce=2, transfer=0.5), 200)
    titles = [line.split(" | ")[0].strip() for line in grid_lines(costly)]
    assert "rank 1  send activations to 2" in titles
    assert "rank 1  data" in titles
    assert "<0> all-reduce of stage 0" in costly


def test_reductions_are_labelled_with_their_stage() -> None:
    drawn = text(timeline("breadth-first", Layout(1, 2, 2), reduce=3))
    assert grid_lines(drawn) == [
        "rank 0  compute | 0 1 0 1 [0 ][1 ][0 ][1 ]",
        "rank 0  data    |                 <1   >  <0   >",
    ]


def test_times_without_a_common_unit_are_drawn_in_proportion() -> None:
    drawn = text(timeline("gpipe", LAYOUTS["gpipe"], forward=np.pi, backward=2 * np.e), 118)
    (first, *_, last) = grid_lines(drawn)
    assert len(first) == 118
    assert first.count("[") == last.count("[") == MICROBATCHES
    assert re.sub(r"\D", "", last.split("|")[1]) == 2 * "01234567"


def test_colour_changes_no_character() -> None:
    one = timeline("breadth-first", Layout(2, 4, 2), "full", gather=1, reduce=2, optimizer=1)
    coloured = Text.from_markup(text(one, colour=True))
    assert coloured.plain == text(one)
    assert len(coloured.spans) == int((one.duration > 0).sum())
    assert f"on {fill(Operation.BACKWARD, 0, 4)}" in {
        str(span.style).split(" ", 1)[1] for span in coloured.spans
    }


def test_a_timeline_without_time_has_no_grid() -> None:
    one = timeline("gpipe", LAYOUTS["gpipe"], forward=0, backward=0)
    assert text(one) == "no task takes any time\n"


def test_many_tasks_take_one_screen() -> None:
    drawn = text(timeline("1f1b", Layout(4, 2000), reduce=0.5))
    assert max(map(len, drawn.splitlines())) <= 100
    assert len(grid_lines(drawn)) == 8


def test_micro_batches_without_room_for_their_numbers_are_told_apart():
    drawn = text(timeline("gpipe", Layout(1, 24)), width=90)
    forward, backward = "-_", "=:"
    line = next(iter(drawn.splitlines())).partition(" | ")[2]
    assert line.startswith("0123456789" + 7 * forward)
    assert line.endswith("".join(2 * backward[number % 2] for number in range(10, 24)))
    assert "- _ forward, no room" in drawn


# fmt: off
MARKS = {  # micro-batch 0, what follows it where there is more room, and what stands for it
    "FORWARD": ("0 ", "-", "-_"), "BACKWARD": ("[0]", " ", "=:"),
    "BACKWARD_INPUT": ("[0]", " ", "=:"), "BACKWARD_WEIGHT": ("{0}", " ", "~,"),
    "TRANSFER_ACTIVATIONS": (">0 ", "-", ">"), "TRANSFER_GRADIENTS": ("<0 ", "-", "<"),
    "GATHER": ("(0)", " ", "^"), "REDUCE": ("<0>", " ", "v"), "ALL_REDUCE": ("&0&", " ", "&"),
    "TIED_ALL_REDUCE": ("=0=", " ", "%"), "OPTIMIZER": ("0", " ", "*"), "NORM": ("0", " ", "+"),
    "EXPERT_DISPATCH": ("/0/", " ", "/"), "EXPERT_COMBINE": ("\\0\\", " ", "\\"),
    "ORTHOGONALISE": ("0", " ", "@"),
    "OFFLOAD": ("'0'", "'", "'"), "RELOAD": (".0.", ".", "."),
}
# fmt: on


def test_marks_of_operations_are_of_one_character_each():
    marks = {each.name: LOOKS[each].mark for each in BUILT_IN}
    assert {
        name: (f"{mark.before}0{mark.after}", mark.padding, mark.unlabelled)
        for name, mark in marks.items()
    } == MARKS
    for before, padding, after, _ in marks.values():
        assert (len(before) <= 1, len(padding), len(after) <= 1) == (True, 1, True)
