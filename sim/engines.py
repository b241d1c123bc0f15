"""The engines by name, and the one call that runs one of them."""

from __future__ import annotations

from collections.abc import Callable

from schedules import InvalidConfiguration, TaskGraph
from sim.compiled_engine import simulate as simulate_compiled
from sim.costs import CostModel
from sim.simpy_engine import simulate as simulate_with_simpy
from traces.timeline import Timeline

Progress = Callable[[int], None]

ENGINES = {"compiled": simulate_compiled, "simpy": simulate_with_simpy}
DEFAULT = "compiled"


def simulate(
    graph: TaskGraph, model: CostModel, engine: str = DEFAULT, progress: Progress | None = None
) -> Timeline:
    """Predict when each task of the graph runs under a cost model.

    `progress` is called with the number of each task that ends.
    """
    if engine not in ENGINES:
        known = ", ".join(ENGINES)
        raise InvalidConfiguration("engine", f"{engine!r} is not one of {known}")
    return ENGINES[engine](graph, model.costs(graph), progress)
