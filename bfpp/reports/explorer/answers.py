"""The explorer's answers to its page: timelines of the choices, with numbers and causes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from bfpp.api.panel import panel_of
from bfpp.api.predictions import Prediction, predict
from bfpp.api.results import verdict
from bfpp.options.experiment_file import experiment_text
from bfpp.reports.explorer.choices import TABS, chosen, defaults, groups
from bfpp.schedules import InvalidConfiguration, InvalidInput, TaskGraph, build_graph
from bfpp.schedules.configuration import Configuration
from bfpp.sim.experiment.experiment import Experiment
from bfpp.traces.page.html import contents

TITLE = "Explore pipeline schedules"

MOST_TASKS = 200_000
"""Tasks of a step that is explored: more are for `bfpp compare`."""

GAINS = 12
"""Waits, the longest of a timeline, whose gain is known: each takes a replay."""


def opening(address: str | None) -> dict[str, Any]:
    """Initial content of the page: its choices, the address to ask, and the first answer."""
    choices = {
        "groups": groups(),
        "defaults": defaults(),
        "address": address,
        "tabs": TABS,
    }
    return {**answer({}), "opensWithChannels": False, "title": TITLE, "choices": choices}


def answer(choices: Mapping[str, str]) -> dict[str, Any]:
    """The timelines of choices, or the reason why they are `wrong`."""
    try:
        experiments, command = chosen(choices)
        tasks = [each.configuration.layout.tasks for each in experiments]
        if max(tasks) > MOST_TASKS:
            raise InvalidInput(f"a step of about {max(tasks):,} tasks: explore smaller ones")
        results = [predicted(each) for each in experiments]
        panels = [panel_of(result, GAINS) for result in results]
        return {
            **contents(panels, TITLE, verdict(results)),
            "experiments": [[each.rule.name, experiment_text(each)] for each in experiments],
            "command": command,
        }
    except InvalidConfiguration as error:
        return {"wrong": {"field": error.field, "reason": error.reason}}
    except InvalidInput as error:
        return {"wrong": {"reason": str(error)}}


def predicted(experiment: Experiment) -> Prediction:
    """The prediction of an experiment, without the interval of its step time."""
    graph = _graph_of(experiment.configuration)
    return replace(predict(experiment, graph=graph), with_interval=False)


@lru_cache(maxsize=4)
def _graph_of(configuration: Configuration) -> TaskGraph:
    """Kept, since moving a slider of costs asks for the same graph many times."""
    return build_graph(configuration.schedule, configuration.layout, configuration.communication)
