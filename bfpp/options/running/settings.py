"""The options of a run as settings of its job."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bfpp.executor.settings import (
    BackendName,
    DType,
    EmbeddingStage,
    HeldOutEvaluation,
    LearningRates,
    LossScaling,
    Optimization,
    Saving,
    dtype_named,
    kept_by,
)
from bfpp.options import shared
from bfpp.options.named_experiments import holds_experiment, named
from bfpp.options.running.training import LAST
from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.settings.recomputation import FULL_RECOMPUTATION
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.experiment.values import of_group
from bfpp.sim.experiment.values.option import UNEVEN
from bfpp.sim.presets.numbers import real


def require_consistent(options: argparse.Namespace) -> None:
    """Raise `InvalidConfiguration` for options of `bfpp run` that contradict each other."""
    if options.rank is not None and not options.dry_run:
        raise InvalidConfiguration("rank", "is the rank of --dry-run")
    if options.clipping and options.clip is None:
        raise InvalidConfiguration("clipping", "needs a norm to clip to: --clip NORM")
    if (options.resume or options.save_every) and not options.checkpoint:
        raise InvalidConfiguration("checkpoint", "required with --resume or --save-every")
    if (options.keep or options.keep_every or options.async_save) and not options.checkpoint:
        reason = "required with --keep, --keep-every or --async-save"
        raise InvalidConfiguration("checkpoint", reason)
    if _is_untimed(options) and options.trace:
        option = "--no-task-times" if options.no_task_times else "--cuda-graphs"
        raise InvalidConfiguration("trace", f"needs the times of tasks: not with {option}")
    if options.backend == BackendName.TORCH_PIPELINING:
        for name in ("trace", "check_messages"):
            if getattr(options, name):
                raise InvalidConfiguration(name, f"is not for --backend {options.backend}")
    if options.sleep and (options.device != "cpu" or options.backend == BackendName.CUDA):
        raise InvalidConfiguration("sleep", "is for CPUs only")
    for name in ("verify", "checkpoint", "evaluate_every"):
        if options.sleep and getattr(options, name):
            option = name.replace("_", "-")
            raise InvalidConfiguration("sleep", f"--{option} has no meaning with mocked compute")


USUAL: dict[str, Any] = {
    "microbatch_size": 4,
    "precision": DType.FLOAT32,
    "recompute": FULL_RECOMPUTATION,
}
"""The values of a run that neither its options nor an experiment's file say."""


def with_file_values(options: argparse.Namespace) -> argparse.Namespace:
    """The options, with the values of the experiment's file, or usual ones, for what is not given.

    Raises `InvalidConfiguration` for those of a file that can be simulated only.
    """
    missing = {name: value for name, value in USUAL.items() if getattr(options, name) is None}
    schedule = getattr(options, "schedule", None)
    if schedule is not None and holds_experiment(schedule):
        known = named(schedule, trust=options.trust)
        said: dict[str, Callable[[], Any]] = {
            "microbatch_size": lambda: known.configuration.microbatch_size,
            "precision": lambda: known.precision and dtype_named(known.precision),
            "recompute": lambda: known.recomputation,
        }
        missing |= {name: value for name in missing if (value := said[name]()) is not None}
    return argparse.Namespace(**vars(options) | missing)


def uneven_experiment(options: argparse.Namespace) -> Experiment | None:
    """The experiment whose passes differ; None if nothing makes them.

    Raises `InvalidConfiguration` for links, which are as they are, and without mocked compute.
    """
    given = shared.given(options)
    values = {name: given[name] for name in of_group(UNEVEN) if name in given}
    if values and not options.sleep:
        raise InvalidConfiguration(min(values), "needs --mock-compute in a run")
    if values and options.backend == BackendName.TORCH_PIPELINING:
        raise InvalidConfiguration(min(values), f"is not for --backend {options.backend}")
    if "slow_links" in values:
        raise InvalidConfiguration("slow_links", "can be simulated only; passes alone are mocked")
    return shared.pipeline(options).changed(**values) if values else None


def _is_untimed(options: argparse.Namespace) -> bool:
    """True if steps are timed, and tasks are not."""
    return bool(options.no_task_times or options.cuda_graphs)


def device_settings(options: argparse.Namespace) -> dict[str, Any]:
    """The settings by the options of model and devices, which `bfpp calibrate` has too."""
    if options.device != "cpu" and options.backend != BackendName.LOCAL:
        raise InvalidConfiguration("device", "only valid with --backend local; cuda uses all GPUs")
    return {
        "backend": BackendName(options.backend),
        "device": options.device,
        "microbatch_size": options.microbatch_size,
        "precision": DType(options.precision),
        "reduce_precision": options.reduce_precision and DType(options.reduce_precision),
        "keeps_float32": options.keep_fp32,
        "loader_threads": options.loader_threads or 0,
        **kept_by(options.recompute),
        "ends": EmbeddingStage(options.ends),
    }


def training_settings(options: argparse.Namespace) -> dict[str, Any]:
    """The settings by the options of training, checkpoints and measurements."""
    return {
        "optimization": _optimization(options),
        "steps": options.steps,
        "seed": options.seed,
        "evaluation": _evaluation(options),
        "saving": _saving(options),
        "checks_messages": options.check_messages,
        "times_tasks": not _is_untimed(options),
        "compile": options.compile,
        "cuda_graphs": options.cuda_graphs,
    }


def _optimization(options: argparse.Namespace) -> Optimization:
    """The optimizer and its settings."""
    name, arguments = named_optimizer(options.optimizer)
    chosen = Optimization(
        options.learning_rate,
        options.weight_decay,
        options.clip,
        options.skip_nonfinite,
        LossScaling(options.loss_scale) if options.loss_scale else None,
        name,
        arguments,
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


def named_optimizer(text: str) -> tuple[str, tuple[tuple[str, object], ...]]:
    """An optimizer's name, and its arguments."""
    name, *arguments = text.split(",")
    return name, tuple(map(_argument, arguments))


def _argument(text: str) -> tuple[str, object]:
    """An optimizer's argument: a number, several with colons, true or false, or a word."""
    name, is_given, value = text.partition("=")
    words = {"true": True, "false": False}
    numbers = [real(each) for each in value.split(":")]
    is_word = value.isidentifier()
    if not name or not is_given or (not is_word and any(map(math.isnan, numbers))):
        raise InvalidConfiguration(
            "optimizer",
            f"{text!r} is not KEY=VALUE, with a number, numbers with colons, true, false or a word",
        )
    if is_word:
        return name, words.get(value, value)
    return name, numbers[0] if len(numbers) == 1 else tuple(numbers)


def _evaluation(options: argparse.Namespace) -> HeldOutEvaluation | None:
    if options.evaluate_every:
        return HeldOutEvaluation(
            options.evaluate_every, options.evaluate_steps or HeldOutEvaluation.steps
        )
    if options.evaluate_steps or options.evaluate_text:
        reason = "required with --evaluate-steps or --evaluate-text"
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
