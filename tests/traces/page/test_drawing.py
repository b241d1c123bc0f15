"""The page in headless Chromium: each task, label, legend and curve that it draws."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from bfpp.schedules import Layout, Operation
from bfpp.schedules.operations.operations import OPERATIONS
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.traces.figures.appearance import IDLE, fill
from bfpp.traces.figures.panel import Panel
from bfpp.traces.timeline.memory_curves import in_flight_over_time
from tests.helpers.browser import Page
from tests.helpers.pages import HOSTILE, channels, large, middle_of, small, timeline

in_browser = pytest.mark.browser


@in_browser
def test_a_page_tells_its_numbers_and_draws_every_task(opened: Callable[..., Page]) -> None:
    shown = small()
    page = opened(
        Panel("breadth-first", shown, "four ranks", (("bubble", "9.4 %"),), causes=(("drain", 1),))
    )
    assert "9.4 %" not in page.find("body").text
    page.find(".tables summary").click()
    words = page.find("body").text
    for expected in ("A sentence.", "breadth-first", "four ranks", "Bubble", "9.4 %", "Drain"):
        assert expected in words
    assert page.get("bfpp.state.redraws") == 1
    for task in shown.compute_tasks(0)[:20].tolist():
        graph = shown.graph
        colour = fill(OPERATIONS[graph.operation[task]], int(graph.microbatch[task]), 32)
        assert page.colour_at(middle_of(shown, task)) == colour
    idle = float(shown.start[shown.compute_tasks(3)[0]]) / 2
    rows = page.get("bfpp.panels()[0].rows.map(({rank, size}) => [rank, size])")
    assert page.colour_at(idle, rows.index([3, "compute"])) == IDLE


@in_browser
def test_labels_are_drawn_where_they_fit(opened: Callable[..., Page]) -> None:
    page = opened(Panel("", small()))
    written = "[...bfpp.pictureAsSvg().matchAll(/>([0-9]+)<.text>/g)].map((found) => found[1])"
    assert not {"17", "31"} & set(page.get(written))
    page.settle("bfpp.show(0, 0.05)")
    assert {"0", "17", "31"} <= set(page.get(written))


@in_browser
def test_a_pass_through_several_units_has_one_number(opened: Callable[..., Page]) -> None:
    """As in figures for print; and the seams between its units are faint."""
    shown = timeline("1f1b", Layout(2, 3, units_per_stage=2), AbstractCosts())
    page = opened(Panel("", shown))
    svg = page.get("bfpp.pictureAsSvg()")
    written = re.findall(r">(\d)</text>", svg)
    assert sorted(written) == sorted("012" * 4)
    colour = fill(Operation.FORWARD, 0, 3)
    channels = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    faint = bytes(round(each + 0.35 * (255 - each)) for each in channels).hex()
    assert svg.count(f'fill="#{faint}"') == 2  # one on each rank


@in_browser
def test_a_pass_of_units_under_a_pixel_has_its_number(opened: Callable[..., Page]) -> None:
    shown = timeline("1f1b", Layout(2, 3, units_per_stage=1200), AbstractCosts())
    page = opened(Panel("", shown))
    written = re.findall(r">(\d)</text>", page.get("bfpp.pictureAsSvg()"))
    assert sorted(written) == sorted("012" * 4)


@in_browser
def test_what_decides_stands_above_the_picture(opened: Callable[..., Page]) -> None:
    said = ("does not fit: 93 of 80 GiB", "MFU 40%")
    page = opened(Panel("A", small(), headline=said, falls_short=True), title="A")
    assert page.find("main section > p").text.split("\n") == [*said]
    assert not page.driver.find_elements("css selector", "h2")  # the page's title says it
    assert page.find(".headline .short").text == said[0]
    assert page.get("document.querySelector('figure').getBoundingClientRect().top") < 300


@in_browser
def test_the_legend_explains_the_numbers_that_are_drawn(opened: Callable[..., Page]) -> None:
    def note() -> str:
        return str(page.get("document.querySelector('.legend .note').textContent"))

    page = opened(Panel("", small()))
    shades, numbers = "Lighter: later micro-batch.", "Numbers: micro-batch"
    assert note() == f"{shades} Numbers: unit for all-gathers and reductions."
    top = page.get("document.querySelector('main').offsetTop")
    page.settle("bfpp.show(0, 0.05)")
    assert note() == f"{shades} {numbers}; unit for all-gathers and reductions."
    assert page.get("document.querySelector('main').offsetTop") == top
    page = opened(Panel("", timeline("gpipe", Layout(4, 8), AbstractCosts())))
    assert note() == f"{shades} {numbers}."
    page = opened(Panel("", timeline("gpipe", Layout(256, 1), AbstractCosts())))
    assert note() == ""


@in_browser
def test_the_pointer_tells_when_the_same_task_ran_elsewhere(opened: Callable[..., Page]) -> None:
    shown = small()
    later = shown.start + 0.001 * (shown.start > 0)
    measured = replace(
        shown, start=1e3 + later, end=1e3 + shown.end + 0.001, ready=1e3 + shown.start
    )
    other = timeline("gpipe", Layout(4, 32), AbstractCosts())
    page = opened(Panel("Simulated", shown), Panel("Measured", measured), Panel("gpipe", other))
    task = int(shown.compute_tasks(0)[5])
    words = page.point_at(middle_of(shown, task))
    assert 'In the timeline "Measured"' in words
    assert "1 ms later" in words
    assert "as here" in words
    assert "gpipe" not in words
    assert "Ready" not in words
    assert page.get("document.querySelectorAll('.mark.task').length") == 2


@in_browser
def test_a_measured_task_tells_when_it_was_ready(opened: Callable[..., Page]) -> None:
    shown = replace(small(), posted=small().start - 2e-4, ready=small().start - 1e-4)
    words = opened(Panel("", shown)).point_at(middle_of(shown, int(shown.compute_tasks(0)[5])))
    assert "Posted" in words
    assert "Ready" in words


@in_browser
def test_channels_can_be_hidden(opened: Callable[..., Page]) -> None:
    page = opened(Panel("", small()))
    sizes = "bfpp.panels()[0].rows.map(({ size }) => size)"
    assert "channel" in page.get(sizes)
    page.find(".channels input").click()
    page.settle("bfpp.show(...bfpp.view())")
    assert "channel" not in page.get(sizes)


@in_browser
def test_memory_is_drawn_below_each_rank(opened: Callable[..., Page]) -> None:
    curves = tuple(in_flight_over_time(small()))
    page = opened(Panel("", small(), memory=curves, memory_unit="micro-batches"))
    page.find(".memory input").click()
    page.settle("bfpp.show(...bfpp.view())")
    rows = page.get("bfpp.panels()[0].rows.map(({rank, size}) => [rank, size])")
    assert [rank for rank, size in rows if size == "memory"] == [0, 1, 2, 3]
    curve = curves[0]
    row = rows.index([0, "memory"])
    top, height = page.get(f"(({{top, height}}) => [top, height])(bfpp.panels()[0].rows[{row}])")
    x, y = page.place_of(float(curve.time[curve.peak]) + 1e-4)
    mouse = page.mouse()
    compute = page.get("bfpp.panels()[0].rows[0].top + bfpp.panels()[0].rows[0].height / 2")
    mouse.w3c_actions.pointer_action.move_to_location(x, round(y - compute + top + height / 2))
    mouse.perform()
    assert f"Rank 0 holds {curve.total.max():g} micro-batches" in page.find(".tip").text


@in_browser
def test_the_pointer_asks_a_task_what_it_waited_for(opened: Callable[..., Page]) -> None:
    shown = small()
    graph = shown.graph
    page = opened(Panel("", shown))
    on_rank = shown.compute_tasks(0)
    task = int(on_rank[graph.operation[on_rank] == Operation.BACKWARD][2])
    words = page.point_at(middle_of(shown, task))
    seen = graph.task(task)
    for line in (
        "Backward",
        f"Stage {seen.stage}",
        f"Micro-batch {seen.microbatch}",
        "Rank 0",
        "Lane compute, of rank 0",
        "Duration 2 ms",
        "Depends on",
        "Before it in this lane",
    ):
        assert line in words
    dependencies = [graph.task(other) for other in seen.dependencies]
    for other in dependencies:
        rank = f"{other.rank} to {other.peer}" if other.peer >= 0 else str(other.rank)
        assert f"stage {other.stage}, micro-batch {other.microbatch}, rank {rank}: ended" in words
    assert page.get("document.querySelectorAll('.mark.task').length") == 1


@in_browser
def test_the_dependency_that_ended_last_is_told(opened: Callable[..., Page]) -> None:
    shown = small()
    graph = shown.graph
    page = opened(Panel("", shown))
    waits = np.diff(graph.dependencies.start)
    task = next(int(task) for task in shown.compute_tasks(0) if waits[task] > 1)
    page.point_at(middle_of(shown, task))
    last = max(graph.task(task).dependencies, key=lambda other: shown.end[other])
    told = page.find(".tip li.last").text
    assert told.startswith(OPERATIONS[graph.operation[last]].title.capitalize())
    assert "ended last" in told


@in_browser
def test_a_large_step_is_drawn_too(opened: Callable[..., Page]) -> None:
    shown = large()
    assert len(shown.graph) > 200_000
    page = opened(Panel("breadth-first", shown))
    compute = shown.compute_tasks(0)
    task = int(compute[len(compute) // 4])
    middle = middle_of(shown, task)
    shades = [channels(fill(Operation.FORWARD, shade, 48)) for shade in range(48)]
    drawn = channels(page.colour_at(middle))
    assert all(min(each) <= one <= max(each) for one, *each in zip(drawn, *shades, strict=True))
    page.settle(f"bfpp.show({middle - 0.01}, {middle + 0.01})")
    assert page.get("bfpp.state.redraws") == 2
    assert f"Micro-batch {shown.graph.microbatch[task]}" in page.point_at(middle)


@in_browser
@pytest.mark.parametrize("microbatches", [20_000, 1_000, 512, 300])
def test_tasks_that_share_pixels_are_mixed_by_their_time(
    opened: Callable[..., Page], microbatches: int
) -> None:
    """A forward pass takes half as long as a backward pass: a third of what 1F1B alternates."""
    shown = timeline("1f1b", Layout(1, microbatches), AbstractCosts(1.0, 2.0))
    page = opened(Panel("1f1b", shown))
    times = shown.step_time * np.linspace(0.48, 0.52, 50)
    drawn = np.mean([channels(page.colour_at(at)) for at in times], axis=0)
    forward, backward = (
        np.array(channels(fill(each, 24, 48))) for each in (Operation.FORWARD, Operation.BACKWARD)
    )
    expected = forward / 3 + 2 * backward / 3
    assert drawn == pytest.approx(expected, abs=8)


@in_browser
@pytest.mark.parametrize("beside_others", [False, True], ids=["alone", "beside a longer one"])
def test_a_task_thinner_than_a_pixel_leaves_a_mark(
    opened: Callable[..., Page], beside_others: bool
) -> None:
    shown = large()
    graph = shown.graph
    [optimizer] = np.flatnonzero((graph.operation == Operation.OPTIMIZER) & (graph.rank == 0))
    assert shown.duration[optimizer] < shown.step_time / 5000
    if beside_others:
        end = shown.end.copy()
        end[shown.compute_tasks(0)[-1]] = shown.start[optimizer]
        shown = replace(shown, end=end)
    page = opened(Panel("", shown))
    middle = float(shown.start[optimizer] + shown.end[optimizer]) / 2
    assert page.colour_at(middle) == fill(Operation.OPTIMIZER)


@in_browser
def test_redraws_that_pile_up_are_done_once(opened: Callable[..., Page]) -> None:
    page = opened(Panel("", small()))
    before = page.get("bfpp.state.redraws")
    page.settle("Promise.all([1, 2, 3, 4, 5, 6].map((end) => bfpp.show(0, end / 1000)))")
    assert page.get("bfpp.state.redraws") <= before + 2
    assert page.get("bfpp.view()") == [0, 0.006]


@in_browser
def test_hostile_text_is_only_text(opened: Callable[..., Page]) -> None:
    shown = small()
    panel = Panel(HOSTILE, shown, HOSTILE, ((HOSTILE, HOSTILE),), headline=(HOSTILE,))
    page = opened(panel, Panel("other", shown), title=f"{HOSTILE}!")
    page.find(".tables summary").click()
    assert page.driver.title == re.sub(r"\s+", " ", f"{HOSTILE}!")
    for selector in ("h2", ".headline span", ".subtitle", ".numbers td:nth-child(2)"):
        assert page.find(selector).text.casefold() == HOSTILE.casefold(), selector
    assert page.point_at(middle_of(shown, int(shown.compute_tasks(0)[0]))).startswith("Forward")
    assert page.get("document.querySelectorAll('body img, body main b').length") == 0


@in_browser
def test_many_ranks_keep_readable_rows(opened: Callable[..., Page]) -> None:
    wide = timeline("1f1b", Layout(96, 96), AbstractCosts())
    page = opened(Panel("", wide))
    assert page.find("figure").rect["height"] > 96 * 14
    drawn = page.get("bfpp.pictureAsSvg()")
    assert ">Rank 95</text>" in drawn
    assert drawn.count(">0 s</text>") == 2  # a time axis on top too
