"""The explorer as one file that needs neither Python nor a network: listed steps, any costs.

The page holds the graph of every step that is listed, and replays it with the costs that are
chosen; what does not depend on them comes as numbers. A task costs a sum of shares of the abstract
costs, which are asked of the cost model one by one: nothing in the page knows how tasks are priced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from bfpp.experiment_file import experiment_text
from bfpp.explorer.answers import TITLE
from bfpp.explorer.choices import SECONDS, chosen, defaults, groups
from bfpp.schedules import InvalidInput, TaskGraph, registered_schedules
from bfpp.schedules.columns import Seconds
from bfpp.schedules.counts import peak_microbatches
from bfpp.sim.abstract import AbstractCosts
from bfpp.traces.html import document
from bfpp.traces.panel import Panel
from bfpp.traces.panel_data import described
from bfpp.traces.timeline import Timeline

LISTED = {
    "schedule": tuple(registered_schedules()),
    "pp": ("2", "4", "8"),
    "loops": ("2", "4"),
    "microbatches": ("8", "16"),
    "sharding": ("none", "full"),
}
"""The choices whose combinations the page has."""


def static_page() -> str:
    """The page, as text."""
    names = {*LISTED, "beside", *SECONDS}
    choices = {
        "groups": [group for group in map(partial(_group, names), groups()) if group],
        "defaults": {name: text for name, text in defaults().items() if name in names},
        "address": None,
        "listed": list(LISTED),
        "costs": SECONDS,
        "steps": dict(_steps()),
    }
    content = {"title": TITLE, "lead": "", "opensWithChannels": False, "panels": []}
    return document({**content, "choices": choices})


def _group(names: set[str], group: Mapping[str, Any]) -> dict[str, Any]:
    """A group with the fields that the page can answer, if any; listed numbers as lists."""
    fields = [
        {**field, "choices": LISTED[field["name"]]} if field["name"] in LISTED else field
        for field in group["fields"]
        if field["name"] in names
    ]
    return {**group, "open": True, "fields": fields} if fields else {}


def _steps() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every step that there is, by the choices that lead to it."""
    for choice in product(*LISTED.values()):
        try:
            [experiment] = chosen(
                {**dict(zip(LISTED, choice, strict=True)), "beside": ""}
            ).experiments
            graph = experiment.graph()
        except InvalidInput:
            continue
        text = experiment_text(experiment.changed(**dict.fromkeys(SECONDS)))
        yield " ".join(choice), {**_data(graph), "experiment": text}


def _data(graph: TaskGraph) -> dict[str, Any]:
    """A step as the page replays it, without times but with the shares of costs of each task."""
    costs = [_seconds(graph, name) for name in SECONDS]
    shares, of_task = np.unique(np.stack(costs, axis=1), axis=0, return_inverse=True)
    peak = f"{peak_microbatches(graph).max():.4g}"
    anything = Timeline(graph, np.zeros(len(graph)), shares[of_task.reshape(-1)].sum(axis=1), "")
    panel = Panel(graph.schedule, anything, summary=(("peak micro-batches, any rank", peak),))
    price = of_task.reshape(-1).astype(np.int32)
    return described(panel, {"price": price}) | {"shares": shares.tolist()}


def _seconds(graph: TaskGraph, name: str) -> Seconds:
    """What each task takes where one of the abstract costs is a second, and the others nothing."""
    prices: dict[str, Any] = {each: float(each == name) for each in SECONDS}
    return AbstractCosts(**prices).costs(graph).seconds
