"""The explorer: what choices mean, who is served, and that its replay is the engine's."""

from __future__ import annotations

import http.client
import json
import random
import shlex
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bfpp.api.panel import panel_of
from bfpp.api.predictions import predict
from bfpp.api.results import verdict
from bfpp.command_line import main
from bfpp.options.experiment_file import read_experiment
from bfpp.reports.explorer import static
from bfpp.reports.explorer.answers import GAINS, answer, predicted
from bfpp.reports.explorer.choices import MODEL_ONLY, SECONDS, chosen
from bfpp.reports.explorer.server import LONGEST, ExplorerServer
from bfpp.reports.explorer.static import LISTED, static_page
from bfpp.schedules import InvalidInput
from bfpp.sim.engines.engines import simulate
from tests.helpers.browser import Page, chromium, is_installed

FEW = LISTED | {
    "schedule": ("1f1b", "breadth-first", "chimera", "zb-h1", "dualpipe-v", "seq1f1b"),
    "pp": ("2", "4"),
    "microbatches": ("8",),
}
ABSTRACT = {"costs": "abstract"}
ORDERS = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


@pytest.mark.parametrize(
    "choices",
    [
        {},
        ABSTRACT
        | {"schedule": "zb-h1", "beside": "", "pp": "3", "gather": "1", "sharding": "full"},
        ABSTRACT | {"pp_overlap": "false", "schedule": "1f1b", "beside": "gpipe"},
        {"model": "bert-6.6b", "cluster": "dgx1-v100", "tp": "2", "recompute": "full"},
    ],
    ids=["opening", "abstract", "flags", "model"],
)
def test_the_command_and_the_files_mean_the_same(
    choices: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = answer(choices)
    expected = [predict(each).timeline.step_time for each in chosen(choices).experiments]
    assert main([*shlex.split(given["command"])[1:], "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)["schedules"]
    assert [each["step_time"] for each in printed] == expected
    for (_, text), step_time in zip(given["experiments"], expected, strict=True):
        (tmp_path / "experiment.toml").write_text(text)
        experiment = read_experiment(str(tmp_path / "experiment.toml"))
        assert predict(experiment).timeline.step_time == step_time


def test_an_answer_has_the_timelines_with_their_numbers_causes_and_memory() -> None:
    given = answer({})
    assert given["lead"].startswith("depth-first is the fastest")
    assert [panel["headline"][0][:6] for panel in given["panels"]] == ["fits: "] * 2
    assert given["panels"][0]["headline"][-1] == "implementation current"
    for panel, experiment in zip(given["panels"], chosen({}).experiments, strict=True):
        assert ["step time", f"{predict(experiment).step_time:.4g} s"] in [
            list(pair) for pair in panel["summary"]
        ]
        assert panel["waits"]["data"]
        assert panel["criticalPath"]
        assert panel["memory"]["ranks"] == [0, 1, 2, 3]
        causes = sum(seconds for _, seconds in panel["causes"])
        assert causes == pytest.approx(predict(experiment).timeline.step_time)


def test_orders_take_the_place_of_the_schedule() -> None:
    given = answer(ABSTRACT | {"orders": ORDERS, "beside": "", "transfer": "0"})
    [panel] = given["panels"]
    assert panel["ranks"] == 2
    broken = answer(ABSTRACT | {"orders": ORDERS.replace("0B1", "0B7"), "beside": ""})
    assert broken["wrong"]["field"] == "schedule"
    assert "orders.csv" in broken["wrong"]["reason"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pp", "0"), ("pp", "many"), ("forward", "nan"), ("microbatches", "9" * 30),
        ("schedule", "/etc/passwd"), ("schedule", "evil.py:SCHEDULE"), ("model", "model.toml"),
        ("profile", "profile.toml"), ("constants", "a"), ("precision", "fp3"), ("nothing", "1"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_and_no_file_is_read(name: str, text: str) -> None:
    wrong = answer((ABSTRACT if name == "forward" else {}) | {name: text})["wrong"]
    assert wrong["reason"]
    assert wrong.get("field", name) == name


@pytest.fixture(scope="module")
def server() -> Iterator[ExplorerServer]:
    with serving() as started:
        yield started


@contextmanager
def serving() -> Iterator[ExplorerServer]:
    with ExplorerServer(0) as started:
        thread = threading.Thread(target=started.serve_forever)
        thread.start()
        yield started
        started.shutdown()
        thread.join()


def asked(
    server: ExplorerServer, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    with closing(http.client.HTTPConnection(server.host, timeout=30)) as connection:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response, response.read()


def test_only_requests_to_its_own_address_are_served(server: ExplorerServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.address == f"http://127.0.0.1:{server.server_address[1]}/"
    page, text = asked(server, "GET", "/")
    assert page.status == 200
    assert b"connect-src 'self'" in text
    assert page.headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    evil = {"Host": "evil.example:80"}, {"Origin": "http://evil.example"}
    for status, response in {
        404: [
            asked(server, "GET", "/step"),
            asked(server, "GET", "/../etc/passwd"),
            asked(server, "POST", "/", b"{}"),
        ],
        403: [
            asked(server, method, path, b"{}", **each)
            for each in evil
            for method, path in (("POST", "/step"), ("GET", "/"))
        ],
        400: [
            asked(server, "POST", "/step", each) for each in (b"[1]", b"{", b"\xff", b"[" * 200_000)
        ],
        413: [
            asked(server, "POST", "/step", b"", **{"Content-Length": each})
            for each in ("9" * 9, str(LONGEST + 1), "9" * 5000, "-1", "1e3")
        ],
    }.items():
        assert [each.status for each, _ in response] == [status] * len(response)


def test_choices_are_answered(server: ExplorerServer) -> None:
    response, text = asked(server, "POST", "/step", b'{"pp": "2", "beside": ""}')
    assert response.status == 200
    assert json.loads(text)["panels"][0]["ranks"] == 2


def test_no_schedule_and_faults_are_answers(
    server: ExplorerServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer({"schedule": ""}) == {"wrong": {"field": "schedule", "reason": "must be chosen"}}

    def fails(_: Any) -> None:
        raise KeyError("schedule")

    monkeypatch.setattr("bfpp.reports.explorer.server.answer", fails)
    assert "KeyError is a fault" in json.loads(server.answer({}))["wrong"]["reason"]
    assert "Traceback" in capsys.readouterr().err


def test_what_does_not_fit_is_not_the_fastest() -> None:
    large = {"tp": "1"}
    both = answer(large)["lead"]
    assert both.count("does not fit: ") == 2
    assert "fastest" not in both
    two = [predicted(each) for each in chosen({**large, "tp": "8"}).experiments]
    lead = verdict(two)
    fits = [not each.shortage for each in two]
    assert ("fastest" in lead) == all(fits)
    assert "only one" not in lead or sum(fits) == 1


def test_a_port_that_is_taken_is_told(
    server: ExplorerServer, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = str(server.server_address[1])
    assert main(["explore", "--port", taken]) == 2
    assert "--port" in capsys.readouterr().err
    assert main(["explore", "--port", "65536"]) == 2


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    pytest.importorskip("selenium", reason="selenium is not installed")
    if not is_installed():
        pytest.skip("needs chromium and chromedriver on the path")
    with chromium() as started:
        yield started


@pytest.mark.browser
def test_the_page_follows_choices_and_its_address_leads_back(
    driver: Any, server: ExplorerServer
) -> None:
    page = Page(driver, server.address)
    assert "depth-first is the fastest" in page.find(".lead").text
    assert page.find(".headline").text.startswith("fits: ")
    assert page.get("bfpp.panels().length") == 2
    field = page.find("[name=pp]")
    field.clear()
    field.send_keys("2")
    page.find("[name=beside]").send_keys("zb-h1")
    page.settle("bfpp.asked().then(() => new Promise((done) => setTimeout(done, 400)))")
    assert page.get("bfpp.panels().map(({ ranks }) => ranks)") == [2, 2]
    shown, lead = page.get("location.hash"), page.find(".lead").text
    assert shown == "#beside=zb-h1&pp=2"
    with serving() as another:  # somebody else's
        elsewhere = Page(driver, another.address + shown)
        assert elsewhere.find(".lead").text == lead
    again = Page(driver, server.address + shown)
    assert again.find(".lead").text == lead
    again.settle("bfpp.asked()")  # nothing has changed; what changes later is still asked for
    field = again.find("[name=pp]")
    field.clear()
    again.settle("bfpp.asked()")
    field.send_keys("0")
    again.settle("bfpp.asked()")
    assert "pp: must be" in again.find(".lead").text
    assert again.complaints() == []


@pytest.mark.browser
def test_costs_that_do_not_count_are_not_shown(driver: Any, server: ExplorerServer) -> None:
    page = Page(driver, server.address)

    def shown() -> set[str]:
        fields = page.get(
            "[...document.querySelector('.choices').elements].filter((each) => each.name &&"
            "!each.closest('[hidden]')).map(({ name }) => name)"
        )
        return set(fields)

    assert shown() >= set(MODEL_ONLY)
    assert shown().isdisjoint(SECONDS)
    page.find("[name=tp]").clear()
    page.find("[name=tp]").send_keys("1")
    page.settle("bfpp.asked().then(() => new Promise((done) => setTimeout(done, 400)))")
    lead = page.find(".lead").text
    assert lead.count("does not fit: ") == 2
    assert "fastest" not in lead
    assert page.find(".headline .short").text.startswith("does not fit: ")
    abstract = page.find(".tabs button[value=abstract]")
    abstract.click()
    page.settle("bfpp.asked().then(() => new Promise((done) => setTimeout(done, 400)))")
    assert abstract.get_attribute("aria-pressed") == "true"
    assert shown().isdisjoint(MODEL_ONLY)
    assert shown() >= set(SECONDS)
    assert page.get("location.hash") == "#costs=abstract&tp=1"
    assert page.find(".headline").text.split("\n")[1].startswith("bubble ratio ")
    assert page.complaints() == []


@pytest.mark.browser
def test_a_link_to_what_there_is_not_is_told(driver: Any, server: ExplorerServer) -> None:
    for name in ("schedule", "beside", "model", "sharding"):
        page = Page(driver, f"{server.address}#{name}=nope")
        page.settle("bfpp.asked()")
        assert page.find(".lead").text.startswith(f"{name}: 'nope' is not one of")
        page.complaints()


def differences(page: Page, choices: dict[str, str]) -> float:
    """The largest difference of the page's starts to the engine's, in steps; 0 if neither can."""
    starts, path = page.driver.execute_async_script(
        "const [choices, done] = arguments; bfpp.replayedAnswer(choices).then(({ panels }) =>"
        "done(panels ? [[...panels[0].start], panels[0].criticalPath] : [null, null]),"
        "(error) => done([error.stack, null]))",
        {**choices, "beside": ""},
    )
    try:
        [experiment] = chosen({**choices, "beside": ""}).experiments
        graph = experiment.graph()
    except InvalidInput:
        assert starts is None
        return 0.0
    expected = simulate(graph, experiment.costs)
    assert np.shape(starts) == expected.start.shape
    assert path == sorted(path)
    assert expected.duration[path].sum() == pytest.approx(expected.step_time)
    return float(np.abs(starts - expected.start).max() / max(expected.step_time, 1e-9))


def replays_as_the_engine(driver: Any, page: Path, share: float) -> None:
    page.write_text(static_page())
    listed = static.LISTED
    opened = Page(driver, page.as_uri())
    chance = random.Random(7)
    for choice in product(*listed.values()):
        if chance.random() < share:
            costs = {name: str(chance.choice([0, 0.05, 0.3, 1, 2.5])) for name in SECONDS}
            choices = ABSTRACT | dict(zip(listed, choice, strict=True)) | costs
            assert differences(opened, choices) < 1e-9, choices
    assert opened.complaints() == []


@pytest.mark.browser
def test_the_pages_replay_is_the_engines(
    driver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static, "LISTED", FEW)
    replays_as_the_engine(driver, tmp_path / "index.html", 0.5)


@pytest.mark.browser
def test_the_file_says_what_the_server_does_of_models_and_of_the_opening_costs(
    driver: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(static, "LISTED", FEW)
    monkeypatch.setattr(static, "CASES", {"pp": ("4",), "sharding": ("full",)})
    (tmp_path / "index.html").write_text(static_page())
    page = Page(driver, (tmp_path / "index.html").as_uri())
    assert "predicted beforehand: llama3-70b (cluster dgx-h100," in page.find(".note").text
    of_model = {"schedule": "breadth-first", "pp": "4", "sharding": "full", "microbatches": "8"}
    opening = ABSTRACT | {"schedule": "breadth-first", "microbatches": "8"}
    for choices in (opening, of_model | {"model": "llama3-8b", "beside": "zb-h1"}):
        given = page.driver.execute_async_script(
            "const [choices, done] = arguments; bfpp.replayedAnswer(choices).then("
            "({ panels, ...others }) => done({ ...others, said: panels.map(({ summary, causes,"
            "waits, memory }) => [summary, causes, waits.length, memory.length]) }))",
            choices,
        )
        served = {**choices, **static.MODELS.get(choices.get("model", ""), {})}
        results = [predicted(each) for each in chosen(served).experiments]
        assert given["lead"] == verdict(results)
        panels = [panel_of(each, GAINS) for each in results]
        assert given["said"] == json.loads(json.dumps([
            [panel.summary, panel.causes, len(panel.waits), len(panel.memory)] for panel in panels
        ]))  # fmt: skip
        assert main([*shlex.split(given["command"])[1:], "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)["schedules"]
        assert [each["step_time"] for each in printed] == [
            panel.timeline.step_time for panel in panels
        ]
        for (_, text), panel in zip(given["experiments"], panels, strict=True):
            (tmp_path / "experiment.toml").write_text(text)
            experiment = read_experiment(str(tmp_path / "experiment.toml"))
            assert predict(experiment).timeline.step_time == panel.timeline.step_time
    page.find("[name=schedule]").send_keys("breadth-first")
    page.find("[name=microbatches]").send_keys("8")
    page.find("[name=sharding]").send_keys("zero1")
    page.settle("bfpp.asked()")
    assert "is predicted for pp 4, sharding full" in page.find(".lead").text
    assert page.complaints() == []


@pytest.mark.browser
@pytest.mark.slow
def test_every_listed_step_replays_as_the_engine(driver: Any, tmp_path: Path) -> None:
    replays_as_the_engine(driver, tmp_path / "index.html", 1.0)


CONTROLS = {
    "button", "checkbox", "combobox", "spinbutton", "searchbox", "textbox", "application", "region",
    "navigation", "form", "DisclosureTriangle",
}  # fmt: skip
"""Roles of what somebody can use or go to, which needs a name."""


@pytest.fixture(scope="module")
def explored(driver: Any, server: ExplorerServer) -> Page:
    """The explorer, with all of its choices to be seen."""
    page = Page(driver, server.address)
    driver.execute_script(
        "for (const each of document.querySelectorAll('details')) each.open = true"
    )
    return page


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_on_any_screen(explored: Page, scheme: str, width: int) -> None:
    explored.emulate(scheme, width)
    assert explored.get("document.documentElement.scrollWidth") <= width
    assert explored.pale() == []
    labels = explored.driver.execute_script(
        "return [...document.querySelectorAll('.numbers tbody th')].map((each) =>"
        " each.getBoundingClientRect().height / parseFloat(getComputedStyle(each).lineHeight))"
    )
    assert max(labels) < 4.5  # lines of a label: none is broken letter by letter
    paper = explored.get("getComputedStyle(document.documentElement).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") is (scheme == "light")


@pytest.mark.browser
def test_fingers_move_and_zoom(explored: Page) -> None:
    explored.emulate(width=390)
    explored.driver.execute_script("document.querySelector('figure').scrollIntoView()")
    whole = explored.get("bfpp.view()")
    x, y = explored.place_of(explored.get("bfpp.view()[1] / 2"))
    explored.touch(((x - 20, y), (x - 90, y)), ((x + 20, y), (x + 90, y)))
    near = explored.get("bfpp.view()")
    assert near[1] - near[0] < 0.5 * (whole[1] - whole[0])
    explored.touch(((x, y), (x - 60, y)))
    moved = explored.get("bfpp.view()")
    assert moved[0] > near[0]
    assert moved[1] - moved[0] == pytest.approx(near[1] - near[0])


@pytest.mark.browser
def test_whatever_can_be_used_has_a_name_and_news_is_told(explored: Page) -> None:
    explored.emulate()
    found = explored.named()
    assert {role for role, _ in found} >= CONTROLS - {"region"}
    assert [role for role, name in found if role in CONTROLS and not name.strip()] == []
    told = "[...document.querySelectorAll('[role=status], output')].map((each) => each.className)"
    assert {"lead", "tip", "matches"} <= set(explored.get(told))


@pytest.mark.browser
def test_keys_alone_reach_everything(explored: Page) -> None:
    explored.emulate()
    # Where something was touched last, Tab would go on from there.
    explored.driver.execute_script(
        "document.body.tabIndex = -1; document.body.focus();"
        "document.body.removeAttribute('tabindex')"
    )
    usable = (
        "[...document.querySelectorAll('summary, select, button, input, textarea, figure, .numbers'"
        ")].filter((each) => each.checkVisibility() && each.tabIndex >= 0)"
    )
    explored.driver.execute_script("window.reached = new Set()")
    for _ in range(explored.get(f"{usable}.length")):
        explored.mouse().send_keys("\ue004").perform()
        explored.driver.execute_script("reached.add(document.activeElement)")
        outlined = "getComputedStyle(document.activeElement).outlineStyle"
        assert explored.get(outlined) != "none"
    assert (
        explored.get(f"{usable}.filter((each) => !reached.has(each)).map((each) => each.outerHTML)")
        == []
    )
    explored.driver.execute_script("document.querySelector('[name=pp]').select()")
    explored.mouse().send_keys("2").perform()
    explored.settle("bfpp.asked()")
    assert explored.get("bfpp.panels().map(({ ranks }) => ranks)") == [2, 2]
    explored.driver.execute_script("document.querySelector('figure').focus()")
    explored.mouse().send_keys("i").perform()
    explored.settle("bfpp.show(...bfpp.view())")
    explored.mouse().send_keys(".").perform()
    assert explored.find(".tip").is_displayed()
