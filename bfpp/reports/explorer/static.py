"""The explorer as one file that needs neither Python nor a network: listed steps, any costs.

The page holds the graph of every step that is listed, and replays it with the costs that are
chosen. A task costs a sum of shares of the abstract costs, which are asked of the cost model one by
one: nothing in the page knows how tasks are priced. Of the costs that it opens with, and of a model
on a cluster, it has what a server would answer, including causes and memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from bfpp.api.panel import panel_of
from bfpp.api.predictions import Prediction
from bfpp.options.experiment_file import experiment_text
from bfpp.reports.explorer.answers import GAINS, TITLE, predicted
from bfpp.reports.explorer.choices import (
    ABSTRACT_TAB,
    COSTS,
    MODEL,
    SECONDS,
    TABS,
    chosen,
    defaults,
    groups,
)
from bfpp.schedules import InvalidInput, TaskGraph, registered_schedules
from bfpp.schedules.columns import Seconds
from bfpp.schedules.graph.counts import peak_microbatches
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.traces.page.html import document
from bfpp.traces.page.panel_data import graph_data, packed, panel_data, timeline_data

LISTED = {
    "schedule": tuple(registered_schedules()),
    "pp": ("2", "4", "8"),
    "loops": ("2", "4"),
    "microbatches": ("8", "16"),
    "sharding": ("zero1", "full"),
}
"""The choices whose combinations the page has."""

MODELS: dict[str, Mapping[str, str]] = {
    "llama3-70b": {"cluster": "dgx-h100", "tp": "8", "dp": "4"},
    "llama3-8b": {"cluster": "dgx-h100", "tp": "1", "dp": "8"},
}
"""Models whose steps are predicted beforehand, and what comes with them."""

CASES = {"pp": ("4", "8"), "microbatches": ("16",), "sharding": ("zero1",)}
"""Of the combinations, those that are predicted beforehand with each model."""


def static_page() -> str:
    """The page, as text."""
    names = {*LISTED, COSTS, "beside", "model", *SECONDS}
    choices = {
        "groups": [group for group in map(partial(_group, names), groups()) if group],
        "defaults": {name: text for name, text in defaults().items() if name in names},
        "address": None,
        "listed": list(LISTED),
        "models": MODELS,
        "cases": CASES,
        "tabs": TABS,
        "note": _note(),
        "costs": SECONDS,
        "steps": dict(_steps()),
    }
    content = {"title": TITLE, "lead": "", "opensWithChannels": False, "panels": []}
    return document({**content, "choices": choices})


def _note() -> str:
    """The cases of models that the page has, and what has others."""
    listed = [
        f"{model} ({', '.join(f'{name} {value}' for name, value in others.items())})"
        for model, others in MODELS.items()
    ]
    sizes = [f"{name} {' or '.join(values)}" for name, values in CASES.items()]
    return (
        f"Cases of models were predicted beforehand: {', '.join(listed)}, with {', '.join(sizes)}. "
        "Abstract costs are replayed here, whatever they are. bfpp explore predicts anything else."
    )


def _group(names: set[str], group: Mapping[str, Any]) -> dict[str, Any]:
    """A group with the fields that the page can answer, if any; what is listed as lists."""
    listed = {**LISTED, "model": tuple(MODELS)}
    fields = [
        {**field, "choices": listed[field["name"]]} if field["name"] in listed else field
        for field in group["fields"]
        if field["name"] in names
    ]
    return {**group, "open": True, "fields": fields} if fields else {}


def _steps() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every step, by the choices that lead to it."""
    for choice in product(*LISTED.values()):
        choices = {**dict(zip(LISTED, choice, strict=True)), "beside": "", COSTS: ABSTRACT_TAB}
        try:
            opening = predicted(*chosen(choices).experiments)
        except InvalidInput:
            continue
        text = experiment_text(opening.experiment.changed(**dict.fromkeys(SECONDS)))
        graph = opening.timeline.graph
        data = graph_data(graph) | _prices(graph)
        yield " ".join(choice), {**data, "known": _known(choices, opening), "experiment": text}


def _known(choices: Mapping[str, str], opening: Prediction) -> dict[str, dict[str, Any]]:
    """A server's answers, by model; without one, for the costs that the page opens with."""
    known = {"": timeline_data(panel_of(opening, GAINS))}
    if all(choices[name] in values for name, values in CASES.items()):
        for model, others in MODELS.items():
            with suppress(InvalidInput):  # layers that do not divide
                of_model = {**choices, COSTS: MODEL, "model": model, **others}
                [experiment] = chosen(of_model).experiments
                prediction = predicted(experiment)
                known[model] = {
                    **panel_data(panel_of(prediction, GAINS)),
                    "experiment": experiment_text(experiment),
                    "shortage": prediction.shortage,
                }
    return known


def _prices(graph: TaskGraph) -> dict[str, Any]:
    """Data to replay a step: each task's shares of the costs, and all that needs no times."""
    costs = [_seconds(graph, name) for name in SECONDS]
    shares, of_task = np.unique(np.stack(costs, axis=1), axis=0, return_inverse=True)
    peak = f"{peak_microbatches(graph).max():.4g}"
    return {
        "title": graph.schedule,
        "summary": [("peak in-flight micro-batches", peak)],
        "causes": [],
        "times": packed({"price": of_task.reshape(-1).astype(np.int32)}),
        "shares": shares.tolist(),
    }


def _seconds(graph: TaskGraph, name: str) -> Seconds:
    """Duration of each task where one of the abstract costs is a second, and the others nothing."""
    prices: dict[str, Any] = {each: float(each == name) for each in SECONDS}
    return AbstractCosts(**prices).costs(graph).seconds
