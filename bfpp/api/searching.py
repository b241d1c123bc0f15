"""The search of configurations: over workers, with a progress bar and pruning."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bfpp.api.workers import Workers
from bfpp.schedules import InvalidInput
from bfpp.schedules.columns import Offsets
from bfpp.schedules.settings.offloading import OFF
from bfpp.sim.experiment.experiment import OF_OFFLOAD
from bfpp.sim.experiment.values import DEFAULTS, OPTIONS
from bfpp.sim.presets.numbers import MOST_PASSES
from bfpp.sim.search.bounds import Bounds, SharedBounds, bounds_in_piece, distinct
from bfpp.sim.search.decision import Decision, decision
from bfpp.sim.search.defaults import divisors
from bfpp.sim.search.enumeration import configurations
from bfpp.sim.search.objectives import Objective
from bfpp.sim.search.outcomes import Outcome, Outcomes
from bfpp.sim.search.problem import EQUAL, Problem
from bfpp.sim.search.pruning import (
    TOO_LARGE,
    Request,
    SearchResult,
    by_promise,
    evaluate_all,
    evaluate_best,
    nearest_of,
    nothing_can_fit,
)
from bfpp.sim.search.ranking import foremost
from bfpp.sim.search.space import Space
from bfpp.sim.search.workers import LOCAL, Future, as_completed

PASSES_AT_ONCE = {"local": 2**16, "dask": 2**16, "slurm": 2**24}
"""Passes of micro-batches that one piece of work simulates, in many configurations or in one.

