"""The job of an experiment, and how it is reported."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.text import Text

from bfpp.executor.settings import Activations, BackendName, Optimization, Sleeps
from bfpp.schedules import Degrees, InvalidConfiguration, InvalidInput, registered_name
from bfpp.schedules.formats.orders_file import as_given
from bfpp.schedules.settings.recomputation import FULL_RECOMPUTATION
from bfpp.sim.costs.measured.profile import PASSES, ProfiledCosts
from bfpp.sim.experiment.experiment import Experiment
from bfpp.terminal.error_lines import one_line

if TYPE_CHECKING:
    from bfpp.executor.model.sources import ModelSource
    from bfpp.executor.plan.plan import Plan
    from bfpp.executor.processes import RunFailed
    from bfpp.executor.train.job import Job
    from bfpp.sim.unevenness.replicated_step import Effect, ReplicatedStep

FAILED = 1
"""The exit code of a run that failed."""


def is_first() -> bool:
    """True but for processes of torchrun's that are not the first."""
    return os.environ.get("RANK", "0") == "0"


def this_machine() -> dict[str, str | int]:
    """The machine, and the date, of a measurement."""
    return {
        "machine": platform.node(),
        "system": platform.platform(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def about(job: Job) -> dict[str, str | int]:
    """The machine, the date and the settings of a measurement."""
    is_full = job.activations is Activations.RECOMPUTE
    return {
        **this_machine(),
        "backend": str(job.backend),
        "ranks": job.layout.pp,
        "replicas": job.dp,
        "tp": job.tp,
        "precision": str(job.precision),
        "recompute": str(FULL_RECOMPUTATION if is_full else job.recomputation),
    }


def fail(command: str, error: RunFailed) -> int:
    """One line that names the rank and the task, then hints at the cause, if any."""
    console = Console(stderr=True, highlight=False)
    console.print(Text(f"bfpp {command}: {one_line(str(error))}"), soft_wrap=True)
    if error.details:
        console.print(Text(error.details, style="dim"), soft_wrap=True)
    return FAILED


def require_torch() -> None:
    """Raise `InvalidInput` where PyTorch, which nothing else here needs, is not installed.

    Its C++ log is turned off, unless the user has set it: errors are raised too, and reported in
    one line.
    """
    if find_spec("torch") is None:
        raise InvalidInput("needs PyTorch, which is not installed: pip install 'bfpp[torch]'")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")


def job_of(experiment: Experiment, model: ModelSource, **settings: Any) -> Job:
    """The job that trains a model by an experiment, with other `settings` of a `Job`.

    Raises `InvalidConfiguration` for an experiment that can be simulated only.
    """
    from bfpp.executor.model.sources import ties
    from bfpp.executor.train.job import Job

    require_runnable(experiment)
    configuration = experiment.configuration
    schedule, layout, degrees = configuration.schedule, configuration.layout, configuration.degrees
    schedule.require(layout)
    if registered_name(schedule) is None:  # other processes may not know it
        schedule = as_given(schedule, layout)
    communication = configuration.communication
    optimization = settings.setdefault("optimization", Optimization())
    return Job(
        schedule=schedule,
        layout=layout,
        communication=replace(
            communication,
            clipping=communication.clipping or optimization.needs_norm,
            muon=optimization.is_muon,
            tied_embeddings=communication.tied_embeddings or ties(model),
        ),
        model=model,
        dp=degrees.dp,
        dp_replicate=degrees.dp_replicate,
        tp=degrees.tp,
        sequence_parallel=bool(experiment.sequence_parallel),
        offload_share=experiment.offload_share,
        cut=experiment.cut_of_any_model,
        **settings,
    )


def checked_plan(job: Job) -> Plan:
    """The plan of a job that this machine has the devices for, and whose model can be run so.

    Raises `InvalidConfiguration` for any other job.
    """
    from bfpp.executor.devices.devices import device_named, multiprocessors_of
    from bfpp.executor.plan.process_groups import require_co_resident

    job.require_devices()
    plan = job.plan()
    plan.check()
    if job.backend is BackendName.CUDA:
        require_co_resident(plan, multiprocessors_of(device_named("cuda")), "its GPU")
    return plan


def require_runnable(experiment: Experiment) -> None:
    """Raise `InvalidConfiguration` for values that can be simulated only."""
    if experiment.offload_modules:
        reason = "can be simulated only; a run offloads all that passes save, or --offload-share"
        raise InvalidConfiguration("offload_modules", reason)


def sleeps_of(costs: ProfiledCosts, plan: Plan, uneven: Experiment | None = None) -> Sleeps:
    """Seconds that passes sleep instead of computing, from a profile of the same model.

    By an experiment that makes them differ, they are those of the first step that is drawn.
    """
    layout, samples = plan.graph.layout, costs.microbatch_size
    if costs.cuts(layout) != plan.cuts or samples != plan.microbatch_size:
        raise InvalidConfiguration(
            "sleep",
            f"{costs.name} is of {len(costs.layers)} layers and micro-batches of {samples}, "
            f"not {len(plan.model.layers)} and {plan.microbatch_size}, or has its ends elsewhere",
        )
    return Sleeps(
        **{kind: tuple(costs.pass_seconds(layout, kind).tolist()) for kind in PASSES},
        factors=pass_factors(costs, plan, uneven) if uneven else None,
    )


def pass_factors(
    costs: ProfiledCosts, plan: Plan, experiment: Experiment
) -> tuple[tuple[float, ...], ...]:
    """By replica and task, its time in the first step that is drawn, over the even one."""
    from bfpp.sim.experiment.uneven import sources_of
    from bfpp.sim.unevenness.replicated_step import ReplicatedStep
    from bfpp.sim.unevenness.uneven_steps import drawn_effects

    graph = plan.graph
    degrees = Degrees(pp=graph.layout.pp, dp=plan.dp)
    step = ReplicatedStep(graph, costs.costs(graph), degrees, plan.microbatch_size)
    [effects] = drawn_effects(step, sources_of(experiment), 1, experiment.sample_seed)
    return factors_of(step, effects)


def factors_of(step: ReplicatedStep, effects: Sequence[Effect]) -> tuple[tuple[float, ...], ...]:
    """By replica and task, its time with these effects over that without."""
    even = np.broadcast_to(step.costs.seconds, step.shape)
    seconds = step.with_effects(even, effects)
    factors = np.divide(seconds, even, out=np.ones(step.shape), where=even > 0)
    return tuple(map(tuple, factors.tolist()))
