"""Options that several commands share, and the experiment that they stand for.

What can be said of an experiment is declared in `bfpp.sim.experiment.values`; here it becomes
options, alike for every command. SCHEDULE may also be a file that holds a whole experiment,
of which options then change values.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from bfpp.options.cluster_notes import note_doubts
from bfpp.options.launch_notes import report_left_out
from bfpp.options.named_experiments import holds_experiment, named, require_model
from bfpp.schedules import Schedule, registered_schedules
from bfpp.schedules.families.registry import ALIASES
from bfpp.schedules.formats.python_file import MARK
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.engines import DEFAULT as DEFAULT_ENGINE
from bfpp.sim.engines.engines import ENGINES
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.experiment.reading import parameter_options
from bfpp.sim.experiment.values import DEFAULTS, OPTIONS, of_group
from bfpp.sim.experiment.values.option import (
    ABSTRACT,
    BATCH,
    COMMUNICATION,
    MEASURED,
    PARALLELISM,
    PHYSICAL,
    STAGES,
    UNEVEN,
    Option,
)
from bfpp.terminal.help import OF_A_SCHEDULE
from bfpp.terminal.number_types import integer, number, seconds, whole_number
from bfpp.terminal.parser import Parser

OTHER_NAMES = {
    "loops": ("--virtual-stages", "--vpp"),
    "units_per_stage": ("--stages-per-rank",),
    "pp_overlap": ("--no-overlap",),
    "dp_overlap": ("--no-data-overlap",),
    "sequence": ("--microbatch-group-size-per-virtual-pipeline-stage",),
}
"""Further names of options."""

TYPES = {
    "count": whole_number, "seconds": seconds, "number": seconds,
    "integer": integer, "real": number,
}  # fmt: skip
"""Parsers of option values, by kind."""

IN_PIPELINE = ("pp", "microbatches")
"""Values without which there is no pipeline."""

MOST_USED = (
    "model", "cluster", "pp", "tp", "dp", "microbatches", "microbatch-size", "loops", "sharding",
    "recompute",
)  # fmt: skip
"""Options of an experiment that help opens with."""

TRUST = "--trust"

COMMAND = "command"
"""Where parsed options have the name of the command."""

OF_SCHEDULE = "parameter of a schedule: "
"""Prefix of schedules' own parameters among parsed options."""


def add_schedule_argument(parser: Parser, *more: str) -> None:
    """SCHEDULE, by name or by file; `more` names other inputs that a command accepts."""
    parser.add_argument(
        "schedule",
        metavar="SCHEDULE",
        help="\n".join(
            [
                "name of a schedule (--help schedules lists them), or a file:",
                *more,
                "FILE.csv: orders in PyTorch's format",
                "FILE.py:NAME: a schedule in a Python file",
                "FILE.toml: an experiment file, whose values options override",
                "FILE.sh, FILE.yaml, -- torchrun ...: a launch file of Megatron-LM, or a command",
            ]
        ),
    )
    known = registered_schedules().items()
    parser.list_in_help("schedules", {_names(name): each.summary for name, each in known})


