"""Importing this loads the compiled loops, for a process that has much to simulate.

They are loaded as they are first called: for small steps, with flows that meet and without.
"""

from __future__ import annotations

from bfpp.schedules import Communication, Configuration, Degrees, Sharding, find_schedule
from bfpp.sim.cluster import load_cluster
from bfpp.sim.compiling import COMPILE_FROM, WORK
from bfpp.sim.evaluation import Evaluation
from bfpp.sim.model import load_model
from bfpp.sim.search import Problem

_PROBLEM = Problem(load_model("bert-6.6b"), load_cluster("dgx1-v100-ethernet"), 8, (16,), ("1f1b",))

WORK.expect(COMPILE_FROM)
for _sharding in Sharding:
    Evaluation(_PROBLEM).outcome(
        Configuration(
            find_schedule("1f1b"),
            Degrees(pp=4, dp=2),
            8,
            communication=Communication(_sharding),
        )
    )
