"""Kinds of operations of a training step, by name: their type and their participants."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

FORWARD, BACKWARD = "forward-compute", "backward-compute"
PARAMETERS, GRADIENTS = "params-all-gather", "grads-reduce-scatter"
EMBEDDING, CLIPPING = "embedding-grads-all-reduce", "optimizer-clip-main-grad"
OTHER_GRADIENTS = "separate-grads-all-reduce"
"""Gradients that are reduced apart, where the others' reduction overlaps backward passes."""


class Transfer(NamedTuple):
    """One end of a transfer between stages: of which pass, how many stages on, and which end."""

    pass_: str
    stages_on: int
    sends: bool


TRANSFERS = {
    "forward-send": Transfer(FORWARD, 1, sends=True),
    "forward-recv": Transfer(FORWARD, -1, sends=False),
    "backward-send": Transfer(BACKWARD, -1, sends=True),
    "backward-recv": Transfer(BACKWARD, 1, sends=False),
}

LAYER_NORMS, COLLECTION, OPTIMIZER = "layernorm-grads-all-reduce", "gc", "optimizer"

UPDATE = (COLLECTION, LAYER_NORMS, EMBEDDING, GRADIENTS, OTHER_GRADIENTS, CLIPPING, OPTIMIZER)
"""After a worker's last pass, in this order; gradients may be reduced earlier."""


class Participants(StrEnum):
    """Those who take part in an operation, apart from the worker itself."""

    REPLICAS = "the same rank of all replicas"
    ENDS = "the first and the last rank of a replica"
    ALL = "all workers"


SCOPES = {
    PARAMETERS: Participants.REPLICAS,
    GRADIENTS: Participants.REPLICAS,
    OTHER_GRADIENTS: Participants.REPLICAS,
    EMBEDDING: Participants.ENDS,
    CLIPPING: Participants.ALL,
}

_EVERY_STEP = {FORWARD, BACKWARD, OPTIMIZER}
_COMMUNICATES = re.compile("send|recv|gather|scatter|reduce|all-?to-?all|broadcast|barrier|clip")


def communicates(kind: str) -> bool:
    """True for communication, whose typical time is the median: a few wait far longer."""
    return _COMMUNICATES.search(kind) is not None


def is_occasional(kind: str) -> bool:
    """True for operations in some steps only, such as garbage collection."""
    return kind not in _EVERY_STEP and not communicates(kind)


def joined_name(kind: str) -> str:
    """The name under which an operation is attributed: a send and its receive are one."""
    transfer = TRANSFERS.get(kind)
    return kind if transfer is None else transfer.pass_.replace("compute", "pp-comm")
