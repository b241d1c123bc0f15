"""Options that several commands share, and the experiment that they stand for.

What can be said of an experiment is declared in `bfpp.sim.experiment_values`; here it becomes
options, alike for every command. SCHEDULE may also be a file that holds a whole experiment,
of which options then change values.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from bfpp.experiment_file import experiment_of_file, is_experiment_file, read_experiment
from bfpp.numbers_given import seconds as seconds
from bfpp.numbers_given import whole_number as whole_number
from bfpp.schedules import (
    P2P,
    Communication,
    registered_schedules,
)
from bfpp.schedules.given_orders import GivenOrders
from bfpp.schedules.registry import ALIASES
from bfpp.sim.abstract import AbstractCosts
from bfpp.sim.engines import DEFAULT as DEFAULT_ENGINE
from bfpp.sim.engines import ENGINES
from bfpp.sim.experiment import Experiment
from bfpp.sim.experiment_values import (
    ABSTRACT,
    BATCH,
    COMMUNICATION,
    DEFAULTS,
    MEASURED,
    OPTIONS,
    PARALLELISM,
    PHYSICAL,
    STAGES,
    Option,
    of_group,
    parameter_kind,
)

OTHER_NAMES = {
    "loops": ("--virtual-stages", "--vpp"),
    "units_per_stage": ("--stages-per-rank",),
    "pp_overlap": ("--no-overlap",),
    "dp_overlap": ("--no-data-overlap",),
    "sequence": ("--microbatch-group-size-per-virtual-pipeline-stage",),
}
"""Further names of options."""

TYPES = {"count": whole_number, "seconds": seconds, "number": seconds}
"""How the texts of options are read."""


def add_schedule_argument(parser: argparse.ArgumentParser, *more: str) -> None:
    """SCHEDULE, by name or by file; `more` is what else a command takes for it."""
    known = [f"{_names(name)}: {each.summary}" for name, each in registered_schedules().items()]
    parser.add_argument(
        "schedule",
        metavar="SCHEDULE",
        help="\n".join(
            [
                "name of a schedule, or a file:",
                *known,
                *more,
                "FILE.csv: orders in PyTorch's format",
                "FILE.py:NAME: a schedule in a Python file",
                "FILE.toml: an experiment file, whose values options override",
            ]
        ),
    )


def _names(schedule: str) -> str:
    """A schedule's name, and those that others give it."""
    others = [alias for alias, name in ALIASES.items() if name == schedule]
    return f"{schedule} ({', '.join(others)})" if others else schedule


def add_layout_arguments(parser: argparse.ArgumentParser, *further: str) -> None:
    """How the model and the batch are divided over pipeline ranks; and `further` values."""
    group = parser.add_argument_group("pipeline")
    for name in ("pp", *of_group(STAGES), *further, "microbatches"):
        _add(group, name, OPTIONS[name], DEFAULTS[name])
    for name, (option, default) in schedule_parameters().items():
        _add(group, name, option, default)


def add_communication_arguments(parser: argparse.ArgumentParser, *further: str) -> None:
    """What is communicated, and whether it overlaps with compute; and `further` values."""
    group = _add_group(parser, COMMUNICATION)
    for name in further:
        _add(group, name, OPTIONS[name], DEFAULTS[name])


def posting(options: argparse.Namespace) -> Communication:
    """Communication whose transfers are posted as the options say."""
    return Communication(p2p=P2P(options.p2p or P2P.CHANNELS), eager=bool(options.eager))


def add_experiment_arguments(parser: argparse.ArgumentParser) -> None:
    """All options of an experiment other than its schedule."""
    add_layout_arguments(parser)
    add_communication_arguments(parser)
    _add_cost_arguments(parser)


def add_engine_argument(parser: argparse.ArgumentParser) -> None:
    """What replays the graph."""
    parser.add_argument(
        "--engine",
        choices=list(ENGINES),
        default=DEFAULT_ENGINE,
        help=f"simulation engine (default: {DEFAULT_ENGINE})",
    )


def _add_cost_arguments(parser: argparse.ArgumentParser) -> None:
    """Abstract costs in seconds, a model on a cluster, or a profile."""
    _add_group(parser, ABSTRACT)
    physical = _add_group(parser, PHYSICAL)
    for name in (*of_group(PARALLELISM), *of_group(BATCH)):
        if name not in ("pp", "microbatches"):
            _add(physical, name, OPTIONS[name], DEFAULTS[name])
    _add_group(parser, MEASURED)


