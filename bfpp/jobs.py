"""Options of what is trained and how, and the job that they stand for."""

from __future__ import annotations

import argparse
import math
import platform
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from bfpp import options as shared
from bfpp.errors import blaming, one_line
from executor.settings import (
    Activations,
    BackendName,
    Ends,
    Objective,
    Optimization,
    Precision,
    Saving,
    Sleeps,
)
from schedules import Communication, InvalidConfiguration, Layout, find_schedule
from sim.model import Transformer, load_model
from sim.profile import ProfiledCosts

if TYPE_CHECKING:
    from executor.job import Job
    from executor.plan import Plan
    from executor.processes import RunFailed
    from executor.sources import ModelSource

FAILED = 1
"""The exit code of a run that failed."""

SIZES = {
    "layers": (8, "transformer layers"),
    "hidden": (64, "width of a layer"),
    "heads": (4, "attention heads"),
    "context": (64, "bytes in a sample"),
}
"""The small transformer that is trained if no other is named: sizes, and what they are."""

VOCABULARY = 257
"""All bytes, and a mask."""


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """What is trained, and on what."""
    group = parser.add_argument_group("model and data")
    group.add_argument(
        "--model",
        metavar="NAME|FILE",
        help="a preset, a TOML file or a config.json of a transformer; or FILE.py:FUNCTION, which "
        "takes a seed and returns an executor.model.Model (default: a small transformer)",
    )
    for name, (size, what) in SIZES.items():
        group.add_argument(
            f"--{name}", type=shared.whole_number, metavar="N", help=f"{what} (default: {size})"
        )
    group.add_argument(
        "--objective",
        choices=[str(each) for each in Objective],
        default=str(Objective.NEXT),
        help="what is learned: the next byte (as GPT), or masked ones (as BERT) (default: next)",
    )
    group.add_argument(
        "--text",
        type=Path,
        metavar="FILE",
        help="learn the bytes of this file (default: the documentation that Python carries)",
    )
    group.add_argument(
        "--ends",
        choices=[str(each) for each in Ends],
        default=str(Ends.ATTACHED),
        help="where embedding and output layer go: to the first and the last stage, or to stages "
        "of their own (default: attached)",
    )
    group.add_argument(
        "--microbatch-size",
        type=shared.whole_number,
        default=4,
        metavar="N",
        help="samples in a micro-batch (default: 4)",
    )


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    """Where it runs, and in which precision."""
    group = parser.add_argument_group("devices")
    group.add_argument(
        "--backend",
        choices=[str(each) for each in BackendName],
        default=str(BackendName.CPU),
        help="a process for each rank, over gloo (cpu) or NCCL (cuda: one GPU each); or all ranks "
        "in one process (local) (default: cpu)",
    )
    group.add_argument(
        "--device",
        default="cpu",
        metavar="NAME",
        help="with --backend local: torch's name of the device (default: cpu)",
    )
    group.add_argument(
        "--dp", type=shared.whole_number, default=1, metavar="N", help="replicas (default: 1)"
    )
    group.add_argument(
        "--tp",
        type=shared.whole_number,
        default=1,
        metavar="N",
        help="tensor-parallel devices; 1 is all that can be run, more can be simulated",
    )
    group.add_argument(
        "--precision",
        choices=[str(each) for each in Precision],
        default=str(Precision.FLOAT32),
        help="of weights, activations and gradients; the optimizer's is at least float32 "
        "(default: float32)",
    )
    group.add_argument(
        "--activations",
        choices=[str(each) for each in Activations],
        default=str(Activations.RECOMPUTE),
        help="keep each stage's input and run it again in the backward pass, or keep all that "
        "this needs (default: recompute)",
    )


