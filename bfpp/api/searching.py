"""The search of configurations: over workers, with a progress bar, and what is left out of it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, groupby
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bfpp.api.workers import Workers
from bfpp.schedules import Configuration, InvalidInput
from bfpp.sim.presets.numbers import MOST_PASSES
from bfpp.sim.search.decision import Decision, decision
from bfpp.sim.search.evaluation import nearest_of, nothing_can_fit
from bfpp.sim.search.objectives import Objective
from bfpp.sim.search.outcomes import Outcome
from bfpp.sim.search.pruning import (
    TOO_LARGE,
    SearchResult,
    begin,
    evaluate_all,
    evaluate_best,
    foremost,
    most_promising_first,
)
from bfpp.sim.search.search import Problem, configurations, divisors
from bfpp.sim.search.workers import LOCAL, as_completed

PASSES_AT_ONCE = {"local": 2**16, "dask": 2**16, "slurm": 2**24}
"""Passes of micro-batches that one piece of work simulates, in many configurations or in one.

A job of SLURM is a process of its own, which waits in a queue.
"""


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
    """Number of configurations that break each rule, and are left out."""
    return _divided(problem)[2]


@lru_cache(1)
def _divided(problem: Problem) -> tuple[tuple[Configuration, ...], int, Counter[str]]:
    """All valid configurations that can be simulated, how many are too large, rules broken."""
    broken = Counter[str]()
    every = configurations(problem, broken)
    chosen = tuple(each for each in every if each.passes <= MOST_PASSES)
    return chosen, len(every) - len(chosen), broken


def untried(problem: Problem) -> list[str]:
    """Configurations that are not searched by default, each with the option that adds them."""
    return [*_uneven(problem), *_experts(problem)]


def _uneven(problem: Problem) -> Iterator[str]:
    """Pipelines over whose ranks layers do not divide evenly, if all stages are even."""
    layers, given = problem.model.layers, dict(problem.only)
    sizes = given.get("pp", divisors(problem.gpus))
    uneven = [str(pp) for pp in sizes if pp <= layers and layers % pp]
    if uneven and not problem.cut:
        *others, last = uneven
        ranks = f"{', '.join(others)} or {last}" if others else last
        yield (
            f"pipelines of {ranks} ranks, over which {layers} layers do not divide evenly "
            "(--cut even fewer-at-ends)"
        )


def _experts(problem: Problem) -> Iterator[str]:
    """Expert parallelism, of a model that has experts."""
    experts = problem.model.experts
    if experts and problem.ep == (1,):
        routed = experts.routed
        sizes = [str(size) for size in divisors(routed) if size > 1 and problem.gpus % size == 0]
        if sizes:
            yield (
                f"expert parallelism: each device has all {routed} experts (--ep {' '.join(sizes)})"
            )


def search(
    problem: Problem,
    workers: Workers,
    known: Iterable[Outcome] = (),
    *,
    top: int | None = None,
    every: bool = False,
) -> Iterator[SearchResult]:
    """Simulate what is not `known` yet, some at a time, with a progress bar.

    What cannot fit is left out, unless `every`; where nothing fits, the closest is simulated.
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
    has_results = every or bool(done)
    if not has_results and nothing_can_fit(problem, chosen):
        yield SearchResult([nearest_of(problem, chosen)], Counter({TOO_LARGE: len(chosen) - 1}))
        return
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as bar:
        job = bar.add_task("", total=len(chosen), completed=len(chosen) - len(missing))
        for result in evaluated(problem, missing, workers, top, met, every=every):
            bar.advance(job, len(result.outcomes) + result.excluded.total())
            has_results = has_results or bool(result.outcomes)
            yield result
    if not has_results:
        nearest = workers.nearest.submit(nearest_of, problem, chosen).result()
        yield SearchResult([nearest], Counter({TOO_LARGE: -1}))


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
    draws = problem.jitter.draws if problem.objective is Objective.ROBUSTNESS else 1
    workers.expect(draws * len(chosen), draws * sum(each.passes for each in chosen))
    if top is None:
        chosen = sorted(chosen, key=lambda each: (each.degrees.pp, each.loops))
    else:
        chosen = most_promising_first(problem, chosen)
    pieces = parts(chosen, workers.where)
    begin()
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
    """Explain why the best wins, on the workers that simulated it where they are local."""

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
