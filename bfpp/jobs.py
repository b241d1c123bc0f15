"""The job that the options of a run stand for, and how it is reported."""

from __future__ import annotations

import argparse
import math
import os
import platform
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from bfpp import options as shared
from bfpp.errors import one_line
from bfpp.executor.settings import (
    Activations,
    BackendName,
    DType,
    EmbeddingStage,
    HeldOutEvaluation,
    LearningRates,
    LossScaling,
    Optimization,
    Saving,
    Sleeps,
)
from bfpp.schedules import (
    Communication,
    InvalidConfiguration,
    InvalidInput,
    Layout,
    Schedule,
    registered_name,
)
from bfpp.schedules.given_orders import as_given
from bfpp.schedules.recomputation import FULL_RECOMPUTATION, NO_RECOMPUTATION
from bfpp.sim.experiment import Experiment
from bfpp.sim.numbers import real
from bfpp.sim.profile import PASSES, ProfiledCosts
from bfpp.trained_model import source_of, ties
from bfpp.training_options import LAST

if TYPE_CHECKING:
    from bfpp.executor.job import Job
    from bfpp.executor.plan import Plan
    from bfpp.executor.processes import Limits, RunFailed

FAILED = 1
"""The exit code of a run that failed."""


def about(job: Job) -> dict[str, str | int]:
    """Where and how something was measured."""
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
    """One line that names the rank and the task, then what helps to find the cause, if any."""
    console = Console(stderr=True, highlight=False)
    console.print(Text(f"bfpp {command}: {one_line(str(error))}"), soft_wrap=True)
    if error.details:
        console.print(Text(error.details, style="dim"), soft_wrap=True)
    return FAILED


def require_torch() -> None:
    """Raise `InvalidInput` where PyTorch, which nothing else here needs, is not installed.

    What its C++ parts log is off, unless the user has said otherwise: they raise it too, and
    one line says it.
    """
    if find_spec("torch") is None:
        raise InvalidInput("needs PyTorch, which is not installed: pip install 'bfpp[torch]'")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")


def device_job_of(options: argparse.Namespace, schedule: Schedule, layout: Layout) -> Job:
    """One step of a schedule, with what the options say of the model and of the devices."""
    require_torch()
    from bfpp.executor.job import Job

    if options.device != "cpu" and options.backend != BackendName.LOCAL:
        raise InvalidConfiguration("device", "goes with --backend local; cuda takes all GPUs")
    is_full = options.recompute == FULL_RECOMPUTATION
    return Job(
        schedule=schedule,
        layout=layout,
        communication=Communication(),
        model=source_of(options),
        steps=1,
        backend=BackendName(options.backend),
        device=options.device,
        dp=options.dp or 1,
        microbatch_size=options.microbatch_size,
        precision=DType(options.precision),
        reduce_precision=options.reduce_precision and DType(options.reduce_precision),
        keeps_float32=options.keep_fp32,
        loader_threads=options.loader_threads or 0,
        activations=Activations.RECOMPUTE if is_full else Activations.KEEP,
        recomputation=NO_RECOMPUTATION if is_full else options.recompute,
        ends=EmbeddingStage(options.ends),
    )


def job_of(options: argparse.Namespace) -> Job:
    """The job that the options ask for; raises `InvalidConfiguration` for one that cannot be."""
    if options.clipping and options.clip is None:
        raise InvalidConfiguration("clipping", "needs a norm to clip to: --clip NORM")
    if (options.resume or options.save_every) and not options.checkpoint:
        raise InvalidConfiguration("checkpoint", "is needed by --resume and --save-every")
    if (options.keep or options.keep_every or options.async_save) and not options.checkpoint:
        reason = "is needed by --keep, --keep-every and --async-save"
        raise InvalidConfiguration("checkpoint", reason)
    untimed = options.no_task_times or options.cuda_graphs
    if untimed and options.trace:
        option = "--no-task-times" if options.no_task_times else "--cuda-graphs"
        raise InvalidConfiguration("trace", f"needs the times of tasks: not with {option}")
    if options.backend == BackendName.TORCH_PIPELINING:
        for name in ("trace", "sleep", "check_messages"):
            if getattr(options, name):
                raise InvalidConfiguration(name, f"is not for --backend {options.backend}")
    if options.sleep and (options.device != "cpu" or options.backend == BackendName.CUDA):
        raise InvalidConfiguration("sleep", "is for CPUs only")
    for name in ("verify", "checkpoint", "evaluate_every"):
        if options.sleep and getattr(options, name):
            option = name.replace("_", "-")
            raise InvalidConfiguration("sleep", f"--{option} has no meaning with mocked compute")
    experiment = shared.pipeline(options)
    configuration = experiment.configuration
    configuration.schedule.require(configuration.layout)
    require_runnable(experiment)
    if options.sleep and configuration.communication.offload:
        raise InvalidConfiguration("sleep", "keeps no activations: not with --offload")
    if options.sleep and configuration.degrees.tp > 1:
        raise InvalidConfiguration("sleep", "mocks whole layers: not with --tp")
    optimization = _optimization(options)
    schedule = configuration.schedule
    if registered_name(schedule) is None:  # other processes may not know it
        schedule = as_given(schedule, configuration.layout)
    job = device_job_of(options, schedule, configuration.layout)
    tied = ties(job.model) or configuration.communication.tied_embeddings
    return replace(
        job,
        dp=configuration.degrees.dp,
        dp_replicate=configuration.degrees.dp_replicate,
        tp=configuration.degrees.tp,
        sequence_parallel=bool(experiment.sequence_parallel),
        offload_share=experiment.offload_share,
        communication=replace(
            configuration.communication, clipping=optimization.needs_norm, tied_embeddings=tied
        ),
        steps=options.steps,
        optimization=optimization,
        seed=options.seed,
        evaluation=_evaluation(options),
        saving=_saving(options),
        checks_messages=options.check_messages,
        times_tasks=not untimed,
        compile=options.compile,
        cut=options.cut or experiment.cut_of_any_model,
        cuda_graphs=options.cuda_graphs,
    )