def _add_group(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    group = parser.add_argument_group(title)
    for name in of_group(title):
        _add(group, name, OPTIONS[name], DEFAULTS[name])
    return group


def _add(group: argparse._ArgumentGroup, name: str, option: Option, default: Any) -> None:
    """The option of a value; it says nothing unless it is given."""
    if option.kind == "flag" and default is None:
        action = argparse.BooleanOptionalAction
        group.add_argument(_option(name), dest=name, action=action, help=option.help)
        return
    if option.kind == "flag":
        main = f"--no-{_option(name)[2:]}" if default else _option(name)
        names = (main, *OTHER_NAMES.get(name, ()))
        group.add_argument(
            *names, dest=name, action="store_const", const=not default, help=option.help
        )
        return
    group.add_argument(
        _option(name),
        *OTHER_NAMES.get(name, ()),
        dest=name,
        type=TYPES.get(option.kind, str),
        choices=option.choices or None,
        metavar=None if option.choices else option.metavar,
        help=option.help + _default(name, option, default),
    )


def _default(name: str, option: Option, default: Any) -> str:
    """The default, if there is one and the purpose does not say it."""
    if option.group == ABSTRACT:
        default = {field.name: field.default for field in fields(AbstractCosts)}.get(name)
    if default is None or "(default" in option.help:
        return ""
    return f" (default: {default:g})" if isinstance(default, float) else f" (default: {default})"


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def schedule_parameters() -> dict[str, tuple[Option, Any]]:
    """The parameters of all schedules, each with its default."""
    return {
        field.name: (
            Option(
                STAGES,
                parameter_kind(field.default),
                str(field.metadata.get("help", f"a parameter of {name}")),
            ),
            field.default,
        )
        for name, schedule in registered_schedules().items()
        for field in fields(schedule)
    }


def given(options: argparse.Namespace) -> dict[str, Any]:
    """What the options say of an experiment, other than its schedule."""
    names = (*OPTIONS, *schedule_parameters())
    values = {name: getattr(options, name, None) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def experiment(options: argparse.Namespace) -> Experiment:
    """The experiment that SCHEDULE and the options mean."""
    return named(options.schedule).changed(**given(options))


def words(experiment: Experiment) -> list[str]:
    """SCHEDULE and the options that mean an experiment: `experiment` reads them back."""
    record = experiment.record
    found = [record.pop("schedule")]
    for name, value in record.items():
        if not isinstance(value, bool):
            found += [_option(name), str(value)]
        elif DEFAULTS.get(name) is None:
            found.append(_option(name) if value else f"--no-{_option(name)[2:]}")
        else:  # a flag says what is not the default
            found.append(f"--no-{_option(name)[2:]}" if DEFAULTS[name] else _option(name))
    return found


def pipeline(options: argparse.Namespace) -> Experiment:
    """The experiment of SCHEDULE, by the options that say how it is cut and communicates.

    A model that its file names is left out, with its cut: who runs an order brings a model.
    """
    divided = ("pp", "dp", "dp_replicate", "tp", "sequence_parallel", "microbatches", "cut")
    names = (*divided, "offload_share", *of_group(STAGES), *of_group(COMMUNICATION))
    values = {
        name: value
        for name, value in given(options).items()
        if name in names or name in schedule_parameters()
    }
    known = named(options.schedule)
    if known.model is not None:
        values = {"model": None, "loops": known.configuration.layout.loops, "cut": None, **values}
    return known.changed(**values)


def named(schedule: str) -> Experiment:
    """The experiment of a file, or one with the schedule of that name."""
    if is_experiment_file(schedule):
        return read_experiment(schedule)
    return experiment_of_file(schedule, {"schedule": schedule})


def compared(names: Sequence[str]) -> list[Experiment]:
    """The experiments of files, and schedules by name: these have the values of the first file."""
    known = {name: named(name) for name in names}
    files = {
        name: each
        for name, each in known.items()
        if is_experiment_file(name) or isinstance(each.rule, GivenOrders)
    }
    if not files:
        return [known[name] for name in names]
    first = next(iter(files.values()))
    values = {each: getattr(first, each) for each in OPTIONS}
    values = {each: value for each, value in values.items() if value != DEFAULTS[each]}
    return [files.get(name) or side_by_side([known[name]], values)[0] for name in names]


def side_by_side(known: Sequence[Experiment], values: Mapping[str, Any]) -> list[Experiment]:
    """The experiments of several schedules of the same model, with these values.

    A stage of a non-looped schedule is given as many units as the looped ones have loops,
    so that a unit costs the same in all of them. Parameters are for the schedules that have
    them; one that none has is refused.
    """
    parameters = {each for experiment in known for each in experiment.rule.parameters}
    found = []
    for experiment in known:
        rule = experiment.rule
        own = {
            name: value
            for name, value in values.items()
            if name in OPTIONS or name in rule.parameters or name not in parameters
        }
        loops, units = own.pop("loops", None), own.pop("units_per_stage", None)
        if rule.looped:
            own["loops"] = loops or experiment.loops
        elif units := units or experiment.units_per_stage:
            own["units_per_stage"] = units
        elif loops and experiment.model is None and "model" not in own:
            own["units_per_stage"] = rule.division(loops)[1]
        found.append(experiment.changed(**own))
    return found


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """Whether to answer a program rather than a person."""
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object and nothing else (times in seconds)",
    )
