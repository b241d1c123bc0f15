"""The page in headless Chromium: mouse, keys, search, causes, links and saved pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from bfpp.command_line import main
from bfpp.schedules import Operation
from bfpp.traces.figures.appearance import IDLE, fill
from bfpp.traces.figures.panel import Panel
from tests.helpers.browser import Page
from tests.helpers.pages import HOSTILE, explained, small

in_browser = pytest.mark.browser


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
        assert page.find(".matches").text in ("1 of 1", "1 match")
        first, last = page.get("bfpp.view()")
        assert first < shown.start[task] < shown.end[task] < last
    page.find(".find input").clear()
    page.find(".find input").send_keys("optimizer rank 2")
    assert page.find(".matches").text == "1 match"


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
