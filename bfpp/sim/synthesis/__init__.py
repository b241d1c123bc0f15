"""Synthesis: search for the best order of passes within a memory limit, with a lower bound.

- `problem`: the passes to order, their costs and limits; orders as words.
- `bounds`: lower bounds of the step time; `exact`, `crossing`, `window`: those that CP-SAT proves.
- `search`: annealing, and building blocks, periodic orders to start from; their loops are of the
  `core`.
- `placements`: where stages are, and which rules there are for them.
- `ordering`: the best order on a placement; `least_memory`: the one with the lowest peak.
- `choices`, `descent`, `joint`, `joint_bound`: what stages do, chosen together with the order.
- `deadline`: when a search ends, after its time or on Ctrl-C.
- `synthesis`: an experiment in, an experiment with the best order out.
"""

from bfpp.sim.synthesis.outcome import Interrupted, Synthesis
from bfpp.sim.synthesis.problem.placements import PLACEMENTS
from bfpp.sim.synthesis.synthesis import synthesize

__all__ = ["PLACEMENTS", "Interrupted", "Synthesis", "synthesize"]
