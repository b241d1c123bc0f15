"""Importing this loads the compiled loops, for a process that has much to simulate.

They are loaded as they are first called: for small steps, with flows that meet and without, and
for steps that repeat.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bfpp.schedules import Communication, Configuration, Degrees, Sharding, find_schedule
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.engines.loops.compiling import COMPILE_FROM, WORK
from bfpp.sim.models.model import load_model
from bfpp.sim.search.evaluation import Evaluation
from bfpp.sim.search.search import Problem

MICROBATCHES = 24, 8, 8
"""With each sharding: as many as repeat, and fewer."""

SETTINGS = Path(".numba_config.yaml")

OPTIONAL = ("scipy", "cffi") if SETTINGS.exists() else ("scipy", "cffi", "yaml")
"""What numba imports for a BLAS and for functions of C, which no loop calls, and for its settings.

That takes 0.2 s.
"""


@contextmanager
def _hidden(packages: tuple[str, ...]) -> Iterator[None]:
    """Let packages that are not imported yet look as if they were not installed."""
    modules: dict[str, Any] = sys.modules
    absent = [name for name in packages if name not in modules]
    modules.update(dict.fromkeys(absent))
    try:
        yield
    finally:
        for name in absent:
            del modules[name]


def _load() -> None:
    problem = Problem(
        load_model("bert-6.6b"), load_cluster("dgx1-v100-ethernet"), 8, (16,), ("1f1b",)
    )
    schedule, degrees = find_schedule("1f1b"), Degrees(pp=4, dp=2)
    WORK.expect(COMPILE_FROM)
    for sharding, microbatches in zip(Sharding, MICROBATCHES, strict=True):
        communication = Communication(sharding)
        Evaluation(problem).outcome(
            Configuration(schedule, degrees, microbatches, communication=communication)
        )


gc.disable()
with _hidden(OPTIONAL):
    _load()
gc.freeze()  # what is loaded stays: the collector need not look at it again and again
gc.enable()
