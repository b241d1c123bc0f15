"""Orders that no rule gives: sought for an experiment's costs within a memory limit, with a bound.

- `problem`: what an order is sought for, and orders as words.
- `bounds`: what no order can beat.
- `search`, `kernels`: the search itself.
- `placements`: where stages are, and which rules there are for them.
- `synthesis`: an experiment in, an experiment with the best order out.
"""

from bfpp.sim.synthesis.placements import PLACEMENTS
from bfpp.sim.synthesis.synthesis import Synthesis, synthesize

__all__ = ["PLACEMENTS", "Synthesis", "synthesize"]
