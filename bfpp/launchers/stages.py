"""Stages of an experiment, as frameworks take them."""

from __future__ import annotations

from typing import Any

from bfpp.schedules.layout.framework_cuts import layout_text, module_names
from bfpp.schedules.layout.layout import Layout
from bfpp.sim.experiment.experiment import Experiment


def loops_around(layout: Layout) -> bool:
    """True if stages loop around the ranks, the default placement of other frameworks."""
    return layout.placement == tuple(range(layout.pp)) * layout.loops and not layout.copies


def stages_for_others(experiment: Experiment) -> dict[str, Any]:
    """The layers of each stage, and their cut as Megatron-LM and torchtitan take it.

    Megatron-LM loops around the ranks: it has no layout for stages that are placed otherwise.
    """
    layers, loops = experiment.layers_of_stages, loops_around(experiment.configuration.layout)
    predictions = experiment.transformer.prediction_modules
    return {
        "layers_of_stages": list(layers),
        "megatron_layout": layout_text(layers, predictions) if loops else None,
        "torchtitan_modules": None if predictions else module_names(layers),
    }
