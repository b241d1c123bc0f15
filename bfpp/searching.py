"""What `search` and `tradeoff` share: the options of what to search, and the search itself."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, groupby
from typing import Any, NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bfpp import options as shared
from bfpp.model_options import add_model_argument, model_of
from bfpp.numbers_given import gigabytes
from bfpp.schedules import Configuration, InvalidConfiguration, InvalidInput
from bfpp.schedules.communication import FULLY_SHARDED
from bfpp.schedules.cut import CUTS
from bfpp.schedules.offload import OFF, parse_offload
from bfpp.schedules.registry import DEFAULT_SCHEDULES
from bfpp.search_fixed import ALL, RANGES, parse_fixed
from bfpp.search_untried import untried
from bfpp.sim.cluster import Cluster, load_cluster
from bfpp.sim.compiling import WORK
from bfpp.sim.constants import Constants, load_constants
from bfpp.sim.decision import Decision, decision
from bfpp.sim.evaluation import nearest_of, nothing_can_fit
from bfpp.sim.executors import EXECUTORS, LOCAL, as_completed
from bfpp.sim.experiment import Experiment
from bfpp.sim.experiment_values import OPTIONS
from bfpp.sim.implementation import IMPLEMENTATIONS, find_implementation
from bfpp.sim.numbers import MOST_DEVICES, MOST_PASSES
from bfpp.sim.outcomes import Outcome
from bfpp.sim.pruning import (
    TOO_LARGE,
    SearchResult,
    evaluate_all,
    evaluate_best,
    foremost,
    most_promising_first,
)
from bfpp.sim.search import Problem, configurations
from bfpp.traces.memory import GIGABYTE
from bfpp.workers import Workers

PASSES_AT_ONCE = {"local": 2**16, "dask": 2**16, "slurm": 2**24}
"""Passes of micro-batches that one piece of work simulates, in many configurations or in one.

