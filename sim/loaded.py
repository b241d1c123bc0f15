"""Importing this loads the compiled loops, for a process that has much to simulate.

They are loaded as they are first called: for small steps, with flows that meet and without.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from typing import Any

from bfpp.schedules import Communication, Configuration, Degrees, Sharding, find_schedule
from bfpp.sim.cluster import load_cluster
from bfpp.sim.compiling import COMPILE_FROM, WORK
from bfpp.sim.evaluation import Evaluation
from bfpp.sim.model import load_model
from bfpp.sim.search import Problem

BLAS = "scipy.linalg"
"""Where numba looks for a BLAS, which no loop calls: to import it takes 0.2 s."""


def _load_numba_without_blas() -> None:
    modules: dict[str, Any] = sys.modules
    if BLAS in modules:
        return
    modules[BLAS] = None
    try:
        import_module("numba.np.arraymath")
    finally:
        del modules[BLAS]


def _load() -> None:
    _load_numba_without_blas()
    problem = Problem(
        load_model("bert-6.6b"), load_cluster("dgx1-v100-ethernet"), 8, (16,), ("1f1b",)
    )
    schedule, degrees = find_schedule("1f1b"), Degrees(pp=4, dp=2)
    WORK.expect(COMPILE_FROM)
    for sharding in Sharding:
        communication = Communication(sharding)
        Evaluation(problem).outcome(
            Configuration(schedule, degrees, 8, communication=communication)
        )


gc.disable()  # what is loaded stays: the collector would look at it again and again
_load()
gc.enable()
