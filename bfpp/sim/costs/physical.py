"""Costs from first principles: the tasks of a model on a cluster, within its power limit.

Tasks are priced by `bfpp.sim.costs.step_costs`. A step does not go beyond the device's power
limit, and takes no less than the busiest rank's host.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bfpp.core import step as core
from bfpp.schedules import Layout, Sharding, TaskGraph
from bfpp.schedules.columns import NONE, Seconds
from bfpp.sim.costs.expert_exchanges import with_exchanges
from bfpp.sim.costs.model_on_cluster import ModelOnCluster
from bfpp.sim.costs.physical_step import HostStep, PhysicalStep
from bfpp.sim.costs.power import TOLERANCE, WithinPower, least_seconds, within_power
from bfpp.sim.costs.step_costs import host_seconds, step_costs, step_prices
from bfpp.sim.costs.units.seconds import UnitSeconds, unit_seconds
from bfpp.sim.engines.caching import of_any_size, once_for_stages
from bfpp.sim.engines.compiled_engine import StepTime, Times, times
from bfpp.sim.engines.cost_model import Costs

ROUNDING = 1e-9
"""Share by which sums of the same seconds in another order may differ: more than they do."""


@dataclass(frozen=True, repr=False)
class PhysicalCosts(ModelOnCluster):
    """A model trained on a cluster, with groups of these sizes; prices any graph of it.

    `microbatch_size` is S_mb in samples; N_PP is the graph's. `recompute`, `attention`,
    `sequence_parallel` and `precision` are the implementation's unless they are given, and that is
    the cluster's. `cut`
    holds the layers of each stage: by default as equal as can be. `exchange` is what
    context-parallel devices do, `routing` how tokens get to experts. With `quantised_weights` those
    of GEMMs whose operands are quantised are kept and gathered so; `quantised_attention` and
    `quantised_head` say that operands of their GEMMs are quantised too, and
    `quantised_activation` that the input of an MLP's activation is kept in 8 bits. Of activations
    that are offloaded, or of the inputs of `offload_modules` among them, `offload_share` leaves the
    device. Raises `InvalidConfiguration` for what cannot be divided so.

    >>> import bfpp
    >>> costs = bfpp.PhysicalCosts(
    ...     bfpp.load_model("bert-6.6b"), bfpp.load_cluster("dgx1-v100"), bfpp.Degrees(dp=2, tp=4)
    ... )
    >>> layout = bfpp.Layout(2, 8, 4)
    >>> costs.batch(layout), costs.devices(layout)
    (16, 16)
    """

    def costs(self, graph: TaskGraph) -> Costs:
        """The costs of each task of the graph."""
        return self._within_power(graph).costs

    def times(self, graph: TaskGraph) -> Times:
        """Start and end of each task by the compiled engine, within the power limit."""
        costs, known = self._within_power(graph)
        return known or times(graph, costs)

    def step_time(self, graph: TaskGraph) -> float:
        """End of the last task, in seconds."""
        return self.timed(graph).seconds

    def timed(
        self, graph: TaskGraph, layout: Layout | None = None, extension: core.Extension = core.WHOLE
    ) -> StepTime:
        """The time of a step, without its timeline: like `times`, in one call of the core.

        The graph may stand for a step of another `layout`, with what is left out of that as an
        `extension`: raises `NotPeriodic` where the times do not determine the whole step's.
        """
        step = PhysicalStep(self, self._with_exchanges(graph))
        cells, others, own = step_prices(step)
        seconds, passes = core.step_time(
            graph_columns(graph),
            len(graph.lanes),
            graph.layout.pp,
            cells.columns,
            others.columns,
            cells.costs.bandwidth,
            own,
            core.PowerLimit(self._least_of(graph, layout or graph.layout), TOLERANCE),
            extension,
        )
        return StepTime(seconds, passes)

    def _within_power(self, graph: TaskGraph) -> WithinPower:
        costs = step_costs(PhysicalStep(self, self._with_exchanges(graph)))
        return within_power(graph, costs, self._least_of(graph, graph.layout))

    def _least_of(self, graph: TaskGraph, layout: Layout) -> float:
        """Seconds that a step on a layout takes at least, by the power limit and its hosts."""
        least = self._least_seconds(layout, trains=graph.trains)
        if self.dispatch_seconds:
            return max(least, host_seconds(HostStep(self, graph)))
        return least

    def _with_exchanges(self, graph: TaskGraph) -> TaskGraph:
        """The graph with the exchanges of experts inside passes, if some are in fused blocks."""
        if self.degrees.ep == 1 or graph.templates or (graph.block == NONE).all():
            return graph
        routing = self.execution.routing
        if routing.beside_shared or routing.interleaved:
            return graph
        return with_exchanges(graph, self)

    def _least_seconds(self, layout: Layout, *, trains: bool = True) -> float:
        """Seconds that the power limit asks for, at least, for a step."""
        narrow = None if (quantised := self.execution.quantisation) is None else quantised.format
        flops = self.hardware_flops(layout, trains=trains)
        return least_seconds(self.cluster.device, flops, narrow)

    def shortest_step(self, layout: Layout, *, in_blocks: bool = True) -> float:
        """Seconds that a step takes at least: those of the busiest rank, and of the power limit.

        Of ranks that share stages, one has at least half of the micro-batches. Some passes may be
        `in_blocks` with others.
        """
        units = self.least_unit_seconds(layout) if in_blocks else self.unit_seconds(layout)
        passes = units.forward + units.backward_input + units.backward_weight
        busiest = layout.sums(passes).max() * layout.whole_microbatches / (1 + len(layout.copies))
        waiting = self.waiting_factor(layout, Sharding.NONE)
        within = (1 - TOLERANCE) * self._least_seconds(layout)
        return (1 - ROUNDING) * max(waiting * float(busiest), within)

    def least_unit_seconds(self, layout: Layout) -> UnitSeconds:
        """Seconds of the passes of each unit at least: in fused blocks, exchanges may be hidden."""
        if self.degrees.ep == 1:
            return self.unit_seconds(layout)
        return unit_seconds(self, self.layers(layout), communicates=False)


def graph_columns(graph: TaskGraph) -> core.GraphColumns:
    """The columns of a graph, as the core replays them."""
    return core.GraphColumns(
        graph.kinds.of_task,
        graph.rank,
        graph.lane,
        graph.peer_lane,
        graph.is_compute,
        graph.is_pass,
        *graph.dependencies,
        *graph.followers,
    )


@of_any_size
@once_for_stages
def rank_parameters(physical: PhysicalCosts, layout: Layout) -> Seconds:
    """For each pipeline rank, its parameters on one device."""
    total: Seconds = sum(map(layout.sums, physical.by_stride(layout).values()), np.zeros(()))
    return total