A job of SLURM is a process of its own, which begins by loading the compiled loops.
"""

SEVERAL = "; several values are searched together"

TASKS = 60
"""Tasks of an uncompiled sweep that take as long as to predict a pass: lowered, priced and all."""


def add_problem_arguments(parser: argparse.ArgumentParser) -> None:
    """Which model, on what, at which batch sizes, and where to simulate."""
    add_model_argument(parser, required=True)
    parser.add_argument(
        "--cluster", required=True, metavar="NAME|FILE", help="a preset, or a TOML file"
    )
    parser.add_argument(
        "--gpus", required=True, type=shared.whole_number, metavar="N", help="GPUs to use"
    )
    parser.add_argument(
        "--batch",
        required=True,
        nargs="+",
        type=shared.whole_number,
        metavar="B",
        help=f"samples per step{SEVERAL}",
    )
    for name, what in (
        ("--cp", "context-parallel devices"),
        ("--ep", "expert-parallel devices"),
        (
            "--dp-replicate",
            "groups of replicas, each with a full copy of the training state (HSDP)",
        ),
    ):
        parser.add_argument(
            name,
            nargs="+",
            type=shared.whole_number,
            default=[1],
            metavar="N",
            help=f"{what}{SEVERAL} (default: 1)",
        )
    for name, title in (
        ("--precision", "precision"),
        ("--recompute", "activation checkpointing"),
        ("--tp-overlap", "tensor-parallel communication that GEMMs hide"),
    ):
        parser.add_argument(
            name,
            nargs="+",
            default=[],
            metavar="NAME",
            help=f"{title}, as bfpp simulate takes it{SEVERAL} (default: the implementation's)",
        )
    for name in FULLY_SHARDED:
        _add_choices(parser, name)
    parser.add_argument(
        "--offload",
        nargs="+",
        default=[OFF],
        type=_offload,
        metavar="WHICH",
        help=f"{_purpose('offload')}{SEVERAL} (default: off)",
    )
    parser.add_argument(
        "--cut",
        nargs="+",
        default=[],
        choices=list(CUTS),
        help=f"rules for uneven stages{SEVERAL} (default: only even stages)",
    )
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
        metavar="GB",
        help="memory that a device may reserve, as in 60GB (default: all of it)",
    )
    parser.add_argument(
        "--schedule",
        action="append",
        metavar="SCHEDULE",
        help="schedule to search, by name or as FILE.py:NAME (repeatable; default: "
        f"{', '.join(DEFAULT_SCHEDULES)})",
    )
    parser.add_argument(
        "--implementation",
        choices=list(IMPLEMENTATIONS),
        default="paper",
        help=OPTIONS["implementation"].help,
    )
    parser.add_argument(
        "--constants",
        metavar="FILE",
        help="constants of clusters and implementations, as bfpp fit writes them "
        "(default: as shipped)",
    )
    parser.add_argument("--profile", type=_no_profile, help=argparse.SUPPRESS)
    parser.add_argument(
        "--executor",
        choices=list(EXECUTORS),
        default=LOCAL,
        help="where to simulate: this machine's cores, SLURM (submitit), or Dask (default: local)",
    )
    parser.add_argument(
        "--workers", type=shared.whole_number, metavar="N", help="processes (default: all cores)"
    )


def _no_profile(path: str) -> NoReturn:
    """Other commands take a profile, so that its absence here has a reason to give."""
    raise argparse.ArgumentTypeError(
        f"{path} holds for the ranks that it was measured on, and a search divides a model over "
        "GPUs (--model, --cluster, --constants); bfpp compare --profile finds the schedule for "
        "these ranks"
    )


def _add_choices(parser: argparse.ArgumentParser, name: str) -> None:
    """A choice of full sharding: one or several values."""
    option, (default,) = OPTIONS[name], getattr(Problem, name)
    parser.add_argument(
        f"--{name.replace('_', '-')}",
        nargs="+",
        type=str if option.choices else shared.whole_number if default else _number_or_all,
        choices=option.choices or None,
        default=[default],
        metavar=None if option.choices else "N",
        help=f"{_purpose(name)}{SEVERAL} (default: {default or ALL})",
    )


def _purpose(name: str) -> str:
    """What a value means, without the default that other commands have for it."""
    return OPTIONS[name].help.partition(" (default")[0]


def _offload(text: str) -> int | str:
    """Which activations are offloaded."""
    try:
        return parse_offload(text)
    except InvalidConfiguration as error:
        raise argparse.ArgumentTypeError(error.reason) from None


def _number_or_all(text: str) -> int | None:
    """A number, or None for `all`."""
    return None if text == ALL else shared.whole_number(text)


def problem_of(options: argparse.Namespace) -> Problem:
    """What the options ask to be searched; raises `InvalidInput` for what is too large."""
    limits = {"--gpus": (options.gpus, MOST_DEVICES)}
    limits["--batch"] = (max(options.batch), MOST_PASSES)
    for option, (number, most) in limits.items():
        if number > most:
            raise InvalidInput(f"{option}: must be at most {most:,}, not {number:,}")
    constants = load_constants(options.constants) if options.constants else Constants()
    schedules = tuple(options.schedule or DEFAULT_SCHEDULES)
    fixed = parse_fixed(options.fix, schedules)
    cluster = load_cluster(options.cluster, constants.clusters)
    if options.max_memory:
        cluster = _with_memory(cluster, options.max_memory)
    ranges: dict[str, Any] = {name: tuple(getattr(options, name)) for name in RANGES}
    ranges["schedules"] = schedules
    model = Experiment(DEFAULT_SCHEDULES[0], model=model_of(options), **fixed.of_model).transformer
    return Problem(
        model,
        cluster,
        options.gpus,
        tuple(options.batch),
        implementation=find_implementation(options.implementation, constants.implementations),
        fixed=tuple(fixed.others.items()),
        only=tuple(fixed.only.items()),
        **(ranges | fixed.ranges),
    )


def _with_memory(cluster: Cluster, gigabytes: float) -> Cluster:
    """The cluster, with a limit on the memory that may be reserved on a device."""
    device = cluster.device
    if gigabytes * GIGABYTE > device.memory:
        raise InvalidInput(
            f"--max-memory: a device of {cluster.name} has {device.memory / GIGABYTE:.4g} GB"
        )
    return replace(cluster, device=replace(device, memory_limit=gigabytes * GIGABYTE))


def chosen_configurations(problem: Problem) -> tuple[Configuration, ...]:
    """All valid configurations that are not too large; raises `InvalidInput` if there is none."""
    chosen, _, broken = _divided(problem)
    if not chosen:
        batches = ", ".join(map(str, problem.batches))
        groups = [name for name in ("cp", "ep", "dp_replicate") if getattr(problem, name) != (1,)]
        named = ["gpus", "batch", *groups, *(["fix"] if problem.only else [])]
        options = ", ".join(f"--{name.replace('_', '-')}" for name in named)
        hints = "; ".join(untried(problem)) if "pp" in dict(problem.only) else ""
        rules = "; ".join(broken)
        raise InvalidInput(
            f"{options}: {problem.model.name} cannot be divided over {problem.gpus} GPUs "
            f"with a batch of {batches}{f': {rules}' if rules else ''}"
            f"{f'; not tried: {hints}' if hints else ''}"
        )
    return chosen


def broken_rules(problem: Problem) -> Counter[str]:
    """How many of the configurations that were asked for break each rule, and are left out."""
    return _divided(problem)[2]


@lru_cache(1)
def _divided(problem: Problem) -> tuple[tuple[Configuration, ...], int, Counter[str]]:
    """All valid configurations that can be simulated, how many are too large, rules broken."""
    broken = Counter[str]()
    every = configurations(problem, broken)
    chosen = tuple(each for each in every if each.passes <= MOST_PASSES)
    return chosen, len(every) - len(chosen), broken


def search(
    problem: Problem,
    options: argparse.Namespace,
    workers: Workers,
    known: Iterable[Outcome] = (),
) -> Iterator[SearchResult]:
    """Simulate what is not known yet, some at a time, with a progress bar.

    Of what cannot fit, only what comes nearest where nothing fits; all of it where a file is to
    hold all results, and not only the best are asked for.
    """
    chosen, left_out, _ = _divided(problem)
    asked = set(chosen)
    met = [outcome for outcome in known if outcome.configuration in asked]
    done = {outcome.configuration for outcome in met}
    missing = [configuration for configuration in chosen if configuration not in done]
    columns = (
        TextColumn("searching"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    console = Console(stderr=True)
    if left_out:
        most = f"more than {MOST_PASSES:,} passes"
        console.print(f"{left_out:,} configurations of {most} are left out", soft_wrap=True)
    top = getattr(options, "top", None)
    every = top is None and _keeps_all(options)
    has_results = every or bool(done)
    if not has_results and nothing_can_fit(problem, chosen):
        yield SearchResult([nearest_of(problem, chosen)], Counter({TOO_LARGE: len(chosen) - 1}))
        return
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as bar:
        job = bar.add_task("", total=len(chosen), completed=len(chosen) - len(missing))
        for found in evaluated(problem, missing, workers, top, met, every=every):
            bar.advance(job, len(found.outcomes) + found.excluded.total())
            has_results = has_results or bool(found.outcomes)
            yield found
    if not has_results:
        nearest = workers.nearest.submit(nearest_of, problem, chosen).result()
        yield SearchResult([nearest], Counter({TOO_LARGE: -1}))


def _keeps_all(options: argparse.Namespace) -> bool:
    """Whether a file is to hold all results."""
    return any(getattr(options, name, None) for name in ("out", "journal"))


def evaluated(
    problem: Problem,
    chosen: Sequence[Configuration],
    workers: Workers,
    top: int | None = None,
    met: Sequence[Outcome] = (),
    *,
    every: bool = False,
) -> Iterator[SearchResult]:
    """The outcomes of some configurations as workers finish them: of those that fit, or `every`.

    Or of those that may be among the `top` best, or on the front, beside those `met` before.
    """
    WORK.expect(TASKS * sum(each.passes for each in chosen))
    if top is None:
        chosen = sorted(chosen, key=lambda each: (each.degrees.pp, each.loops))
    else:
        chosen = most_promising_first(problem, chosen)
    pieces = parts(chosen, workers.where)
    if every:
        work = [workers.submit(evaluate_all, problem, part) for part in pieces]
    else:
        ahead = foremost(met, top, problem.objective) if top else ()
        work = [workers.submit(evaluate_best, problem, part, top, ahead) for part in pieces]
    for future in as_completed(work):
        yield future.result()


def decided(
    problem: Problem, best_first: Sequence[Outcome], shown: Sequence[Outcome], workers: Workers
) -> Decision | None:
    """Why the best wins: found by the workers that have just simulated it, where they are near."""

    def all_of(calls: Sequence[Callable[[], Any]]) -> list[Any]:
        work = [workers.nearest.submit(each) for each in calls]
        return [each.result() for each in work]

    return decision(problem, best_first, shown, all_of)


def parts(chosen: Sequence[Configuration], where: str = LOCAL) -> list[list[Configuration]]:
    """The pieces of work for an executor: neighbours, which share costs and graphs."""
    at_once = PASSES_AT_ONCE[where]
    passes = accumulate(each.passes for each in chosen)
    pieces = groupby(zip(chosen, passes, strict=True), lambda each: each[1] // at_once)
    return [[configuration for configuration, _ in piece] for _, piece in pieces]
