"""The interactive page: what it holds, read back here, and what it does in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import zlib
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bfpp.schedules import Communication, Layout, Operation, Sharding, build_graph, find_schedule
from bfpp.schedules.operations import OPERATIONS
from bfpp.sim.abstract import AbstractCosts
from bfpp.sim.simpy_engine import simulate
from bfpp.traces.appearance import fill
from bfpp.traces.causes import Causes
from bfpp.traces.html import embeddable, packed, page, write_html
from bfpp.traces.panel import Panel
from bfpp.traces.timeline import Timeline

HOSTILE = "</script><img src=x onerror=\"document.title='pwned'\"><b>bold</b> & <br>"
DTYPES = {"Int8Array": "<i1", "Int16Array": "<i2", "Int32Array": "<i4", "Float64Array": "<f8"}


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


def content_of(text: str) -> Any:
    found = re.search(r'<script id="content" type="application/json">(.*?)</script>', text, re.S)
    assert found is not None
    return json.loads(found[1])


def unpacked(column: dict[str, str]) -> np.ndarray:
    return np.frombuffer(zlib.decompress(b64decode(column["data"])), DTYPES[column["type"]])


def test_the_page_holds_every_task_with_its_dependencies() -> None:
    shown = small()
    graph = shown.graph
    [panel] = content_of(page([Panel("breadth-first", shown)], "A step"))["panels"]
    columns = {name: unpacked(column) for name, column in panel["columns"].items()}
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
    colour = unpacked(panel["columns"]["colour"])
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
    assert unpacked(panel["columns"]["start"]).min() == 0


@pytest.mark.parametrize(
    ("most", "kind"),
    [(127, "Int8Array"), (128, "Int16Array"), (32767, "Int16Array"), (32768, "Int32Array")],
)
def test_integers_travel_as_narrow_as_they_are(most: int, kind: str) -> None:
    values = np.array([-1, 0, most], dtype=np.int64)
    assert packed(values)["type"] == kind
    np.testing.assert_array_equal(unpacked(packed(values)), values)


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="32 bits"):
        packed(np.array([2**31]))
    with pytest.raises(ValueError, match="finite"):
        packed(np.array([0.0, np.nan]))
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

DRIVER = "chromedriver"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
OPTIONS = (
    "headless=new",
    "no-sandbox",
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
    "window-size=1400,900",
)

in_browser = pytest.mark.browser


class Page:
    """A page that is open in the browser, and loaded."""

    def __init__(self, driver: Any, path: Path) -> None:
        self.driver = driver
        driver.get(path.as_uri())
        self.settle("bfpp.ready")

    def settle(self, promise: str) -> None:
        """Wait for a promise of the page; fail where it is broken."""
        outcome = self.driver.execute_async_script(
            "const done = arguments[0];"
            f"({promise}).then(() => done('kept'), (error) => done(error.stack))"
        )
        assert outcome == "kept"

    def get(self, expression: str) -> Any:
        return self.driver.execute_script(f"return {expression}")

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def mouse(self) -> Any:
        from selenium.webdriver.common.action_chains import ActionChains

        return ActionChains(self.driver)

    def point_at(self, task: int, shown: Timeline) -> str:
        """What the page says with the pointer on a compute task of rank 0."""
        self.move_to((shown.start[task] + shown.end[task]) / 2).perform()
        words: str = self.find(".tip").text
        return words

    def move_to(self, seconds: float) -> Any:
        """The mouse, on its way to a time in the compute row of rank 0."""
        first, last = self.get("bfpp.view()")
        left, top, width = self.get(
            "(({left, top}, {_offset, _length}) => [left + _offset, top, _length])("
            "document.querySelector('figure').getBoundingClientRect(),"
            "document.querySelector('figure')._fullLayout.xaxis)"
        )
        x = left + width * (seconds - first) / (last - first)
        mouse = self.mouse()
        mouse.w3c_actions.pointer_action.move_to_location(round(x), round(top) + 40)
        return mouse

    def complaints(self) -> list[str]:
        return [
            entry["message"]
            for entry in self.driver.get_log("browser")
            if entry["level"] == "SEVERE"
        ]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if CHROMIUM is None or shutil.which(DRIVER) is None:
        pytest.skip("needs chromium and chromedriver on the path")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for option in (*OPTIONS, f"user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(f"--{option}")
    service = webdriver.ChromeService(executable_path=shutil.which(DRIVER))
    started = webdriver.Chrome(options=options, service=service)
    started.set_script_timeout(30)
    yield started
    started.quit()


@pytest.fixture
def opened(driver: Any, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    pages = []

    def open_page(*panels: Panel, title: str = "A step") -> Page:
        write_html(panels, tmp_path / "page.html", title)
        pages.append(Page(driver, tmp_path / "page.html"))
        return pages[-1]

    yield open_page
    assert [complaint for page in pages for complaint in page.complaints()] == []


PIXEL = """
const [selector, share, y, done] = arguments;
const image = new Image();
image.onload = () => {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.width, image.height];
  const brush = canvas.getContext("2d");
  brush.drawImage(image, 0, 0);
  done([...brush.getImageData(Math.floor(share * image.width), y, 1, 1).data]);
};
image.src = document.querySelector(selector).data[0].source;
"""


def colour_at(page: Page, seconds: float, row: int = 0) -> str | None:
    """The colour of the first figure's heatmap at a time, in one of its rows."""
    first, last = page.get("bfpp.view()")
    top, height = page.get(
        "((at) => [at, document.querySelector('figure')._fullLayout.yaxis.range[0]])"
        f"(document.querySelector('figure')._fullLayout.yaxis.tickvals[{row}])"
    )
    assert 0 < top < height
    share = (seconds - first) / (last - first)
    *channels, opacity = page.driver.execute_async_script(PIXEL, "figure", share, int(top))
    return f"#{bytes(channels).hex()}" if opacity else None