def add_trust_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--trust`: files may name code that is then run."""
    parser.add_argument(
        TRUST,
        action="store_true",
        help="run the Python code that a file names for its schedule; FILE.py:NAME on the command "
        "line does not need it",
    )


def _names(schedule: str) -> str:
    """A schedule's name, and those that others give it."""
    others = [alias for alias, name in ALIASES.items() if name == schedule]
    return f"{schedule} ({', '.join(others)})" if others else schedule


def add_layout_arguments(parser: Parser, *further: str) -> None:
    """Layers and micro-batches over pipeline ranks; and `further` values."""
    parser.open_with(*MOST_USED)
    group = parser.add_argument_group("pipeline")
    for name in (*IN_PIPELINE, *of_group(STAGES), *further):
        _add(group, name, OPTIONS[name], DEFAULTS[name])
    for name, (option, default) in schedule_parameters().items():
        _add(group, name, option, default, OF_SCHEDULE + name)
    add_trust_argument(parser)
    parser.extended_by(_add_parameters_of_files)


def _add_parameters_of_files(
    parser: Parser, arguments: Iterable[str], words: Sequence[str]
) -> None:
    """The parameters of the schedules in files among `arguments`, unless an option has the name."""
    for word in arguments:
        if MARK in word or holds_experiment(word):
            rule = named(word, trust=TRUST in words).rule
            group = parser.add_argument_group(OF_A_SCHEDULE + rule.name)
            for name, option in parameter_options(rule).items():
                default = rule.parameters[name]
                if not {*_spelled(name, option, default)}.intersection(parser.names):
                    _add(group, name, option, default, OF_SCHEDULE + name)


def add_communication_arguments(parser: argparse.ArgumentParser, *further: str) -> None:
    """Communication, and its overlap with compute; and `further` values."""
    group = _add_group(parser, COMMUNICATION)
    for name in further:
        _add(group, name, OPTIONS[name], DEFAULTS[name])


def add_uneven_arguments(parser: argparse.ArgumentParser) -> None:
    """Values that make replicas, ranks or micro-batches differ."""
    _add_group(parser, UNEVEN)


def add_experiment_arguments(parser: Parser) -> None:
    """All options of an experiment other than its schedule."""
    add_layout_arguments(parser)
    add_communication_arguments(parser)
    _add_cost_arguments(parser)


def add_engine_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--engine`."""
    parser.add_argument(
        "--engine",
        choices=list(ENGINES),
        default=DEFAULT_ENGINE,
        help=f"simulation engine (default: {DEFAULT_ENGINE})",
    )


def _add_cost_arguments(parser: argparse.ArgumentParser) -> None:
    """A model on a cluster, abstract costs in seconds, or a profile."""
    parallelism = parser.add_argument_group(PARALLELISM)
    for name in (*of_group(PARALLELISM), *of_group(BATCH)):
        if name not in IN_PIPELINE:
            _add(parallelism, name, OPTIONS[name], DEFAULTS[name])
    for title in (*PHYSICAL, ABSTRACT, MEASURED, UNEVEN):
        _add_group(parser, title)


def _add_group(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    group = parser.add_argument_group(title)
    for name in of_group(title):
        _add(group, name, OPTIONS[name], DEFAULTS[name])
    return group


def _add(
    group: argparse._ArgumentGroup, name: str, option: Option, default: Any, to: str = ""
) -> None:
    """The option of a value, which goes `to` its name; it says nothing unless it is given."""
    to = to or name
    purpose = (option.help + _default(name, option, default)).replace("%", "%%")
    if option.kind == "flag" and default is None:
        action = argparse.BooleanOptionalAction
        group.add_argument(_option(name), dest=to, action=action, help=purpose)
        return
    names = (*_spelled(name, option, default), *OTHER_NAMES.get(name, ()))
    if option.kind == "flag":
        group.add_argument(*names, dest=to, action="store_const", const=not default, help=purpose)
        return
    group.add_argument(
        *names,
        dest=to,
        type=TYPES.get(option.kind, str),
        choices=option.choices or None,
        metavar=None if option.choices else option.metavar,
        help=purpose,
    )


def _default(name: str, option: Option, default: Any) -> str:
    """The default, if there is one and the purpose does not say it."""
    if option.group == ABSTRACT:
        default = {field.name: field.default for field in fields(AbstractCosts)}.get(name)
    if default is None or option.kind == "flag" or "(default" in option.help:
        return ""
    return f" (default: {default:g})" if isinstance(default, float) else f" (default: {default})"


def _spelled(name: str, option: Option, default: Any) -> list[str]:
    """The spelling of an option: a flag negates its default."""
    if option.kind != "flag":
        return [_option(name)]
    both = [_flag(name, True), _flag(name, False)]
    return both if default is None else [both[bool(default)]]


def _flag(name: str, value: bool) -> str:
    return _option(name if value else f"no-{name}")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def schedule_parameters(*further: Schedule) -> dict[str, tuple[Option, Any]]:
    """The parameters of all registered schedules and of `further` ones, each with its default."""
    return {
        name: (option, schedule.parameters[name])
        for schedule in (*registered_schedules().values(), *further)
        for name, option in parameter_options(schedule).items()
    }


def given(options: argparse.Namespace) -> dict[str, Any]:
    """The experiment's values among the options, other than its schedule."""
    values = {name: getattr(options, name, None) for name in OPTIONS}
    values |= given_parameters(options)
    return {name: value for name, value in values.items() if value is not None}


def given_parameters(options: argparse.Namespace) -> dict[str, Any]:
    """The schedules' own parameters that the options say."""
    return {
        name.removeprefix(OF_SCHEDULE): value
        for name, value in vars(options).items()
        if name.startswith(OF_SCHEDULE) and value is not None
    }


def with_parameters(
    options: argparse.Namespace, parameters: Mapping[str, Any]
) -> argparse.Namespace:
    """The options with these of schedules' own parameters, and no others."""
    values = {
        name: value for name, value in vars(options).items() if not name.startswith(OF_SCHEDULE)
    }
    values |= {OF_SCHEDULE + name: value for name, value in parameters.items()}
    return argparse.Namespace(**values)


def experiment(options: argparse.Namespace) -> Experiment:
    """The experiment that SCHEDULE and the options mean."""
    values = given(options)
    report_left_out(getattr(options, COMMAND, None), options.schedule, values)
    known = named(options.schedule, trust=options.trust).changed(**values)
    require_model(options.schedule, known)
    note_doubts(getattr(options, COMMAND, None), known.cluster_doubts)
    return known


def words(experiment: Experiment) -> list[str]:
    """SCHEDULE and the options that mean an experiment: `experiment` reads them back."""
    record = experiment.record
    flags = [record.pop("schedule")]
    for name, value in record.items():
        if isinstance(value, bool):
            flags.append(_flag(name, value))
            continue
        text = str(value)  # which argparse takes for an option, if it begins as one
        flags += [f"{_option(name)}={text}"] if text[:1] == "-" else [_option(name), text]
    return flags


def pipeline(options: argparse.Namespace) -> Experiment:
    """The experiment of SCHEDULE, by the options that say how it is cut and communicates.

    A model that its file names is left out, with its cut: who runs an order brings a model.
    """
    divided = ("pp", "dp", "dp_replicate", "tp", "sequence_parallel", "microbatches", "cut")
    names = (*divided, "offload_share", *of_group(STAGES), *of_group(COMMUNICATION))
    values = {name: value for name, value in given(options).items() if name in names}
    values |= given_parameters(options)
    report_left_out(getattr(options, COMMAND, None), options.schedule, values)
    known = named(options.schedule, trust=options.trust)
    if known.model is not None:
        values = {"model": None, "loops": known.configuration.layout.loops, "cut": None, **values}
    return known.changed(**values)


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--json` and `--json-schema`."""
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object and nothing else (times in seconds)",
    )
    parser.add_argument(
        "--json-schema",
        action=_PrintSchema,
        nargs=0,
        help="print the JSON Schema of what --json prints, with a description of every key",
    )


class _PrintSchema(argparse.Action):
    """Prints the schema of the command's JSON and exits, as `--help` does."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from bfpp.options.schemas import schema_of

        sys.stdout.write(json.dumps(schema_of(parser.prog.split()[-1]), indent=2) + "\n")
        parser.exit()
