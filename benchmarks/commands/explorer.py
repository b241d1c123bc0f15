"""Latency of the explorer: from a choice to its answer, and until a browser shows it."""

from __future__ import annotations

import json
import threading
from statistics import median
from time import process_time
from typing import Any

from benchmarks.helpers.measure import Results, seconds
from bfpp.reports.explorer.answers import answer
from bfpp.reports.explorer.server import ExplorerServer
from tests.helpers.browser import Page, chromium

STEPS = {
    "opening, two schedules": {},
    "one of 8,200 tasks": {"pp": "16", "microbatches": "32", "beside": ""},
    "fully sharded": {"pp": "16", "microbatches": "32", "beside": "", "sharding": "full"},
    "a model": {
        "pp": "8", "tp": "8", "microbatches": "64", "beside": "", "model": "bert-52b",
        "cluster": "dgx1-v100",
    },
}  # fmt: skip
RUNS = 15
SHOW = """
const [name, value, done] = arguments, begun = performance.now();
const field = document.querySelector(`[name=${name}]`);
field.value = value;
field.dispatchEvent(new Event("input", { bubbles: true }));
bfpp.asked().then(() => done(performance.now() - begun));
"""


def measured(server: ExplorerServer, browser: Any, choices: dict[str, str]) -> dict[str, str]:
    given = answer(choices)
    tasks = sum(len_of(panel["summary"]) for panel in given["panels"])
    answered = [seconds(lambda: json.dumps(answer(choices)), process_time) for _ in range(RUNS)]
    fragment = "&".join(f"{name}={text}" for name, text in choices.items())
    Page(browser, f"{server.address}#{fragment}")
    name = "dp" if "model" in choices else "backward"
    shown = [browser.execute_async_script(SHOW, name, 1 + at % 3) for at in range(RUNS)]
    return {
        "tasks": f"{tasks:,}",
        "answered (ms of CPU)": f"{median(answered) * 1000:.0f}",
        "until shown (ms)": f"{median(shown):.0f}",
    }


def len_of(summary: list[tuple[str, str]]) -> int:
    return int(dict(summary)["tasks"].replace(",", ""))


def run() -> Results:
    with ExplorerServer(0) as server, chromium() as browser:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        rows = [{"step": title} | measured(server, browser, each) for title, each in STEPS.items()]
        server.shutdown()
    return Results(
        "The explorer, from a choice to what it shows",
        "100 ms for steps of 10,000 tasks",
        rows,
        [f"Medians of {RUNS}; headless Chromium without a GPU."],
    )
