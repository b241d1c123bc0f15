"""Searches as files: TOML with the values of a search, by the names of its options.

What `--save` writes has every value, so that the search stays what it is when a default changes.
An experiment, of a launch file too, is the search for what is faster: the model, the hardware, the
batch and the precision stay, and what a search varies is tried as the experiment has it, too.
Everything else is as the experiment says, but for what another schedule or degrees decide anew.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from bfpp.launchers.limits import NONE
from bfpp.launchers.recognise import is_launch_file
from bfpp.options.named_experiments import holds_experiment, named
from bfpp.options.search import (
    OF_IMPLEMENTATION,
    OF_MODEL,
    PER_CONFIGURATION,
    SCHEDULE,
    UNLIMITED,
    WITH_OPTIONS,
    fixed_name,
    parse_fixed,
)
from bfpp.options.shared import TRUST, add_trust_argument
from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.errors import did_you_mean
from bfpp.schedules.formats.python_file import require_trust
from bfpp.schedules.reading import exists
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.experiment.values import DEFAULTS, OPTIONS
from bfpp.sim.presets.file_kinds import EXPERIMENT, SEARCH, kind_of, require_kind
from bfpp.sim.presets.files import read_toml
from bfpp.sim.search.defaults import (
    context_sizes,
    expert_sizes,
    usual_ranges,
    usual_schedules,
)
from bfpp.sim.search.objectives import Jitter
from bfpp.sim.search.problem import DIMENSIONS, EQUAL, RANGES, Problem
from bfpp.terminal.parser import Parser

FIELD, SUFFIX = "file", ".toml"

NAMED = ("model", "cluster", "constants")
"""Values that may name files; these are looked up in the search file's folder first."""

OF_RANKING = ("objective", "risk", "top", "price", *(f"jitter_{name}" for name in Jitter._fields))
"""Values that define the best; commands that rank nothing do not have them."""

OF_MACHINE = ("executor", "workers")
"""Options that say where a search runs, which is for the command line."""

BEFORE = {"cut": [EQUAL], "risk": 1.0, "for": NONE}
"""Values of files that do not say them: as searches were before these could be said."""

FIX, FIXED = "fix", "fixed"
"""An option, and the table of its values: those that are not searched, or not all of them."""


ANEW = ("pp_overlap", "dp_overlap", "p2p", "eager", "sequence_parallel")
"""Values that go with a schedule or with degrees."""

AS_GIVEN, NOT_ADDED = ("precision",), ("ep", "cut")
"""Ranges that have the experiment's value alone, and those of which it adds none."""


DECIDED = {*RANGES, *DIMENSIONS, *WITH_OPTIONS, *OF_MODEL, *PER_CONFIGURATION}
"""Values of a configuration, of its model, hardware and software."""


def add_search_file(parser: Parser) -> None:
    """A file of a search to take values from."""
    parser.add_argument(
        "file",
        nargs="?",
        type=_search_file,
        metavar="FILE",
        help="a search that --save wrote (FILE.toml); or an experiment, as a file or a launch file "
        "(train.sh, -- torchrun ...): what is faster with its model on its GPUs; options change it",
    )
    parser.extended_by(_take_file)
    add_trust_argument(parser)


def _search_file(text: str) -> str:
    """The name of a search's file or an experiment's, apart from other options' values."""
    if not holds_experiment(text):
        reason = f"must be a file named {SUFFIX}, or a launch file, not {text!r}"
        raise argparse.ArgumentTypeError(reason)
    return text


def searched_from(options: argparse.Namespace) -> Experiment | None:
    """The experiment that FILE is, if it is one, on the hardware that is searched."""
    if options.file is None or not _is_experiment(options.file):
        return None
    own = {name: value for name in WITH_OPTIONS if (value := getattr(options, name)) is not None}
    return _experiment(options.file, trust=options.trust).changed(**own)