A job of SLURM is a process of its own, which waits in a queue.
"""

MOST_PIECES = 64
"""Pieces of a search, at most: what a piece shares, another works out again."""

BOUNDS_AT_ONCE = 2_000
"""Configurations whose bounds one piece of work finds: in some tenths of a second."""


def chosen_configurations(problem: Problem) -> Space:
    """All valid configurations that are not too large; raises `InvalidInput` if there is none."""
    chosen, _, broken = _divided(problem)
    if not len(chosen):
        gpus, batches = (", ".join(map(str, each)) for each in (problem.gpus, problem.batches))
        groups = [
            name
            for name in ("cp", "ep", "dp_replicate")
            if getattr(problem, name) not in ((), (1,))
        ]
        named = ["gpus", "batch", *groups, *(["fix"] if problem.only else [])]
        options = ", ".join(f"--{name.replace('_', '-')}" for name in named)
        hints = "; ".join(untried(problem)) if "pp" in dict(problem.only) else ""
        rules = "; ".join(broken)
        raise InvalidInput(
            f"{options}: {problem.model.name} cannot be divided over {gpus} GPUs "
            f"with a batch of {batches}{f': {rules}' if rules else ''}"
            f"{f'; not tried: {hints}' if hints else ''}"
        )
    return chosen


def broken_rules(problem: Problem) -> Counter[str]:
    """Number of configurations that break each rule, and are left out."""
    return _divided(problem)[2]


@lru_cache(1)
def _divided(problem: Problem) -> tuple[Space, int, Counter[str]]:
    """All valid configurations that can be simulated, how many are too large, rules broken."""
    broken = Counter[str]()
    every = configurations(problem, broken)
    chosen = every.take(every.passes <= MOST_PASSES)
    return chosen, len(every) - len(chosen), broken


def untried(problem: Problem) -> list[str]:
    """Configurations that are not searched by default, each with the option that adds them."""
    return [*_uneven(problem), *_experts(problem)]


def _uneven(problem: Problem) -> Iterator[str]:
    """Pipelines over whose ranks layers do not divide evenly, if all stages are even."""
    layers, given = problem.model.layers, dict(problem.only)
    sizes = given.get("pp", sorted({*chain(*map(divisors, problem.gpus))}))
    uneven = [str(pp) for pp in sizes if pp <= layers and layers % pp]
    if uneven and problem.cut == (EQUAL,):
        *others, last = uneven
        ranks = f"{', '.join(others)} or {last}" if others else last
        yield (
            f"pipelines of {ranks} ranks, over which {layers} layers do not divide evenly "
            "(--cut as-needed)"
        )


def _experts(problem: Problem) -> Iterator[str]:
    """Expert parallelism, of a model that has experts."""
    experts = problem.model.experts
    if experts and problem.ep == (1,):
        routed = experts.routed
        sizes = [
            str(size)
            for size in divisors(routed)
            if size > 1 and any(gpus % size == 0 for gpus in problem.gpus)
        ]
        if sizes:
            yield (
                f"expert parallelism: each device has all {routed} experts (--ep {' '.join(sizes)})"
            )


def search(
    problem: Problem,
    workers: Workers,
    known: Outcomes | None = None,
    *,
    top: int | None = None,
    every: bool = False,
) -> Iterator[SearchResult]:
    """Simulate configurations that are not `known` yet, some at a time, with a progress bar.

    What cannot fit is left out, unless `every`; where nothing fits, the closest is simulated.
    """
    chosen, left_out, _ = _divided(problem)
    met, missing = known, chosen
    if known is not None:
        met = known.take(known.space.are_in(chosen))
        missing = chosen.take(~chosen.are_in(known.space))
    columns = (
        TextColumn("searching"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    console = Console(stderr=True)
    if left_out:
        most = f"more than {MOST_PASSES:,} passes"
        console.print(f"{left_out:,} configurations of {most} are left out", soft_wrap=True)
    has_results = every or bool(met)
    bounds = None if every else all_bounds(problem, missing, workers)
    if bounds is not None and not has_results and nothing_can_fit(problem, bounds.rows):
        nearest = Outcomes.of([nearest_of(problem, chosen)])
        yield SearchResult(nearest, Counter({TOO_LARGE: len(chosen) - 1}))
        return
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as bar:
        job = bar.add_task("", total=len(chosen), completed=len(chosen) - len(missing))
        for part in evaluated(problem, missing, workers, bounds, top, met):
            bar.advance(job, len(part.outcomes) + part.excluded.total())
            has_results = has_results or bool(part.outcomes)
            yield part
    if not has_results:
        nearest = Outcomes.of([workers.nearest.submit(nearest_of, problem, chosen).result()])
        yield SearchResult(nearest, Counter({TOO_LARGE: -1}))


def _expect(problem: Problem, chosen: Space, workers: Workers) -> None:
    """Tell workers how much it is to predict some configurations."""
    draws = problem.jitter.draws if problem.objective is Objective.ROBUSTNESS else 1
    workers.expect(draws * len(chosen), draws * int(chosen.passes.sum()))


def all_bounds(problem: Problem, chosen: Space, workers: Workers) -> SharedBounds:
    """Bounds of all configurations, on the workers, which begin if what follows is worth it."""
    _expect(problem, chosen, workers)
    some, places = distinct(chosen)
    begins = range(0, len(some) or 1, BOUNDS_AT_ONCE)
    pieces = [some[begin : begin + BOUNDS_AT_ONCE].compact() for begin in begins]
    work = [workers.nearest.submit(bounds_in_piece, problem, piece) for piece in pieces]
    return SharedBounds(Bounds.joined([each.result() for each in work]), places)


def evaluated(
    problem: Problem,
    chosen: Space,
    workers: Workers,
    bounds: SharedBounds | None,
    top: int | None = None,
    met: Outcomes | None = None,
) -> Iterator[SearchResult]:
    """The outcomes of some configurations as workers finish them: of those that fit.

    Or of those that may be among the `top` best, or on the front, beside those `met` before.
    Without `bounds`, of all.
    """
    for future in as_completed(_begun(problem, chosen, workers, bounds, top, met)):
        yield future.result()


def _begun(
    problem: Problem,
    chosen: Space,
    workers: Workers,
    bounds: SharedBounds | None,
    top: int | None,
    met: Outcomes | None,
) -> Iterator[Future]:
    """The pieces of that work, on the workers."""
    if bounds is None:
        _expect(problem, chosen, workers)
        for each in parts(chosen.take(_by_stages(chosen)), workers.where):
            yield workers.submit(evaluate_all, problem, each)
        return
    order = by_promise(chosen, bounds.rows.throughput[bounds.places]) if top else _by_stages(chosen)
    request, first = _request(problem, top, met) if top else None, 0
    for each in parts(chosen.take(order), workers.where):
        own = bounds.take(order[first : (first := first + len(each))])
        yield workers.submit(evaluate_best, problem, each, request, own)


def _by_stages(chosen: Space) -> Offsets:
    """The places of configurations by their ranks and loops: these share costs."""
    loops = [each.loops for each in chosen.tables.pipelines]
    return np.lexsort(np.array([chosen.tables.ranks, loops])[::-1][:, chosen.pipeline])


def _request(problem: Problem, top: int, met: Outcomes | None) -> Request:
    """The request, with as much of what was met as decides it: all workers are sent that."""
    return Request(
        top, foremost(met, top, problem.objective, problem.risk).compact() if met else None
    )


def values_of(outcome: Outcome, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the experiment that a configuration is, where they are not the defaults.

    Without those of its model and its cluster, and without parameters of its schedule.
    """
    values = outcome.record | dict(fixed)
    if values["offload"] == OFF:
        values |= dict.fromkeys(OF_OFFLOAD)
    given = {name: values[name] for name in OPTIONS if values.get(name) is not None}
    return {name: each for name, each in given.items() if each != DEFAULTS[name]}


def decided(
    problem: Problem, best_first: Outcomes, shown: Sequence[Outcome], workers: Workers
) -> Decision | None:
    """Explain why the best wins, on the workers that simulated it where they are local."""

    def all_of(calls: Sequence[Callable[[], Any]]) -> list[Any]:
        work = [workers.nearest.submit(each) for each in calls]
        return [each.result() for each in work]

    return decision(problem, best_first, shown, all_of)


def parts(chosen: Space, where: str = LOCAL) -> Iterator[Space]:
    """The pieces of work for an executor: neighbours, which share costs and graphs."""
    passes = chosen.passes
    at_once = max(PASSES_AT_ONCE[where], int(passes.sum()) // MOST_PIECES)
    piece = passes.cumsum() // at_once
    begins = [0, *(np.flatnonzero(np.diff(piece)) + 1).tolist(), len(chosen)]
    for first, end in pairwise(begins):
        if end > first:
            yield chosen[first:end].compact()
