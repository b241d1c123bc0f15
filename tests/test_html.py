"""The interactive page: what it holds, read back here, and what it does in a real browser."""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bfpp.command_line import main
from bfpp.schedules import Communication, Layout, Operation, Sharding, build_graph
from bfpp.schedules.operations import OPERATIONS
from bfpp.sim.abstract import AbstractCosts
from bfpp.sim.simpy_engine import simulate
from bfpp.traces.appearance import IDLE, fill
from bfpp.traces.causes import Causes
from bfpp.traces.html import embeddable, page, write_html
from bfpp.traces.memory import in_flight_over_time
from bfpp.traces.panel import Panel
from bfpp.traces.panel_data import packed
from bfpp.traces.timeline import Timeline
from tests.browser import Page, chromium, is_installed

HOSTILE = "</script><img src=x onerror=\"document.title='pwned'\"><b>bold</b> & <br>"
DTYPES = {
    "Int8Array": "<i1", "Int16Array": "<i2", "Int32Array": "<i4", "Float32Array": "<f4",
    "Float64Array": "<f8",
}  # fmt: skip


def timeline(
    schedule: str, layout: Layout, costs: AbstractCosts, sharding: Sharding = Sharding.FULL
) -> Timeline:
    graph = build_graph(schedule, layout, Communication(sharding))
    return simulate(graph, costs.costs(graph))


@cache
def small() -> Timeline:
    """About 2,000 tasks, drawn one by one."""
    costs = AbstractCosts(1e-3, 2e-3, transfer=2e-4, gather=3e-3, reduce=5e-3, optimizer=1e-3)
    return timeline("breadth-first", Layout(4, 32, 4), costs)


@cache
def large() -> Timeline:
    """About 200,000 tasks; the optimizer's last much less than a pixel."""
    costs = AbstractCosts(1e-3, 2e-3, gather=3e-3, reduce=5e-3, optimizer=1e-4)
    return timeline("breadth-first", Layout(16, 400, 8), costs)


def channels(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour.removeprefix("#")))


def content_of(text: str) -> Any:
    found = re.search(r'<script id="content" type="application/json">(.*?)</script>', text, re.S)
    assert found is not None
    return json.loads(found[1])


def unpacked(table: dict[str, Any]) -> dict[str, np.ndarray]:
    data, columns = zlib.decompress(b64decode(table["data"])), {}
    for name, kind, length in table["columns"]:
        size = np.dtype(DTYPES[kind]).itemsize * length
        columns[name], data = np.frombuffer(data[:size], DTYPES[kind]), data[size:]
    assert not data
    return columns


def test_the_page_holds_every_task_with_its_dependencies() -> None:
    shown = small()
    graph = shown.graph
    [panel] = content_of(page([Panel("breadth-first", shown)], "A step"))["panels"]
    columns = unpacked(panel["columns"]) | unpacked(panel["times"])
    np.testing.assert_array_equal(columns["start"], shown.start)
    np.testing.assert_array_equal(columns["duration"], shown.duration)
    for name, expected in {
        "operation": graph.operation,
        "stage": graph.stage,
        "microbatch": graph.microbatch,
        "lane": graph.lane,
        "peerLane": graph.peer_lane,
    }.items():
        np.testing.assert_array_equal(columns[name], expected, name)
    bounds = np.concatenate([[0], np.cumsum(columns["dependencies"])])
    np.testing.assert_array_equal(bounds, graph.dependencies.start)
    task = np.repeat(np.arange(len(graph)), columns["dependencies"])
    np.testing.assert_array_equal(task - columns["dependency"], graph.dependencies.member)


def test_colours_are_those_of_every_figure() -> None:
    graph = small().graph
    [panel] = content_of(page([Panel("", small())], ""))["panels"]
    colour = unpacked(panel["columns"])["colour"]
    drawn = {
        (operation, microbatch): panel["colours"][index]
        for operation, microbatch, index in zip(
            graph.operation.tolist(), graph.microbatch.tolist(), colour.tolist(), strict=True
        )
    }
    assert drawn == {
        (operation, microbatch): fill(OPERATIONS[operation], microbatch, 32)
        for operation, microbatch in drawn
    }
    assert len(panel["inks"]) == len(panel["colours"])


def test_time_counts_from_the_first_start() -> None:
    late = replace(small(), start=small().start + 1e3, end=small().end + 1e3)
    [panel] = content_of(page([Panel("", late)], ""))["panels"]
    assert unpacked(panel["times"])["start"].min() == 0


@pytest.mark.parametrize(
    ("most", "kind"),
    [(127, "Int8Array"), (128, "Int16Array"), (32767, "Int16Array"), (32768, "Int32Array")],
)
def test_integers_travel_as_narrow_as_they_are(most: int, kind: str) -> None:
    values = np.array([-1, 0, most], dtype=np.int64)
    table = packed({"of a byte": np.array([1, 2, 3]), "values": values})
    assert ["values", kind, 3] in map(list, table["columns"])
    np.testing.assert_array_equal(unpacked(table)["values"], values)
    np.testing.assert_array_equal(unpacked(table)["of a byte"], [1, 2, 3])


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="32 bits"):
        packed({"values": np.array([2**31])})
    with pytest.raises(ValueError, match="finite"):
        packed({"values": np.array([0.0, np.nan])})
    with pytest.raises(ValueError, match="at least one panel"):
        write_html([], tmp_path / "page.html", "nothing")