def add_training_arguments(parser: argparse.ArgumentParser) -> None:
    """How long and how fast it learns, and what is saved of it."""
    group = parser.add_argument_group("training")
    group.add_argument(
        "--steps",
        type=shared.whole_number,
        default=20,
        metavar="N",
        help="steps, those of a resumed run included (default: 20)",
    )
    group.add_argument(
        "--learning-rate",
        type=_positive,
        default=1e-3,
        metavar="X",
        help="of AdamW (default: 1e-3)",
    )
    group.add_argument(
        "--weight-decay",
        type=_not_negative,
        default=0.01,
        metavar="X",
        help="of AdamW (default: 0.01)",
    )
    group.add_argument(
        "--clip",
        type=_positive,
        metavar="NORM",
        help="clip gradients to this norm over all ranks (default: not at all)",
    )
    group.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="of the first weights and of the order of the data (default: 0)",
    )
    group.add_argument(
        "--checkpoint", type=Path, metavar="DIR", help="save the training state in this directory"
    )
    group.add_argument(
        "--save-every",
        type=shared.whole_number,
        metavar="N",
        help="steps from one checkpoint to the next (default: one at the end)",
    )
    group.add_argument(
        "--resume",
        action="store_true",
        help="go on from the last checkpoint in --checkpoint, whatever layout it was saved from",
    )
    group.add_argument(
        "--check-messages",
        action="store_true",
        help="send each message's task ahead of it, and fail if another was due",
    )
    group.add_argument(
        "--sleep",
        metavar="PROFILE",
        help="sleep for as long as this profile says that passes take, instead of computing: to "
        "measure all else with more ranks than cores",
    )
    group.add_argument(
        "--patience",
        type=_positive,
        default=60.0,
        metavar="S",
        help="seconds that a task may take before the run is ended as stuck (default: 60)",
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _positive(text: str) -> float:
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a positive number, not {text!r}")
    return value


def _not_negative(text: str) -> float:
    return _positive(text) if _number(text) else 0.0


def about(job: Job) -> dict[str, str | int]:
    """Where and how something was measured."""
    return {
        "machine": platform.node(),
        "system": platform.platform(),
        "date": datetime.now(UTC).date().isoformat(),
        "backend": str(job.backend),
        "replicas": job.data_parallel,
        "precision": str(job.precision),
        "activations": str(job.activations),
    }


def fail(command: str, error: RunFailed) -> int:
    """One line that names the rank and the task, then what helps to find the cause, if any."""
    console = Console(stderr=True, highlight=False)
    console.print(Text(f"bfpp {command}: {one_line(str(error))}"), soft_wrap=True)
    if error.details:
        console.print(Text(error.details, style="dim"), soft_wrap=True)
    return FAILED


def require_torch() -> None:
    """Raise `ValueError` where PyTorch, which nothing else here needs, is not installed."""
    if find_spec("torch") is None:
        raise ValueError("needs PyTorch, which is not installed: pip install 'bfpp[torch]'")


def device_job_of(options: argparse.Namespace, schedule: str, layout: Layout) -> Job:
    """One step of a schedule, with what the options say of the model and of the devices."""
    require_torch()
    from executor.job import Job

    if options.device != "cpu" and options.backend != BackendName.LOCAL:
        raise InvalidConfiguration("device", "goes with --backend local; cuda takes all GPUs")
    if options.tp > 1:
        raise InvalidConfiguration("tensor_parallel", "only 1 can be run; more can be simulated")
    return Job(
        schedule=schedule,
        layout=layout,
        communication=Communication(),
        model=_source(options),
        steps=1,
        backend=BackendName(options.backend),
        device=options.device,
        data_parallel=options.dp,
        microbatch_size=options.microbatch_size,
        precision=Precision(options.precision),
        activations=Activations(options.activations),
        ends=Ends(options.ends),
    )


def job_of(options: argparse.Namespace) -> Job:
    """The job that the options ask for; raises `InvalidConfiguration` for one that cannot be."""
    if options.clipping and options.clip is None:
        raise InvalidConfiguration("clipping", "needs the norm to clip to: --clip NORM")
    if (options.resume or options.save_every) and not options.checkpoint:
        raise InvalidConfiguration("checkpoint", "is needed by --resume and --save-every")
    if options.sleep and (options.device != "cpu" or options.backend == BackendName.CUDA):
        raise InvalidConfiguration("sleep", "needs a CPU: a GPU does not sleep")
    for name in ("verify", "checkpoint"):
        if options.sleep and getattr(options, name):
            raise InvalidConfiguration("sleep", f"computes nothing that is worth a --{name}")
    schedule = find_schedule(options.schedule)
    layout = shared.layout(options, schedule)
    schedule.require(layout)
    return replace(
        device_job_of(options, schedule.name, layout),
        communication=replace(shared.communication(options), clipping=options.clip is not None),
        steps=options.steps,
        optimization=Optimization(options.learning_rate, options.weight_decay, options.clip),
        seed=options.seed,
        saving=_saving(options),
        checks_messages=options.check_messages,
    )


def sleeps_of(costs: ProfiledCosts, plan: Plan) -> Sleeps:
    """How long passes sleep instead of computing, by a profile of this very model."""
    layout, samples = plan.graph.layout, int(costs.run["microbatch_size"])
    if costs.cuts(layout) != plan.cuts or samples != plan.microbatch_size:
        raise InvalidConfiguration(
            "sleep",
            f"{costs.name} is of {len(costs.layers)} layers and micro-batches of {samples}, "
            f"not {len(plan.model.layers)} and {plan.microbatch_size}, or has its ends elsewhere",
        )
    return Sleeps(
        *(tuple(costs.pass_seconds(layout, kind).tolist()) for kind in ("forward", "backward"))
    )


def _saving(options: argparse.Namespace) -> Saving | None:
    if not options.checkpoint:
        return None
    return Saving(options.checkpoint, options.save_every or options.steps, options.resume)


def _source(options: argparse.Namespace) -> ModelSource:
    from executor.sources import FunctionSource, TransformerSource
    from executor.transformer import TransformerSizes

    path, is_function, name = (options.model or "").rpartition(".py:")
    given = [size for size in SIZES if getattr(options, size) is not None]
    if is_function:
        for size in given:
            raise InvalidConfiguration(size, f"is decided by {options.model}")
        return FunctionSource(Path(f"{path}.py"), name)
    model = _transformer(options)
    with blaming("--text"):
        return TransformerSource(
            TransformerSizes(
                layers=model.layers,
                hidden=model.hidden,
                heads=model.heads,
                context=model.sequence,
                vocabulary=max(model.vocabulary, VOCABULARY),
                mlp=model.mlp or 4 * model.hidden,
                kv_heads=model.kv_heads or model.heads,
                causal=options.objective == Objective.NEXT,
                gated=model.gated,
            ),
            options.text and options.text.resolve(strict=True),
        )


def _transformer(options: argparse.Namespace) -> Transformer:
    """The model that is named, or a small one; with the sizes that are given."""
    sizes = {name: getattr(options, name) for name in SIZES if getattr(options, name) is not None}
    if "context" in sizes:
        sizes["sequence"] = sizes.pop("context")
    if options.model:
        return replace(load_model(options.model), **sizes)
    default = {name: size for name, (size, _) in SIZES.items()}
    default["sequence"] = default.pop("context")
    return Transformer(name="small", vocabulary=VOCABULARY, **{**default, **sizes})