def require_runnable(experiment: Experiment) -> None:
    """Raise `InvalidConfiguration` for values that can be simulated only."""
    if experiment.offload_modules:
        reason = "can be simulated only; a run offloads all that passes save, or --offload-share"
        raise InvalidConfiguration("offload_modules", reason)


def _optimization(options: argparse.Namespace) -> Optimization:
    """How weights are updated."""
    name, *arguments = options.optimizer.split(",")
    chosen = Optimization(
        options.learning_rate,
        options.weight_decay,
        options.clip,
        options.skip_nonfinite,
        LossScaling(options.loss_scale) if options.loss_scale else None,
        name,
        tuple(map(_argument, arguments)),
        options.no_decay,
        LearningRates(
            options.lr_schedule,
            options.warmup,
            options.decay_steps or (0 if options.lr_schedule == "constant" else options.steps),
            options.final_rate,
        ),
    ).for_precision(DType(options.precision))
    if options.loss_scale_interval is None:
        return chosen
    if chosen.loss_scaling is None:
        raise InvalidConfiguration("loss_scale_interval", "needs --loss-scale or --precision fp16")
    scaling = replace(chosen.loss_scaling, interval=options.loss_scale_interval)
    return replace(chosen, loss_scaling=scaling)


def _argument(text: str) -> tuple[str, object]:
    """An optimizer's argument: a number, several with colons, true or false."""
    name, is_given, value = text.partition("=")
    words = {"true": True, "false": False}
    numbers = [real(each) for each in value.split(":")]
    if not name or not is_given or (value not in words and any(map(math.isnan, numbers))):
        raise InvalidConfiguration(
            "optimizer",
            f"{text!r} is not KEY=VALUE, with a number, numbers with colons, true or false",
        )
    if value in words:
        return name, words[value]
    return name, numbers[0] if len(numbers) == 1 else tuple(numbers)


def limits_of(options: argparse.Namespace) -> Limits:
    """How long processes are waited for."""
    from bfpp.executor.processes import Limits

    return Limits(hang=options.task_timeout, start=options.start_timeout)


def sleeps_of(costs: ProfiledCosts, plan: Plan) -> Sleeps:
    """How long passes sleep instead of computing, by a profile of this very model."""
    layout, samples = plan.graph.layout, costs.microbatch_size
    if costs.cuts(layout) != plan.cuts or samples != plan.microbatch_size:
        raise InvalidConfiguration(
            "sleep",
            f"{costs.name} is of {len(costs.layers)} layers and micro-batches of {samples}, "
            f"not {len(plan.model.layers)} and {plan.microbatch_size}, or has its ends elsewhere",
        )
    return Sleeps(**{kind: tuple(costs.pass_seconds(layout, kind).tolist()) for kind in PASSES})


def _evaluation(options: argparse.Namespace) -> HeldOutEvaluation | None:
    if options.evaluate_every:
        return HeldOutEvaluation(
            options.evaluate_every, options.evaluate_steps or HeldOutEvaluation.steps
        )
    if options.evaluate_steps or options.evaluate_text:
        reason = "is needed by --evaluate-steps and --evaluate-text"
        raise InvalidConfiguration("evaluate_every", reason)
    return None


def _saving(options: argparse.Namespace) -> Saving | None:
    if not options.checkpoint:
        return None
    return Saving(
        options.checkpoint,
        options.save_every or options.steps,
        resumes=options.resume is not None,
        step=None if options.resume == LAST else options.resume,
        keep=options.keep or Saving.keep,
        keep_every=options.keep_every,
        in_background=options.async_save,
    )
