"""What a search does not try unless an option asks for it."""

from __future__ import annotations

from collections.abc import Iterator

from bfpp.sim.search import Problem, divisors


def untried(problem: Problem) -> list[str]:
    """What it is, and the option that asks for it."""
    return [*_uneven(problem), *_experts(problem)]


def _uneven(problem: Problem) -> Iterator[str]:
    """Pipelines over whose ranks layers do not divide, if all stages have as many."""
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
