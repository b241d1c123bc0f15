"""Measures on this machine what the simulator needs, with the machinery of a run.

Small runs of their own make known amounts of work: stages of one layer and of
several, transfers of more and more bytes, gathers and reductions of more and
more parameters. Their measured timelines tell seconds, and least squares turn
these into a cost for each layer, a latency and a bandwidth. All processes that
the calibrated run will have are there and busy at the same time, as they will
be then.
"""

from __future__ import annotations

from executor.calibration.communication import measure_data, measure_transfers
from executor.calibration.compute import measure_compute
from executor.calibration.runs import QUICK, Effort, Profile
from executor.job import Job
from executor.plan import Plan
from executor.processes import Activity, Place, join

__all__ = ["QUICK", "Effort", "Profile", "calibrate", "measure"]


def calibrate(place: Place, work: tuple[Job, Effort]) -> Profile | None:
    """Measure in all processes of a job; the first one tells."""
    job, effort = work
    join(place)
    return measure(place, job.plan(), effort)


def measure(place: Place, plan: Plan, effort: Effort) -> Profile | None:
    """Measure in all processes, which have met; the first one tells."""
    place.send({"what": "compute"})
    with place.watch.during(Activity("measuring compute")):
        compute = measure_compute(plan, effort)
    place.send({"what": "transfers"})
    with place.watch.during(Activity("measuring transfers")):
        transfers = measure_transfers(plan, effort)
    place.send({"what": "gathers and reductions"})
    with place.watch.during(Activity("measuring gathers and reductions")):
        data = measure_data(plan, effort)
    return {**compute, **transfers, **data} if place.is_first else None
