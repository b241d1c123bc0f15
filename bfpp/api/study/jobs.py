"""The jobs of a study's cells, and the costs by which they are predicted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bfpp.api.running.jobs import checked_plan, job_of, sleeps_of
from bfpp.api.study.hosts.study_hosts import HostKind
from bfpp.api.study.study import Study, StudyCell
from bfpp.executor.settings import Activations
from bfpp.launchers.own.model import transformer_source
from bfpp.schedules import InvalidConfiguration
from bfpp.sim.costs.measured.profile import DATA, DISPATCH, PASSES, ProfiledCosts

if TYPE_CHECKING:
    from bfpp.executor.train.job import Job

NOTHING = {"fixed": 0.0, "per_parameter": 0.0}


def jobs_of(study: Study, cells: list[StudyCell]) -> list[Job]:
    """The jobs that run these cells; raises `InvalidConfiguration` for one that cannot be run."""
    return [_job(study, cell) for cell in cells]


def _job(study: Study, cell: StudyCell) -> Job:
    job = job_of(
        cell.experiment,
        transformer_source(study.model, None, is_causal=False),
        steps=study.measuring.steps,
        backend=cell.backend,
        microbatch_size=cell.experiment.microbatch_size,
        activations=Activations.KEEP,  # which PyTorch's runtime does, too
    )
    try:
        plan = checked_plan(job)
    except InvalidConfiguration as error:
        reason = f"{', '.join(map(str, cell.values.values()))}: {error}"
        raise InvalidConfiguration("file", reason) from None
    if study.mocked is None:
        return job
    return replace(job, sleeps=sleeps_of(assumed(study, cell), plan))


def assumed(study: Study, cell: StudyCell) -> ProfiledCosts:
    """The costs of mocked passes on a network of the given speed, before anything is measured.

    Without latency, and as if nothing else took time.
    """
    assert study.mocked is not None  # noqa: S101
    experiment, model = cell.experiment, study.model
    sent = 4.0 * experiment.microbatch_size * model.sequence * model.hidden
    layer = {**study.mocked, "parameters": 0.0, "bytes": sent}
    end = layer | dict.fromkeys(study.mocked, 0.0)
    session = cell.session
    bits = study.networks[cell.network]
    rate = bits / 8 if bits else FAST
    processes = session.pp * session.dp // study.hosts.count
    is_apart = study.hosts.where is HostKind.NAMESPACES
    return ProfiledCosts(
        name="the study's file",
        run={
            "ranks": session.pp,
            "replicas": session.dp,
            "microbatch_size": experiment.microbatch_size,
            "before": 1,
            "after": 1,
            "own_ends": 0,
        },
        layers=(end, *[layer] * model.layers, end),
        passes=dict.fromkeys(PASSES, 0.0),
        channels=({"sender": 0, "receiver": 1, "latency": 0.0, "bandwidth": rate},),
        data=dict.fromkeys(DATA, NOTHING),
        dispatch=dict.fromkeys(DISPATCH, 0.0),
        copies=dict.fromkeys(DATA, NOTHING),
        hosts=({"processes": processes, "out": rate, "into": rate},)
        * (study.hosts.count * is_apart),
    )


FAST = 1e9
"""Bytes/s of a network whose speed is not given: faster than it matters to an estimate."""
