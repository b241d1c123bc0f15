"""The configurations to search: their options, and the `Problem` that these make.

`--fix NAME=VALUE` keeps a value fixed. A value that is searched takes several, separated by commas
or by another `--fix` of the same name (a list of modules or of layers has commas of its own).
Anything else takes one value.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

from bfpp.launchers.limits import ANY, TARGETS
from bfpp.options import shared
from bfpp.options.cluster_files import noted_cluster
from bfpp.options.model import add_model_argument, model_of
from bfpp.schedules import InvalidConfiguration, InvalidInput, find_schedule
from bfpp.schedules.errors import chosen, did_you_mean
from bfpp.schedules.families.registry import DEFAULT_SCHEDULES
from bfpp.schedules.layout.cut import CUTS
from bfpp.schedules.settings.offloading import parse_offload
from bfpp.schedules.settings.sharding import CHOICES, FULLY_SHARDED
from bfpp.sim.cluster.cluster import Cluster
from bfpp.sim.cluster.constants import Constants, load_constants
from bfpp.sim.cluster.software_profiles import IMPLEMENTATIONS, implementation_on
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.experiment.reading import read_value
from bfpp.sim.experiment.values import ALIASES, OPTIONS, of_group
from bfpp.sim.experiment.values.option import ABSTRACT, MEASURED, UNEVEN, Option
from bfpp.sim.presets.numbers import MOST_DEVICES, MOST_PASSES
from bfpp.sim.search.defaults import (
    LEAST_CONTEXT,
    WITHOUT_BUBBLE,
    usual_ranges,
    usual_schedules,
)
from bfpp.sim.search.problem import AS_NEEDED, DIMENSIONS, EQUAL, RANGES, Problem
from bfpp.sim.search.workers import EXECUTORS, LOCAL
from bfpp.terminal.error_lines import blaming
from bfpp.terminal.number_types import gigabytes, whole_number
from bfpp.terminal.parser import Parser
from bfpp.traces.timeline.units import GIGABYTE

SEVERAL = "; several values are searched together"

UNLIMITED = {"run_length": "all", "prefetch": "any"}
"""Words for no limit: all micro-batches in a run, or any number of runs ahead."""

SCHEDULE = "schedule"

SIZES = {
    "cp": "context-parallel devices",
    "ep": "expert-parallel devices",
    "dp_replicate": "groups of replicas, each with a full copy of the training state (HSDP)",
}
"""Sizes of groups."""

USUAL_SIZES = {
    "cp": f"those that leave {LEAST_CONTEXT:,} tokens of a sequence to each device",
    "ep": "all that divide the experts",
    "dp_replicate": "one, and those of a node each",
}
"""Those that are searched by default, with today's software; with a former year's, 1."""

OF_IMPLEMENTATION = {
    "precision": ("precision", "the implementation's"),
    "recompute": ("activation checkpointing", "none, full, and modules that cost little"),
    "tp_overlap": ("tensor-parallel communication that GEMMs hide", "chunked"),
}
"""Values that the implementation decides where nothing else does, and what is searched."""

WITH_COMMAS = ("recompute", "cut", "offload_modules")
"""Values that have commas of their own."""

OF_MODEL = ("layers", "prediction")
"""Values that change the model."""

WITH_OPTIONS = ("model", "seq_length", "cluster", "implementation", "constants")
"""Values that have an option of their own."""

PER_CONFIGURATION = (
    "balance", *of_group(ABSTRACT), *of_group(MEASURED), *of_group(UNEVEN)
)  # fmt: skip
"""Values that cannot be the same for all configurations."""


MOST_USED = (
    "model", "cluster", "gpus", "batch", "seq-length", "implementation", "schedule", "fix",
    "max-memory", "workers",
)  # fmt: skip
"""Options of a search that help opens with."""


def add_problem_arguments(parser: Parser) -> None:
    """The model, the cluster, the batch sizes, the values to search, and where to simulate."""
    parser.open_with(*MOST_USED)
    add_model_argument(parser, required=True)
    parser.add_argument(
        "--cluster", required=True, metavar="NAME|FILE", help="a preset, or a TOML file"
    )
    parser.add_argument(
        "--gpus",
        required=True,
        nargs="+",
        type=whole_number,
        metavar="N",
        help=f"GPUs to use{SEVERAL}",
    )
    parser.add_argument(
        "--batch",
        required=True,
        nargs="+",
        type=whole_number,
        metavar="B",
        help=f"samples per step{SEVERAL}",
    )
    _add_ranges(parser.add_argument_group("values to try"))
    _add_limits(parser)
    _add_software(parser)
    parser.add_argument(
        "--executor",
        choices=list(EXECUTORS),
        default=LOCAL,
        help="where to simulate: this machine's cores, SLURM (submitit), or Dask (default: local)",
    )
    parser.add_argument(
        "--workers", type=whole_number, metavar="N", help="processes (default: all cores)"
    )


def _add_ranges(parser: argparse._ActionsContainer) -> None:
    """`RANGES`: values that are searched on request."""
    for name, meaning in SIZES.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            nargs="+",
            type=whole_number,
            default=[],
            metavar="N",
            help=f"{meaning}{SEVERAL} (default: {USUAL_SIZES[name]})",
        )
    for name, (meaning, usual) in OF_IMPLEMENTATION.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            nargs="+",
            default=[],
            metavar="NAME",
            help=f"{meaning}, as bfpp simulate takes it{SEVERAL} (default: {usual})",
        )
    for name in FULLY_SHARDED:
        _add_choices(parser, name)
    parser.add_argument(
        "--offload",
        nargs="+",
        default=[],
        type=_offload,
        metavar="WHICH",
        help=f"{_purpose('offload')}{SEVERAL} (default: off)",
    )
    parser.add_argument(
        "--cut",
        nargs="+",
        default=[],
        choices=[EQUAL, AS_NEEDED, *CUTS],
        help=f"rules for the layers of stages{SEVERAL} (default: {AS_NEEDED}: {EQUAL} where layers "
        "divide, else what comes closest)",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    """Values, memory and schedules that the search keeps to."""
    parser.add_argument(
        "--fix",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="fix a value of the experiment (repeatable); values that are searched take several, "
        "as in tp=1,2,4",
    )
    parser.add_argument(
        "--max-memory",
        type=gigabytes,
        metavar="GIB",
        help="memory that a device may reserve, as in 60GiB (default: all of it)",
    )
    parser.add_argument(
        "--schedule",
        action="append",
        default=[],
        metavar="SCHEDULE",
        help="schedule to search, by name or as FILE.py:NAME (repeatable; default: "
        f"{', '.join((*DEFAULT_SCHEDULES, *WITHOUT_BUBBLE))})",
    )


def _add_software(parser: argparse.ArgumentParser) -> None:
    """The training software and its constants."""
    parser.add_argument(
        "--for",
        choices=list(TARGETS),
        default=ANY,
        help="search what this framework can launch, what any can, or all that can be predicted "
        "(none; default: any)",
    )
    parser.add_argument(
        "--implementation",
        choices=list(IMPLEMENTATIONS),
        help=f"{_purpose('implementation')} (default: that of --for, or else the cluster's)",
    )
    parser.add_argument(
        "--constants",
        metavar="FILE",
        help="constants of clusters and implementations, as bfpp fit writes them "
        "(default: as shipped)",
    )
    parser.add_argument("--profile", type=_no_profile, help=argparse.SUPPRESS)


def _no_profile(path: str) -> NoReturn:
    """Refuse a profile, which other commands take, with the reason."""
    raise argparse.ArgumentTypeError(
        f"{path} holds for the ranks that it was measured on, and a search divides a model over "
        "GPUs (--model, --cluster, --constants); bfpp compare --profile finds the schedule for "
        "these ranks"
    )


def _add_choices(parser: argparse._ActionsContainer, name: str) -> None:
    """A choice of full sharding: one or several values."""
    option, (default,) = OPTIONS[name], getattr(Problem, name)
    parser.add_argument(
        f"--{name.replace('_', '-')}",
        nargs="+",
        type=str if option.choices else _number_or(UNLIMITED.get(name)),
        choices=option.choices or None,
        default=[],
        metavar=None if option.choices else "N",
        help=f"{_purpose(name)}{SEVERAL} (default: {default or UNLIMITED[name]})",
    )


def _purpose(name: str) -> str:
    """The help of an option, without the default that other commands have for it."""
    return OPTIONS[name].help.partition(" (default")[0]


def _offload(text: str) -> int | str:
    """The activations to offload."""
    try:
        return parse_offload(text)
    except InvalidConfiguration as error:
        raise argparse.ArgumentTypeError(error.reason) from None


def _number_or(word: str | None) -> Callable[[str], int | None]:
    """A number, or None for the word, if there is one."""

    def number(text: str) -> int | None:
        return None if text == word else whole_number(text)

    return number


def problem_of(options: argparse.Namespace) -> Problem:
    """The configurations to search; raises `InvalidInput` for numbers that are too large."""
    limits = {"--gpus": (max(options.gpus), MOST_DEVICES)}
    limits["--batch"] = (max(options.batch), MOST_PASSES)
    for option, (number, most) in limits.items():
        if number > most:
            raise InvalidInput(f"{option}: must be at most {most:,}, not {number:,}")
    constants = load_constants(options.constants) if options.constants else Constants()
    cluster = noted_cluster(
        getattr(options, shared.COMMAND, None), options.cluster, constants.clusters
    )
    if options.max_memory:
        cluster = _with_memory(cluster, options.max_memory)
    target = TARGETS[getattr(options, "for")]
    named = options.implementation or target.implementation
    implementation = implementation_on(cluster, named, constants.implementations)
    schedules = tuple(options.schedule or usual_schedules(implementation))
    fixed = parse_fixed(options.fix, schedules)
    model = Experiment(DEFAULT_SCHEDULES[0], model=model_of(options), **fixed.of_model).transformer
    said = {name: tuple(values) for name in RANGES if (values := getattr(options, name))}
    ranges: dict[str, Any] = usual_ranges(model, implementation)
    launched = target.limits_with(implementation)
    ranges |= target.ranges if launched else {}
    ranges |= said | fixed.ranges
    return Problem(
        model,
        cluster,
        tuple(options.gpus),
        tuple(options.batch),
        implementation=implementation,
        limits=launched,
        fixed=tuple(fixed.others.items()),
        only=tuple(fixed.only.items()),
        **({"schedules": schedules} | ranges),
    )


def _with_memory(cluster: Cluster, gigabytes: float) -> Cluster:
    """The cluster, with a limit on the memory that may be reserved on a device."""
    device = cluster.device
    if gigabytes * GIGABYTE > device.memory:
        raise InvalidInput(
            f"--max-memory: a device of {cluster.name} has {device.memory / GIGABYTE:.4g} GiB"
        )
    return replace(cluster, device=replace(device, memory_limit=gigabytes * GIGABYTE))


class FixedValues(NamedTuple):
    """Fixed values: of ranges, of dimensions, of the model, and all others."""

    ranges: dict[str, tuple[Any, ...]]
    only: dict[str, tuple[Any, ...]]
    of_model: dict[str, Any]
    others: dict[str, Any]


def parse_fixed(texts: Iterable[str], schedules: Iterable[str] = ()) -> FixedValues:
    """The texts NAME=VALUE, parsed; raises `InvalidConfiguration` for values that cannot be fixed.

    Parameters are those of registered schedules and of the `schedules` that are searched, unless
    the texts name others.
    """
    given: dict[str, list[str]] = {}
    for text in texts:
        name, (_, equals, value) = fixed_name(text), text.partition("=")
        if not (name and equals and value):
            raise InvalidConfiguration("fix", f"{text!r} is not NAME=VALUE")
        given.setdefault(name, []).extend([value] if name in WITH_COMMAS else value.split(","))
    fixed = FixedValues({}, {}, {}, {})
    if not given:
        return fixed  # to look through all schedules that are installed takes long
    parameters = shared.schedule_parameters(*map(find_schedule, given.get(SCHEDULE, schedules)))
    for name, values in given.items():
        _add(fixed, name, values, parameters)
    return fixed


def fixed_name(text: str) -> str:
    """The name in a text NAME=VALUE, as an experiment has it."""
    name = text.partition("=")[0].strip().replace("-", "_")
    return ALIASES.get(name, name)


def _add(
    fixed: FixedValues, name: str, texts: list[str], parameters: Mapping[str, tuple[Option, Any]]
) -> None:
    if name in WITH_OPTIONS or name in PER_CONFIGURATION:
        own = f"--{name.replace('_', '-')} says it" if name in WITH_OPTIONS else "is not searched"
        raise InvalidConfiguration("fix", f"{name}: {own}")
    if name == SCHEDULE:
        fixed.ranges["schedules"] = tuple(texts)
        return
    if name not in OPTIONS and name not in parameters:
        known = (SCHEDULE, *OPTIONS, *parameters)
        raise InvalidConfiguration("fix", f"there is no {name!r}{did_you_mean(name, known)}")
    option = OPTIONS[name] if name in OPTIONS else parameters[name][0]
    is_range = name in RANGES or name in DIMENSIONS or name in parameters
    if len(texts) > 1 and not is_range:
        raise InvalidConfiguration("fix", f"{name} takes one value, not {len(texts)}")
    with blaming("--fix"):
        values = tuple(_value(name, option.kind, text) for text in texts)
    if name in RANGES:
        fixed.ranges[name] = values
    elif name in DIMENSIONS or name in parameters:
        fixed.only[name] = values
    else:
        (fixed.of_model if name in OF_MODEL else fixed.others)[name] = values[0]


def _value(name: str, kind: str, text: str) -> Any:
    if text == UNLIMITED.get(name):
        return None
    value = read_value(name, kind, text)
    return chosen(CHOICES[name], name, value) if name in CHOICES else value
