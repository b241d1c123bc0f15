"""Declaration of an experiment's value as an option: group, kind, help text."""

from __future__ import annotations

from dataclasses import field
from typing import Any, NamedTuple


class Option(NamedTuple):
    """An option of the command line: its group, its kind, and its help text."""

    group: str
    kind: str
    help: str
    metavar: str = "N"
    choices: tuple[str, ...] = ()


def option(default: Any, *given: Any, **more: Any) -> Any:
    """A field with this default, and an `Option` made of the other arguments."""
    return field(default=default, metadata={"option": Option(*given, **more)})


PARALLELISM = "parallelism"
BATCH = "batch"
STAGES = "stages"
COMMUNICATION = "communication"
ABSTRACT = "abstract costs, in seconds"
MODEL = "model, cluster and software"
LAYERS = "layers of stages"
PRECISION = "precision and optimizer"
ACTIVATIONS = "activations and attention"
WITHIN_LAYERS = "tensor and context parallelism"
EXPERTS = "experts"
MEASURED = "measured costs"
UNEVEN = "replicas and micro-batches that differ"

PHYSICAL = (MODEL, LAYERS, PRECISION, ACTIVATIONS, WITHIN_LAYERS, EXPERTS)
"""Groups of what only a model on a cluster has."""