def _experiment(path: str, *, trust: bool) -> Experiment:
    try:
        return named(path, trust=trust)
    except InvalidConfiguration as error:
        reason = error.reason if error.field == SCHEDULE else str(error)
        raise InvalidConfiguration(FIELD, reason) from None


def _is_experiment(path: str) -> bool:
    return is_launch_file(path) or kind_of(read_toml(FIELD, path)) is EXPERIMENT


def _take_file(parser: Parser, arguments: Iterable[str], words: Sequence[str]) -> None:
    """Take the values of a file, if one is given, for options that are not."""
    path = next((word for word in arguments if holds_experiment(word)), None)
    said = [word[2:].partition("=")[0] for word in words if word.startswith("--")]
    parser.set_defaults(said=said)
    if path is None:
        return
    if _is_experiment(path):
        experiment = _experiment(path, trust=TRUST in words)
        if experiment.model is None and (models := [*_given(words, "--model")]):
            experiment = experiment.changed(model=models[-1])
        table = experiment_table(path, experiment)
    else:
        table = BEFORE | read_toml(FIELD, path)
        require_kind(FIELD, path, table, SEARCH)
    values = {name: value for name, value in table.items() if name not in ("format", FIXED)}
    if FIX in values:
        raise InvalidConfiguration(FIELD, f"{path}: {FIX}: the table [{FIXED}] says it")
    values[FIX] = [*_fixes(path, table.get(FIXED, {}), words)]
    for name, value in values.items():
        if name in OF_MACHINE:
            reason = f"{path}: {name}: only the command line says where a search runs"
            raise InvalidConfiguration(FIELD, reason)
        for each in _listed(value) if name == SCHEDULE else ():
            require_trust(path, each, trust=TRUST in words)
        texts = [_beside(path, name, str(each)) for each in _listed(value)]
        option = f"--{name.replace('_', '-')}"
        if option not in parser.names:
            if name in OF_RANKING:
                continue
            known = did_you_mean(option, parser.names, "--")
            raise InvalidConfiguration(FIELD, f"{path}: there is no option {option}{known}")
        try:
            parser.assume(option, texts)
        except (argparse.ArgumentTypeError, ValueError) as error:
            raise InvalidConfiguration(FIELD, f"{path}: {name}: {error}") from None


def experiment_table(path: str, experiment: Experiment) -> dict[str, Any]:
    """The values of the search; raises `InvalidConfiguration` for an experiment of no model."""
    if experiment.software is None:
        reason = f"{path} says no model, which a search divides: --model NAME does"
        raise InvalidConfiguration(FIELD, reason)
    record, configuration = experiment.record, experiment.configuration
    schedule, software = record.pop("schedule"), experiment.require_physical().implementation
    usual = usual_schedules(software)
    own = {name: value for name, value in record.items() if name in OPTIONS and name not in ANEW}
    return {
        **{name: own[name] for name in WITH_OPTIONS if name in own},
        "gpus": [configuration.degrees.devices],
        "batch": [configuration.batch],
        **({} if schedule in usual else {"schedule": [*usual, schedule]}),
        **{
            name: _tried(name, own[name], experiment)
            for name in RANGES
            if name in own and name not in NOT_ADDED
        },
        FIXED: {name: value for name, value in own.items() if name not in DECIDED},
    }


def problem_alone(problem: Problem, experiment: Experiment) -> Problem:
    """The problem with all that an experiment says beside its configuration."""
    fixed = {name: getattr(experiment, name) for name in OPTIONS if name not in DECIDED}
    return replace(problem, schedules=(experiment.rule,), fixed=tuple(fixed.items()))


