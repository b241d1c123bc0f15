"""The engines by name, and the one call that runs one of them."""

from __future__ import annotations

from collections.abc import Callable

from bfpp.schedules import InvalidConfiguration, TaskGraph
from bfpp.sim.compiled_engine import simulate as simulate_compiled
from bfpp.sim.costs import CostModel, Costs
from bfpp.traces.timeline import Timeline

Progress = Callable[[int], None]


def _simulate_with_simpy(graph: TaskGraph, costs: Costs, progress: Progress | None) -> Timeline:
    from bfpp.sim.simpy_engine import simulate  # whose packages take long to import

    return simulate(graph, costs, progress)


ENGINES = {"compiled": simulate_compiled, "simpy": _simulate_with_simpy}
DEFAULT = "compiled"


def simulate(
    graph: TaskGraph, model: CostModel, engine: str = DEFAULT, progress: Progress | None = None
) -> Timeline:
    """Predict when each task of the graph runs under a cost model.

    `progress` is called with the number of each task that ends.

    >>> import bfpp
    >>> graph = bfpp.build_graph("1f1b", bfpp.Layout(2, 4))
    >>> bfpp.simulate(graph, bfpp.AbstractCosts(transfer=0.25), engine="simpy").step_time
    16.0
    """
    if engine not in ENGINES:
        known = ", ".join(ENGINES)
        raise InvalidConfiguration("engine", f"{engine!r} is not one of {known}")
    return ENGINES[engine](graph, model.costs(graph), progress)
