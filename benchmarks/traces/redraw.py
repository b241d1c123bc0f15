"""Time to load and to redraw the page of timelines, in real Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.helpers.measure import Results
from bfpp.schedules import Communication, Layout, Sharding, build_graph
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.engines import simulate
from bfpp.traces.figures.panel import Panel
from bfpp.traces.page.html import write_html
from tests.helpers.browser import Page, chromium

LAYOUTS = (Layout(8, 64, 4), Layout(16, 400, 8), Layout(32, 480, 16))
COSTS = AbstractCosts(1e-3, 2e-3, transfer=1e-4, gather=3e-3, reduce=5e-3, optimizer=1e-3)
REDRAWS = 21
SPANS = {"whole step": 1.0, "a tenth": 0.1, "a thousandth": 0.001}

REDRAW = """
const [from, to, done] = arguments;
bfpp.show(from, to).then(() => done(bfpp.state.milliseconds));
"""
"""The scripts' own share of a frame, in which everything is drawn."""

FRAMES = """
const [count, done] = arguments, begun = performance.now();
const [first, last] = bfpp.view(), length = last - first;
const next = (at) => at === count ? done((performance.now() - begun) / count)
  : bfpp.show(first + 1e-4 * at * length, last - 1e-4 * at * length).then(() => next(at + 1));
next(0);
"""
"""From frame to frame, as somebody sees who zooms all the time."""


def measured(browser: Any, page: Path) -> dict[str, str]:
    Page(browser, page.as_uri())
    loaded = browser.execute_script("return performance.now()")
    first, last = browser.execute_script("return bfpp.view()")
    row = {"MB": f"{page.stat().st_size / 1e6:.1f}", "loaded (s)": f"{loaded / 1000:.2f}"}
    for name, share in SPANS.items():
        middle, half = (first + last) / 2, (last - first) * share / 2
        window = middle - half, middle + half
        taken = [browser.execute_async_script(REDRAW, *window) for _ in range(REDRAWS)]
        row[f"{name} (ms)"] = f"{median(taken):.1f}"
        frame = browser.execute_async_script(FRAMES, REDRAWS)
        row[f"{name}, frames a second"] = f"{1000 / frame:.0f}"
    return row


@contextmanager
def pages() -> Iterator[list[tuple[int, Path]]]:
    with TemporaryDirectory() as folder:
        written = []
        for layout in LAYOUTS:
            graph = build_graph("breadth-first", layout, Communication(Sharding.FULL))
            page = Path(folder) / f"{len(graph)}.html"
            write_html([Panel("", simulate(graph, COSTS))], page, "redraw")
            written.append((len(graph), page))
        yield written


def run() -> Results:
    with pages() as written, chromium() as browser:
        rows = [{"tasks": f"{tasks:,}"} | measured(browser, page) for tasks, page in written]
    return Results(
        "Pages of timelines redrawn",
        "30 frames a second (33 ms a redraw) with a million tasks",
        rows,
        [f"Headless Chromium without a GPU; transfers hidden on large steps; {REDRAWS} redraws."],
    )
