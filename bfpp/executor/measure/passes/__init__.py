"""Measure the simulator's inputs on this machine, with the machinery of a run.

Small runs of their own make known amounts of work: stages of one layer and of
several, transfers of more and more bytes, gathers and reductions of more and
more parameters. Their measured timelines give seconds, and least squares turn
these into a cost for each layer, a latency and a bandwidth. All processes that
the calibrated run will have take part and are busy at the same time, as in that
run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from bfpp.executor.measure.passes.communication import measure_data, measure_transfers
from bfpp.executor.measure.passes.compute import measure_compute, mocked_compute
from bfpp.executor.measure.passes.interpreter import interpreted
from bfpp.executor.measure.passes.matrices import measure_matrices
from bfpp.executor.measure.passes.network import measure_network
from bfpp.executor.measure.passes.runs import QUICK, Bench, Effort, Profile
from bfpp.executor.plan.plan import Plan
from bfpp.executor.processes import ProcessContext
from bfpp.executor.settings import EmbeddingStage
from bfpp.executor.train.connect import init_process_group
from bfpp.executor.train.job import Job

__all__ = ["QUICK", "Bench", "CalibrationWork", "Effort", "Profile", "calibrate", "measure"]


class CalibrationWork(NamedTuple):
    """A job to measure for, and the effort; where passes are `mocked`, seconds of each layer's."""

    job: Job
    effort: Effort
    mocked: Mapping[str, float] | None = None


def calibrate(context: ProcessContext, work: CalibrationWork) -> Profile | None:
    """Measure in all processes of a job; the first one returns the profile."""
    clock_offset = init_process_group(context, work.job)
    return measure(Bench(context, work.job, work.effort, clock_offset), work.mocked)


def measure(bench: Bench, mocked: Mapping[str, float] | None = None) -> Profile | None:
    """Measure in all processes, which are connected; the first one returns the profile."""
    plan = bench.job.plan()
    profile: Profile = {"run": _run(plan)}
    parts = PARTS if mocked is None else PARTS | {COMPUTE: partial(mocked_compute, mocked)}
    for what, part in parts.items():
        bench.context.send({"what": what})
        profile |= part(plan, bench)
    if bench.interprets:
        profile |= interpreted(plan, bench, profile)
    return profile if bench.context.is_first else None


def _run(plan: Plan) -> dict[str, int]:
    """The conditions that the measures hold for."""
    before, after = plan.model.attached
    return {
        "ranks": plan.graph.layout.pp,
        "replicas": plan.dp,
        "microbatch_size": plan.microbatch_size,
        "before": before,
        "after": after,
        "own_ends": int(plan.ends is EmbeddingStage.OWN),
    }


COMPUTE = "compute"

PARTS: dict[str, Callable[[Plan, Bench], Profile]] = {
    COMPUTE: measure_compute,
    "transfers": measure_transfers,
    "gathers and reductions": measure_data,
    "matrices": measure_matrices,
    "the network between hosts": measure_network,  # whose channels take the place of the runs'
}
