"""The experiments that SCHEDULE means, by name or by file: alone, or side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bfpp.launchers.recognise import is_launch_file
from bfpp.options.experiment_file import experiment_of_file, is_experiment_file, read_experiment
from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.formats.orders_file import GivenOrders
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.experiment.side_by_side import side_by_side
from bfpp.sim.experiment.values import DEFAULTS, OPTIONS


def holds_experiment(schedule: str) -> bool:
    """True if SCHEDULE is a file, or a command, that says a whole experiment."""
    return is_experiment_file(schedule) or is_launch_file(schedule)


def named(schedule: str, *, trust: bool = False) -> Experiment:
    """The experiment of a file or a command, or one with the schedule of that name.

    With `trust`, an experiment file may name Python code.
    """
    if is_launch_file(schedule):
        from bfpp.launchers.launch_file import read_launch_file  # start-up time

        return read_launch_file(schedule).experiment
    if is_experiment_file(schedule):
        return read_experiment(schedule, trust=trust)
    return experiment_of_file(schedule, {"schedule": schedule})


def require_model(schedule: str, experiment: Experiment) -> None:
    """Refuse an experiment of SCHEDULE and options that is a launch file's, and has no model."""
    if experiment.model is None and is_launch_file(schedule):
        reason = f"{schedule} names no model: --model NAME does, and --seq-length its tokens"
        raise InvalidConfiguration("schedule", reason)


def compared(names: Sequence[str], *, trust: bool = False) -> list[Experiment]:
    """The experiments of files, and schedules by name: these have the values of the first file."""
    known = {name: named(name, trust=trust) for name in names}
    files = {
        name: each
        for name, each in known.items()
        if holds_experiment(name) or isinstance(each.rule, GivenOrders)
    }
    if not files:
        return [known[name] for name in names]
    first = next(iter(files.values()))
    values = {each: getattr(first, each) for each in OPTIONS}
    values = {each: value for each, value in values.items() if value != DEFAULTS[each]}
    return [files.get(name) or side_by_side([known[name]], values)[0] for name in names]


def require_same_unit(experiments: Iterable[Experiment]) -> None:
    """Refuse to compare seconds of a cluster with abstract ones."""
    if len({each.model is None for each in experiments if each.profile is None}) > 1:
        raise InvalidConfiguration(
            "model",
            "abstract seconds do not compare with those of a model on a cluster: all need --model "
            "and --cluster, or none",
        )
