"""The engines by name, and the one call that runs one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from bfpp.schedules import InvalidConfiguration, TaskGraph
from bfpp.schedules.columns import NONE, Seconds
from bfpp.schedules.replicas.joint_graph import JointGraph
from bfpp.schedules.validity import require_valid
from bfpp.schedules.validity.meetings import require_valid_joint
from bfpp.sim.engines.compiled_engine import joint_times as compiled_joint_times
from bfpp.sim.engines.compiled_engine import simulate as simulate_compiled
from bfpp.sim.engines.cost_model import CostModel, Costs, side_by_side
from bfpp.traces.timeline.joint_timeline import JointTimeline
from bfpp.traces.timeline.timeline import Timeline

Progress = Callable[[int], None]


def _simulate_with_simpy(graph: TaskGraph, costs: Costs, progress: Progress | None) -> Timeline:
    from bfpp.sim.engines.simpy_engine import simulate  # whose packages take long to import

    return simulate(graph, costs, progress)


def _joint_times_with_simpy(graph: JointGraph, costs: Costs) -> tuple[Seconds, Seconds]:
    from bfpp.sim.engines.simpy_engine import joint_times

    return joint_times(graph, costs)


ENGINES = {"compiled": simulate_compiled, "simpy": _simulate_with_simpy}
JOINT_ENGINES = {"compiled": compiled_joint_times, "simpy": _joint_times_with_simpy}
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
    _require_engine(engine)
    in_pieces = not graph.is_checked and (graph.piece != NONE).any()
    if not in_pieces:
        require_valid(graph)
    timeline = ENGINES[engine](graph, model.costs(graph), progress)
    return replace(timeline, about=NOT_CHECKED) if in_pieces else timeline


def simulate_joint(
    graph: JointGraph, costs: Sequence[Costs], engine: str = DEFAULT
) -> JointTimeline:
    """Predict when each task of replicas that differ runs, given the costs of each replica.

    Raises `InvalidConfiguration` if the graph is wrong.

    >>> import bfpp
    >>> from bfpp.schedules.replicas.joint_graph import joined
    >>> graph = bfpp.build_graph("1f1b", bfpp.Layout(2, 4))
    >>> costs = [bfpp.AbstractCosts(forward).costs(graph) for forward in (1.0, 1.5)]
    >>> simulate_joint(joined([graph, graph]), costs).step_time
    17.5
    """
    _require_engine(engine)
    require_valid_joint(graph)
    return JointTimeline(graph, *JOINT_ENGINES[engine](graph, side_by_side(costs)), source=engine)


def _require_engine(engine: str) -> None:
    if engine not in ENGINES:
        known = ", ".join(ENGINES)
        raise InvalidConfiguration("engine", f"{engine!r} is not one of {known}")
