"""The history of a training state: all that decides its numbers, except for model and data.

A checkpoint's settings keep it, so that a run that went on with other settings
is not compared with one that always had the last ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from bfpp.executor import checkpoint
from bfpp.executor.model.sources import description
from bfpp.executor.plan.plan import Plan
from bfpp.executor.train.job import Job
from bfpp.schedules import InvalidConfiguration

KEY = "trained with"
LAST = "trained last with"
"""Key of the last part's settings, with the names and content hashes of model and data."""

History = dict[str, Any]
"""Settings of one part of a training."""


def training_of(plan: Plan) -> History:
    """The settings that decide the numbers of a step; rounding does not count."""
    options = plan.optimization
    return {
        "samples in a step": plan.microbatches * plan.microbatch_size,
        "seed": plan.seed,
        "precision": str(plan.precision),
        "learning rate": options.learning_rate,
        "weight decay": options.weight_decay,
        "no decay of": list(options.no_decay),
        "optimizer": ",".join([options.optimizer, *(f"{a}={b}" for a, b in options.arguments)]),
        "learning rates": [*vars(options.rates).values()],
        "clipping to": options.clip,
        "loss scaling from": options.loss_scaling and options.loss_scaling.initial,
        "float32 in": list(plan.keeps_float32),
    }


def continued(settings: Mapping[str, Any], plan: Plan) -> list[History]:
    """The history of a checkpoint's state, once this plan has trained it further."""
    own, earlier = training_of(plan), list(settings.get(KEY, []))
    return earlier if own in earlier else [*earlier, own]


def described(job: Job, plan: Plan) -> History:
    """The settings that can change from one part of a training to the next."""
    with suppress(OSError):  # a file that is gone since it was read
        return {**training_of(plan), **description(job.model)}
    return training_of(plan)


def changes(settings: Mapping[str, Any], own: History) -> list[str]:
    """Changes since the part that a checkpoint ended: a line for each setting."""
    earlier: list[History] = [{}, *settings.get(KEY, [])]
    before: History = settings.get(LAST, earlier[-1])
    return [
        f"{name} from {before[name]} to {value}"
        for name, value in own.items()
        if name in before and before[name] != value
    ]


def require_same_training(plan: Plan, last: Path) -> None:
    """Raise `InvalidConfiguration` if a checkpoint was trained in another way."""
    own = training_of(plan)
    for other in continued(checkpoint.read_settings(last), plan):
        for name, value in own.items():
            if name in other and other[name] != value:
                raise InvalidConfiguration(
                    "verify",
                    f"{last} was trained with {name} {other[name]}, not {value}: "
                    "no plain loop would train so",
                )
