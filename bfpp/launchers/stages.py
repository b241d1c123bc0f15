"""Stages of an experiment, as frameworks take them."""

from __future__ import annotations

from typing import Any

from bfpp.schedules.layout.framework_cuts import layout_text, module_names
from bfpp.sim.experiment.experiment import Experiment


def stages_for_others(experiment: Experiment) -> dict[str, Any]:
    """The layers of each stage, and their cut as Megatron-LM and torchtitan take it.

    Megatron-LM loops around the ranks: it has no layout for stages that are placed otherwise.
    """
    layers, layout = experiment.layers_of_stages, experiment.configuration.layout
    loops = layout.placement == tuple(range(layout.pp)) * layout.loops and not layout.copies
    predictions = experiment.transformer.prediction_modules
    return {
        "layers_of_stages": list(layers),
        "megatron_layout": layout_text(layers, predictions) if loops else None,
        "torchtitan_modules": None if predictions else module_names(layers),
    }