@in_browser
def test_a_small_step_is_drawn_bar_by_bar(opened: Callable[..., Page]) -> None:
    shown = small()
    page = opened(Panel("breadth-first", shown, "four ranks", (("Bubble", "9.4 %"),)))
    state = page.get("bfpp.state")
    on_lanes = len(shown.graph) + int(shown.graph.is_transfer.sum())
    assert (state["mode"], state["bars"], state["redraws"]) == ("bars", on_lanes, 1)
    drawn = page.get(
        "[...document.querySelectorAll('.barlayer .point path')].map((bar) => bar.style.fill)"
    )
    assert len(drawn) == on_lanes
    for operation, microbatch in [(Operation.FORWARD, 3), (Operation.BACKWARD, 31)]:
        red, green, blue = bytes.fromhex(fill(operation, microbatch, 32)[1:])
        assert drawn.count(f"rgb({red}, {green}, {blue})") == shown.graph.layout.units
    page_text = page.find("body").text
    for words in ("breadth-first", "four ranks", "9.4 %", "Forward", "Rank 3", "send gradients"):
        assert words in page_text


@in_browser
def test_labels_are_drawn_where_they_fit(opened: Callable[..., Page]) -> None:
    page = opened(Panel("", small()))
    written = "[...document.querySelectorAll('.barlayer text')].map((text) => text.textContent)"
    assert not {"17", "31"} & set(page.get(written))
    page.settle("bfpp.show(0, 0.05)")
    assert {"0", "17", "31"} <= set(page.get(written))


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
    words = page.point_at(task, shown)
    assert 'In the timeline "Measured"' in words
    assert "1 ms later" in words
    assert "as here" in words
    assert "gpipe" not in words
    assert "Ready" not in words
    assert page.get("document.querySelectorAll('.mark.task').length") == 2


@in_browser
def test_a_measured_task_tells_when_it_was_ready(opened: Callable[..., Page]) -> None:
    shown = replace(small(), posted=small().start - 2e-4, ready=small().start - 1e-4)
    words = opened(Panel("", shown)).point_at(int(shown.compute_tasks(0)[5]), shown)
    assert "Posted" in words
    assert "Ready" in words


@in_browser
def test_channels_can_be_hidden(opened: Callable[..., Page]) -> None:
    page = opened(Panel("", small()))
    assert page.find(".channels input").is_selected()
    page.find(".channels").click()
    page.settle("bfpp.show(...bfpp.view())")
    assert page.get("bfpp.state.bars") == int((~small().graph.is_transfer).sum())
    assert "send gradients" not in page.find("body").text


@in_browser
def test_the_pointer_asks_a_task_what_it_waited_for(opened: Callable[..., Page]) -> None:
    shown = small()
    graph = shown.graph
    page = opened(Panel("", shown))
    on_rank = shown.compute_tasks(0)
    task = int(on_rank[graph.operation[on_rank] == Operation.BACKWARD][2])
    words = page.point_at(task, shown)
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
    page.point_at(task, shown)
    last = max(graph.task(task).dependencies, key=lambda other: shown.end[other])
    told = page.find(".tip li.last").text
    assert told.startswith(OPERATIONS[graph.operation[last]].title.capitalize())
    assert "ended last" in told


