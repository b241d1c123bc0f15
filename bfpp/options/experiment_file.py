"""Experiments as files: TOML with the values that are not the defaults, by their names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from bfpp.launchers.launch import stages_for_others
from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.formats.python_file import MARK, file_of, require_trust
from bfpp.schedules.reading import exists
from bfpp.sim.cluster.software_profiles import BEFORE
from bfpp.sim.experiment.experiment import Experiment, experiment_of
from bfpp.sim.experiment.values import OPTIONS
from bfpp.sim.presets.file_kinds import EXPERIMENT, require_kind
from bfpp.sim.presets.files import read_toml

FIELD = "schedule"


def is_experiment_file(name: str) -> bool:
    """True if SCHEDULE is an experiment file, not a name."""
    return name.endswith(".toml")


def read_experiment(path: str, *, trust: bool = False) -> Experiment:
    """The experiment of a file; raises `InvalidConfiguration` with the reason in one line.

    The files that it names are looked for in its folder first. A schedule in a Python file is
    loaded, which runs that file, only with `trust`.
    """
    table = read_toml(FIELD, path)
    require_kind(FIELD, path, table, EXPERIMENT)
    if FIELD not in table:
        reason = f"{path} names no schedule: bfpp experiment writes experiment files"
        raise InvalidConfiguration(FIELD, reason)
    values = {name: value for name, value in table.items() if name != "format"}
    for name in (FIELD, *(name for name, option in OPTIONS.items() if option.kind == "name")):
        value = values.get(name)
        if isinstance(value, str) and "." in value:
            folder, named = Path(path).parent, file_of(value) if MARK in value else Path(value)
            values[name] = str(folder / value) if exists(folder / named) else value
    require_trust(path, values[FIELD], trust=trust)
    return experiment_of_file(path, values)


def experiment_of_file(path: str, values: Mapping[str, object]) -> Experiment:
    """The experiment of a file's values; errors are attributed to SCHEDULE."""
    try:
        experiment = experiment_of(values)
        unnamed = experiment.model is not None and experiment.implementation is None
        return experiment.changed(implementation=BEFORE) if unnamed else experiment
    except InvalidConfiguration as error:
        if error.field == FIELD and values.get(FIELD) == path:
            raise
        raise InvalidConfiguration(FIELD, f"{path}: {error.field}: {error.reason}") from None


def experiment_text(experiment: Experiment) -> str:
    """The experiment as TOML; `read_experiment` gives it back."""
    values = {"format": EXPERIMENT.format, **experiment.record}
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())


def comments_for_others(experiment: Experiment) -> str:
    """The same as comments of an experiment file, unless all stages have as many layers."""
    if len(set(experiment.layers_of_stages)) == 1:
        return ""
    stages = stages_for_others(experiment)
    options = {
        "Megatron-LM: --pipeline-model-parallel-layout": stages["megatron_layout"],
        "torchtitan: module_fqns_per_model_part =": stages["torchtitan_modules"],
    }
    return "".join(f"# {name} {json.dumps(value)}\n" for name, value in options.items() if value)
