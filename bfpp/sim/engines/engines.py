"""The engines by name, and the one call that runs one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bfpp.schedules import InvalidConfiguration, TaskGraph
from bfpp.schedules.columns import NONE
from bfpp.schedules.validity import require_valid
from bfpp.sim.engines.compiled_engine import simulate as simulate_compiled
from bfpp.sim.engines.cost_model import CostModel, Costs
from bfpp.traces.timeline.timeline import Timeline

Progress = Callable[[int], None]


def _simulate_with_simpy(graph: TaskGraph, costs: Costs, progress: Progress | None) -> Timeline:
    from bfpp.sim.engines.simpy_engine import simulate  # whose packages take long to import

    return simulate(graph, costs, progress)


ENGINES = {"compiled": simulate_compiled, "simpy": _simulate_with_simpy}
DEFAULT = "compiled"

NOT_CHECKED = {"not_checked": "the graph, whose passes are in pieces"}
"""Note of a timeline on an unchecked graph."""


def simulate(
    graph: TaskGraph, model: CostModel, engine: str = DEFAULT, progress: Progress | None = None
) -> Timeline:
    """Predict when each task of the graph runs under a cost model.

    `progress` is called with the number of each task that ends. The graph is checked first, unless
    it is that of a built-in schedule: raises `InvalidConfiguration` if it is wrong. One in pieces
    that comes from elsewhere cannot be checked, and the timeline's `about` says so.

    >>> import bfpp
    >>> graph = bfpp.build_graph("1f1b", bfpp.Layout(2, 4))
    >>> bfpp.simulate(graph, bfpp.AbstractCosts(transfer=0.25), engine="simpy").step_time
    16.0
    """
    if engine not in ENGINES:
        known = ", ".join(ENGINES)
        raise InvalidConfiguration("engine", f"{engine!r} is not one of {known}")
    in_pieces = not graph.is_checked and (graph.piece != NONE).any()
    if not in_pieces:
        require_valid(graph)
    timeline = ENGINES[engine](graph, model.costs(graph), progress)
    return replace(timeline, about=NOT_CHECKED) if in_pieces else timeline