def _tried(name: str, own: Any, experiment: Experiment) -> list[Any]:
    """The values of a range: those of a search that does not name it, and the experiment's."""
    if name in AS_GIVEN:
        return [own]
    usual = usual_ranges(experiment.transformer, experiment.require_physical().implementation)
    values = usual.get(name, (DEFAULTS[name],))
    words = [UNLIMITED.get(name, "none") if each is None else str(each) for each in values]
    return words if str(own) in words else [*words, own]


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _fixes(path: str, table: object, words: Sequence[str]) -> Iterator[str]:
    """The values that are fixed, as `--fix` takes them; those of the command line are its own."""
    if not isinstance(table, dict):
        raise InvalidConfiguration(FIELD, f"{path}: {FIXED} must be a table")
    own = {fixed_name(text) for text in _given(words, f"--{FIX}")}
    for name, value in table.items():
        if fixed_name(name) not in own:
            for each in _listed(value):
                yield f"{name}={str(each).lower() if isinstance(each, bool) else each}"


def _given(words: Sequence[str], option: str) -> Iterator[str]:
    """The values of an option on a command line."""
    for before, word in pairwise(["", *words]):
        if before == option:
            yield word
        elif word.startswith(f"{option}="):
            yield word.removeprefix(f"{option}=")


def _beside(path: str, name: str, text: str) -> str:
    beside = Path(path).parent / text
    return str(beside) if name in NAMED and "." in text and exists(beside) else text


def search_text(options: argparse.Namespace, problem: Problem) -> str:
    """The search as TOML, with every value that it depends on."""
    said = {"format": SEARCH.format, **_said(options, problem)}
    given = {name: value for name, value in said.items() if value != []}
    return f"{_toml(given)}\n[{FIXED}]\n{_toml(_all_fixed(options, problem))}"


def _toml(values: Mapping[str, Any]) -> str:
    """Lines of TOML, whose values are written as JSON's are."""
    lines = (f"{name} = {json.dumps(each, ensure_ascii=False)}\n" for name, each in values.items())
    return "".join(lines)


def _said(options: argparse.Namespace, problem: Problem) -> dict[str, Any]:
    """The values of options, those too that the software decides."""
    said = {
        "model": options.model,
        "seq_length": problem.model.sequence,
        "cluster": options.cluster,
        "implementation": problem.implementation.name,
        "gpus": list(problem.gpus),
        "batch": list(problem.batches),
        "schedule": [each.reference for each in problem.rules],
        **{name: _range(problem, name) for name in RANGES},
        "objective": str(problem.objective),
        "risk": problem.risk,
        **{f"jitter_{name}": value for name, value in problem.jitter._asdict().items()},
    }
    given = {name: getattr(options, name, None) for name in ("constants", "price", "top", "for")}
    given["max_memory"] = options.max_memory and f"{options.max_memory}GiB"
    return said | {name: value for name, value in given.items() if value is not None}


def _range(problem: Problem, name: str) -> list[int | str]:
    """The values of a range that is searched, by default the software's."""
    values = getattr(problem, name)
    if not values and name == "ep":
        return [*expert_sizes(problem.model)]
    if not values and name == "cp":
        return sorted(
            {size for gpus in problem.gpus for size in context_sizes(problem.model, gpus)}
        )
    if not values and name in OF_IMPLEMENTATION:
        values = (getattr(problem.implementation, name),)
    words = (UNLIMITED[name] if value is None else value for value in values)
    return [word if isinstance(word, int) else str(word) for word in words]


def _all_fixed(options: argparse.Namespace, problem: Problem) -> dict[str, Any]:
    """The values that are not searched, each said; and of dimensions those that are tried."""
    usual = problem.implementation
    searched = {*RANGES, *DIMENSIONS, *WITH_OPTIONS, *PER_CONFIGURATION, *OF_MODEL}
    fixed = {
        name: value
        for name in OPTIONS
        if name not in searched and (value := DEFAULTS[name]) is not None
    }
    fixed |= {"attention": str(usual.attention), "sequence_parallel": usual.sequence_parallel}
    fixed |= {name: list(values) for name, values in problem.only}
    fixed |= parse_fixed(options.fix, options.schedule or ()).of_model
    fixed |= dict(problem.fixed)
    return {
        name: each if isinstance(each, int | float | list) else str(each)
        for name, each in fixed.items()
    }
