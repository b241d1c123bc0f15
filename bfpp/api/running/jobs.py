"""The job of an experiment, or of the options of `bfpp run`; and how it is reported."""

from __future__ import annotations

import argparse
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
from bfpp.options import shared
from bfpp.options.run_settings import device_settings, require_consistent, training_settings
from bfpp.options.trained_model import source_of, ties
from bfpp.schedules import Degrees, InvalidConfiguration, InvalidInput, registered_name
from bfpp.schedules.formats.orders_file import as_given
from bfpp.schedules.settings.recomputation import FULL_RECOMPUTATION
from bfpp.sim.costs.measured_profile import PASSES, ProfiledCosts
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.experiment.values import of_group
from bfpp.sim.experiment.values.option import UNEVEN
from bfpp.terminal.error_lines import one_line

if TYPE_CHECKING:
    from bfpp.executor.model.sources import ModelSource
    from bfpp.executor.plan.plan import Plan
    from bfpp.executor.processes import Limits, RunFailed
    from bfpp.executor.train.job import Job
    from bfpp.sim.unevenness.replicated_step import Effect, ReplicatedStep

FAILED = 1
"""The exit code of a run that failed."""


def about(job: Job) -> dict[str, str | int]:
    """The machine, the date and the settings of a measurement."""
    is_full = job.activations is Activations.RECOMPUTE
    return {
        "machine": platform.node(),
        "system": platform.platform(),
        "date": datetime.now(UTC).date().isoformat(),
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


def job_of_options(options: argparse.Namespace) -> Job:
    """The job of the options of `bfpp run`.

    Raises `InvalidConfiguration` for options that contradict each other, or cannot be run.
    """
    require_consistent(options)
    experiment = uneven_experiment(options) or shared.pipeline(options)
    configuration = experiment.configuration
    if options.sleep and configuration.communication.offload:
        raise InvalidConfiguration("sleep", "keeps no activations: not with --offload")
    if options.sleep and configuration.degrees.tp > 1:
        raise InvalidConfiguration("sleep", "mocks whole layers: not with --tp")
    settings = training_settings(options)
    require_torch()
    settings |= device_settings(options)
    # An experiment file may ask for clipping without a norm to clip to, which only options give.
    clipped = experiment.changed(clipping=settings["optimization"].needs_norm)
    return job_of(clipped, source_of(options), **settings)


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


def limits_of(options: argparse.Namespace) -> Limits:
    """The timeouts of processes."""
    from bfpp.executor.processes import Limits

    return Limits(hang=options.task_timeout, start=options.start_timeout)


def sleeps_of(
    costs: ProfiledCosts, plan: Plan, options: argparse.Namespace | None = None
) -> Sleeps:
    """Seconds that passes sleep instead of computing, from a profile of the same model.

    By options that make them differ, they are those of the first step that is drawn.
    """
    layout, samples = plan.graph.layout, costs.microbatch_size
    if costs.cuts(layout) != plan.cuts or samples != plan.microbatch_size:
        raise InvalidConfiguration(
            "sleep",
            f"{costs.name} is of {len(costs.layers)} layers and micro-batches of {samples}, "
            f"not {len(plan.model.layers)} and {plan.microbatch_size}, or has its ends elsewhere",
        )
    uneven = uneven_experiment(options) if options else None
    return Sleeps(
        **{kind: tuple(costs.pass_seconds(layout, kind).tolist()) for kind in PASSES},
        factors=pass_factors(costs, plan, uneven) if uneven else None,
    )


def uneven_experiment(options: argparse.Namespace) -> Experiment | None:
    """The experiment whose passes differ; None if nothing makes them.

    Raises `InvalidConfiguration` for links, which are as they are, and without mocked compute.
    """
    given = shared.given(options)
    values = {name: given[name] for name in of_group(UNEVEN) if name in given}
    if values and not options.sleep:
        raise InvalidConfiguration(min(values), "needs --mock-compute in a run")
    if "slow_links" in values:
        raise InvalidConfiguration("slow_links", "can be simulated only; passes alone are mocked")
    return shared.pipeline(options).changed(**values) if values else None


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
    seconds = even
    for effect in effects:
        seconds = seconds * effect.factor + effect.added
    factors = np.divide(seconds, even, out=np.ones(step.shape), where=even > 0)
    return tuple(map(tuple, factors.tolist()))