def test_no_text_can_leave_its_place() -> None:
    text = embeddable({"title": HOSTILE})
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"title": HOSTILE}
    panel = Panel(HOSTILE, small(), HOSTILE, ((HOSTILE, HOSTILE),))
    whole = page([panel], HOSTILE)
    assert "<img" not in whole.replace(page([Panel("", small())], ""), "")
    assert HOSTILE not in whole
    assert content_of(whole)["panels"][0]["summary"] == [[HOSTILE, HOSTILE]]


def test_the_page_needs_nothing_beside_it() -> None:
    head = page([Panel("", small())], "").partition("<script>")[0]
    assert "default-src 'none'" in head
    assert not re.search(r"\b(src|href)=|@import|url\(", head)


# The rest runs in headless Chromium.

in_browser = pytest.mark.browser


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    pytest.importorskip("selenium", reason="selenium is not installed")
    if not is_installed():
        pytest.skip("needs chromium and chromedriver on the path")
    with chromium() as started:
        yield started


@pytest.fixture
def opened(driver: Any, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    pages = []

    def open_page(*panels: Panel, title: str = "A step", fragment: str = "") -> Page:
        write_html(panels, tmp_path / "page.html", title, "A sentence.")
        pages.append(Page(driver, (tmp_path / "page.html").as_uri() + fragment))
        return pages[-1]

    yield open_page
    assert [complaint for page in pages for complaint in page.complaints()] == []


def middle_of(shown: Timeline, task: int) -> float:
    return float(shown.start[task] + shown.end[task]) / 2


@in_browser
def test_a_page_tells_its_numbers_and_draws_every_task(opened: Callable[..., Page]) -> None:
    shown = small()
    page = opened(
        Panel("breadth-first", shown, "four ranks", (("bubble", "9.4 %"),), causes=(("drain", 1),))
    )
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
def test_the_mouse_zooms_and_a_double_click_resets(opened: Callable[..., Page]) -> None:
    page = opened(Panel("", small()))
    whole = page.get("bfpp.view()")
    figure = page.find("figure")
    page.mouse().move_to_element(figure).click_and_hold().move_by_offset(150, 0).release().perform()
    page.settle("bfpp.show(...bfpp.view())")
    near = page.get("bfpp.view()")
    assert near[1] - near[0] < 0.3 * (whole[1] - whole[0])
    page.mouse().move_to_element(figure).double_click().perform()
    page.settle("bfpp.show(...bfpp.view())")
    assert page.get("bfpp.view()") == pytest.approx(whole)


@in_browser
def test_keys_zoom_move_and_reset(opened: Callable[..., Page]) -> None:
    page = opened(Panel("", small()))
    whole = page.get("bfpp.view()")
    for key in "++":
        page.find("figure").send_keys(key)
    page.settle("bfpp.show(...bfpp.view())")
    near = page.get("bfpp.view()")
    assert near[1] - near[0] == pytest.approx((whole[1] - whole[0]) * 4 / 9)
    page.find("figure").send_keys("0")
    assert page.get("bfpp.view()") == pytest.approx(whole)


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
    page = opened(Panel(HOSTILE, shown, HOSTILE, ((HOSTILE, HOSTILE),)), title=HOSTILE)
    assert page.driver.title == re.sub(r"\s+", " ", HOSTILE)
    for selector in ("h1", "h2", ".subtitle", ".numbers td:last-child"):
        assert page.find(selector).text == HOSTILE
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


def explained() -> Panel:
    """A timeline that waits for transfers, with its causes."""
    waiting = timeline(
        "depth-first", Layout(4, 8, 4), AbstractCosts(transfer=0.5, reduce=6), Sharding.NONE
    )
    causes = Causes(waiting)
    waits = [replace(wait, gain=0.25) for wait in causes.waits]
    return Panel("why", waiting, waits=tuple(waits), critical_path=tuple(causes.critical_path))


@in_browser
def test_an_idle_stretch_says_what_it_waits_for(opened: Callable[..., Page]) -> None:
    panel = explained()
    page = opened(panel)
    wait = next(each for each in panel.waits if each.rank == 0 and each.begin == 16)
    page.move_to((wait.begin + wait.end) / 2).perform()
    page.mouse().click().perform()
    words = page.find(".why").text.splitlines()
    assert words == [
        "Rank 0 waits 2 s",
        "From 16 s",
        "Until 18 s, when it begins forward, stage 12, micro-batch 0, rank 0",
        "Waits for transfer activations, stage 11, micro-batch 0, rank 3 to 0",
        "Transfer 1 s",
        "Other ranks' compute 1 s",
        "Without it the step ends 250 ms earlier",
    ]
    page.move_to(1.5).perform()
    page.mouse().click().perform()
    assert page.get("document.querySelectorAll('.why').length") == 0


@in_browser
def test_the_critical_path_can_be_switched_on(opened: Callable[..., Page]) -> None:
    panel = explained()
    page = opened(panel)
    outlined = "bfpp.pictureAsSvg().split('fill=\"none\"').length - 1"
    assert page.get(outlined) == 0
    page.find(".critical input").click()
    page.settle("bfpp.showStep()")
    path = panel.critical_path
    graph, duration = panel.timeline.graph, panel.timeline.duration
    ends = sum(2 if graph.peer_lane[task] >= 0 else 1 for task in path if duration[task] > 0)
    assert page.get(outlined) == ends
    page.settle("bfpp.show(0, 0.5)")
    assert page.get(outlined) == 1


@in_browser
def test_a_page_without_causes_offers_none(opened: Callable[..., Page]) -> None:
    page = opened(Panel("plain", small()))
    assert not page.find(".critical").is_displayed()
    assert "idle stretch" not in page.find(".hint").text


@in_browser
def test_a_task_is_found_by_its_name(opened: Callable[..., Page]) -> None:
    shown, graph = small(), small().graph
    page = opened(Panel("", shown))
    for text, expected in {
        "2F3": [Operation.FORWARD, 2, 3],
        "backward, stage 1 micro-batch 7": [Operation.BACKWARD, 1, 7],
    }.items():
        page.find(".find input").clear()
        page.find(".find input").send_keys(text + "\ue007")
        page.settle("bfpp.show(...bfpp.view())")
        operation, stage, microbatch = expected
        [task] = np.flatnonzero(
            (graph.operation == operation)
            & (graph.stage == stage)
            & (graph.microbatch == microbatch)
        )
        assert page.find(".found").text in ("1 of 1", "1 found")
        first, last = page.get("bfpp.view()")
        assert first < shown.start[task] < shown.end[task] < last
    page.find(".find input").clear()
    page.find(".find input").send_keys("optimizer rank 2")
    assert page.find(".found").text == "1 found"


@in_browser
def test_an_address_leads_to_a_view(opened: Callable[..., Page]) -> None:
    page = opened(Panel("", small()), fragment="#from=0.01&to=0.02&channels=0&find=2F3")
    assert page.get("bfpp.view()") == [0.01, 0.02]
    assert not page.find(".channels input").is_selected()
    page.settle("bfpp.show(0.01, 0.03).then(() => new Promise((done) => setTimeout(done, 400)))")
    assert page.get("location.hash") == "#from=0.01&to=0.03&channels=0&find=2F3"
    page.settle("bfpp.showStep().then(() => new Promise((done) => setTimeout(done, 400)))")
    assert page.get("location.hash") == "#channels=0&find=2F3"


@in_browser
def test_keys_go_through_tasks_and_idle_stretches(opened: Callable[..., Page]) -> None:
    panel = explained()
    page = opened(panel)
    shown = panel.timeline
    first = shown.graph.task(int(shown.compute_tasks(0)[0]))
    page.find("figure").send_keys(".")
    page.settle("bfpp.ready")
    assert f"Micro-batch {first.microbatch}" in page.find(".tip").text
    page.find("figure").send_keys("i")
    page.settle("bfpp.ready")
    assert page.find(".why").text.startswith("Rank 0 waits")


@in_browser
def test_a_picture_can_be_saved(opened: Callable[..., Page]) -> None:
    from xml.etree import ElementTree

    page = opened(Panel(HOSTILE, small()))
    drawn = ElementTree.fromstring(page.get("bfpp.pictureAsSvg()"))
    texts = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == HOSTILE
    assert "Rank 3" in texts
    fills = {each.get("fill") for each in drawn.iter("{http://www.w3.org/2000/svg}rect")}
    assert {fill(Operation.FORWARD, 3, 32), fill(Operation.BACKWARD, 31, 32), IDLE} <= fills
    assert (
        page.driver.execute_async_script(
            "bfpp.pictureAsPng().then((blob) => arguments[0](blob.type))"
        )
        == "image/png"
    )


@in_browser
def test_what_was_found_is_filtered(driver: Any, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(
        "layers = 4\nhidden = 256\nheads = 4\nsequence = 128\nvocabulary = 1024\n"
    )
    words = "search --cluster dgx1-v100 --gpus 2 --batch 4 --workers 1 --json"
    model, address = tmp_path / "tiny.toml", tmp_path / "found.html"
    assert main([*words.split(), "--model", str(model), "--html", str(address)]) == 0
    page = Page(driver, address.as_uri())
    everything = page.get("document.querySelectorAll('.plot circle').length")
    assert 0 < page.get("document.querySelectorAll('.plot .pareto').length") < everything
    assert page.get("bfpp.panels().length") == 3
    page.find(".filters [name=schedule]").send_keys("gpipe")
    kept = page.get("document.querySelectorAll('.plot circle').length")
    assert 0 < kept < everything
    assert page.find(".counted").text.startswith(f"{kept} of {everything} configurations")
    assert page.complaints() == []
