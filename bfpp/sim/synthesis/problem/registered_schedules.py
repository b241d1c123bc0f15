"""The registered schedules that an order competes with: on the same stages, in its memory."""

from __future__ import annotations

from bfpp.schedules.graph.counts import peak_microbatches
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.memory.device_memory import rank_memories
from bfpp.sim.synthesis.problem.memory_limits import memory_of
from bfpp.sim.synthesis.problem.objectives import Aim
from bfpp.sim.synthesis.problem.placements import Board
from bfpp.sim.synthesis.problem.problem import HALVES
from bfpp.traces.timeline.units import GIGABYTE


def fastest_rule(experiment: Experiment) -> Experiment | None:
    """The fastest of them that keeps no more on any rank than the fullest rank of this order."""
    graph, physical = experiment.graph(), experiment.physical
    if physical is None:
        memory = memory_of(experiment, float(peak_microbatches(graph).max()), None)
    else:
        reserved = max(each.reserved for each in rank_memories(graph, physical))
        memory = memory_of(experiment, None, reserved / GIGABYTE)
    rules = Board(experiment.rule.name, experiment, HALVES).rules()
    fitting = [each for each in rules if (memory.excess(memory.peaks(each)) <= 0).all()]
    return min(fitting, key=Aim.STEP.seconds, default=None)