@in_browser
def test_a_large_step_turns_from_a_heatmap_into_bars(opened: Callable[..., Page]) -> None:
    shown = large()
    assert len(shown.graph) > 200_000
    page = opened(Panel("breadth-first", shown))
    state = page.get("bfpp.state")
    assert (state["mode"], state["bars"]) == ("heatmap", 0)
    assert state["tasks"] > 100_000

    compute = shown.compute_tasks(0)
    task = int(compute[len(compute) // 4])
    middle = float(shown.start[task] + shown.end[task]) / 2
    near = {fill(Operation.FORWARD, shade, 48) for shade in range(48)}
    assert colour_at(page, middle) in near
    assert page.get("[...document.querySelectorAll('.imagelayer image')].length") == 1

    page.settle(f"bfpp.show({middle - 0.01}, {middle + 0.01})")
    zoomed = page.get("bfpp.state")
    assert zoomed["redraws"] == state["redraws"] + 1
    assert zoomed["mode"] == "bars"
    assert 0 < zoomed["bars"] < 3000
    assert f"Micro-batch {shown.graph.microbatch[task]}" in page.point_at(task, shown)


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
    assert colour_at(page, middle) == fill(Operation.OPTIMIZER)


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
    page.settle("new Promise((resolve) => setTimeout(resolve, 500))")
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
def test_panels_zoom_together(opened: Callable[..., Page]) -> None:
    costs = AbstractCosts(transfer=0.1)
    panels = [
        Panel(name, timeline(name, find_schedule(name).divided(4, 8, 2), costs, Sharding.NONE))
        for name in ("gpipe", "breadth-first")
    ]
    page = opened(*panels)
    page.settle("bfpp.show(2, 5)")
    ranges = page.get(
        "[...document.querySelectorAll('figure')].map((figure) => figure._fullLayout.xaxis.range)"
    )
    assert ranges == [[2, 5], [2, 5]]


@in_browser
def test_redraws_that_pile_up_are_done_once(opened: Callable[..., Page]) -> None:
    page = opened(Panel("", small()))
    before = page.get("bfpp.state.redraws")
    page.settle("Promise.all([1, 2, 3, 4, 5, 6].map((end) => bfpp.show(0, end / 1000)))")
    assert page.get("bfpp.state.redraws") <= before + 2
    assert page.get("document.querySelector('figure')._fullLayout.xaxis.range[1]") == 0.006


@in_browser
def test_hostile_text_is_only_text(opened: Callable[..., Page]) -> None:
    shown = small()
    page = opened(Panel(HOSTILE, shown, HOSTILE, ((HOSTILE, HOSTILE),)), title=HOSTILE)
    assert page.driver.title == re.sub(r"\s+", " ", HOSTILE)
    for selector in ("h1", "h2", ".subtitle", "dt", "dd"):
        assert page.find(selector).text == HOSTILE
    assert page.point_at(int(shown.compute_tasks(0)[0]), shown).startswith("Forward")
    assert page.get("document.querySelectorAll('body img, body dd b').length") == 0


@in_browser
def test_many_ranks_keep_readable_rows(opened: Callable[..., Page]) -> None:
    wide = timeline("1f1b", Layout(96, 96), AbstractCosts())
    page = opened(Panel("", wide))
    assert page.find("figure").rect["height"] > 96 * 14
    assert "Rank 95" in page.find("figure").text
    assert page.get("document.querySelectorAll('.xaxislayer-above, .x2').length") > 0


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
    assert page.get("document.querySelectorAll('.path').length") == 0
    page.find(".critical input").click()
    page.settle("bfpp.showStep()")
    path = panel.critical_path
    graph, duration = panel.timeline.graph, panel.timeline.duration
    ends = sum(2 if graph.peer_lane[task] >= 0 else 1 for task in path if duration[task] > 0)
    assert page.get("document.querySelectorAll('.path').length") == ends
    page.settle("bfpp.show(0, 0.5)")
    assert page.get("bfpp.state.outlined") == 1


@in_browser
def test_a_page_without_causes_offers_none(opened: Callable[..., Page]) -> None:
    page = opened(Panel("plain", small()))
    assert not page.find(".critical").is_displayed()
    assert "idle stretch" not in page.find(".hint").text
