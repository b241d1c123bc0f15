"""The rows of the built-in operations."""

from __future__ import annotations

from bfpp.schedules.operations.data import (
    GRADIENTS,
    HALVED,
    INPUT_GRADIENT,
    NORM_OF_RANK,
    OFFLOADED,
    ORTHOGONAL,
    OUTPUT,
    REDUCED,
    RELOADED,
    REPLICATED,
    SAVED,
    TIED_GRADIENTS,
    WEIGHTS,
    Needed,
)
from bfpp.schedules.operations.row import Group, Made, Row, Scope
from bfpp.schedules.operations.streams import (
    DATA,
    EXPERTS,
    FROM_HOST,
    RECEIVE_ACTIVATIONS,
    RECEIVE_GRADIENTS,
    REPLICAS,
    SEND_ACTIVATIONS,
    SEND_GRADIENTS,
    TIED,
    TO_HOST,
)
from bfpp.schedules.settings.sharding import Communication, Sharding


def _sharding_group(communication: Communication) -> Group:
    """The replicas that reduce a unit's gradients together, and that shard its state, if any do."""
    return Group.DP_SHARD if communication.hybrid else Group.DP


def _keepers(communication: Communication) -> Group:
    """The replicas that shard a rank's gradients; unsharded, each has all of them."""
    is_whole = communication.sharding is Sharding.NONE
    return Group.ALONE if is_whole else _sharding_group(communication)


def _reduction(communication: Communication) -> str:
    return "all-reduce" if communication.sharding is Sharding.NONE else "reduce-scatter"


def _update(communication: Communication) -> str:
    """The update: with Muon, it is to orthogonalise that waits for the norm of all."""
    if communication.muon:
        return "muon-optimizer"
    return "clipped-optimizer" if communication.clipping else "optimizer"


def _orthogonalisation(communication: Communication) -> str:
    clipped = "clipped-" if communication.clipping else ""
    of_shares = "" if communication.sharding is Sharding.NONE else "-of-shares"
    return f"{clipped}orthogonalise{of_shares}"


ROWS = {
    "FORWARD": Row(
        "forward",
        Scope.CELL,
        reads=(WEIGHTS, Needed(OUTPUT, -1)),
        writes=(OUTPUT, SAVED),
        made=Made.IN_ORDER,
    ),
    "BACKWARD": Row(
        "backward",
        Scope.CELL,
        reads=(WEIGHTS, SAVED, RELOADED, Needed(INPUT_GRADIENT, +1)),
        writes=(INPUT_GRADIENT, GRADIENTS),
        ends=(SAVED,),
        made=Made.IN_ORDER,
    ),
    "BACKWARD_INPUT": Row(
        "backward input",
        Scope.CELL,
        reads=(WEIGHTS, SAVED, RELOADED, Needed(INPUT_GRADIENT, +1)),
        writes=(INPUT_GRADIENT, HALVED),
        made=Made.IN_ORDER,
    ),
    "BACKWARD_WEIGHT": Row(
        "backward weight",
        Scope.CELL,
        reads=(WEIGHTS, HALVED),
        writes=(GRADIENTS,),
        ends=(SAVED, HALVED),
        made=Made.IN_ORDER,
    ),
    "TRANSFER_ACTIVATIONS": Row(
        "transfer activations",
        Scope.CELL,
        SEND_ACTIVATIONS,
        RECEIVE_ACTIVATIONS,
        carries=Needed(OUTPUT, +1),
        group=Group.P2P,
        made=Made.SENDING_OUTPUT,
    ),
    "TRANSFER_GRADIENTS": Row(
        "transfer gradients",
        Scope.CELL,
        SEND_GRADIENTS,
        RECEIVE_GRADIENTS,
        carries=Needed(INPUT_GRADIENT, -1),
        group=Group.P2P,
        made=Made.SENDING_GRADIENT,
    ),
    "GATHER": Row(
        "gather",
        Scope.UNIT,
        DATA,
        writes=(WEIGHTS,),
        group=_sharding_group,
        called=lambda _: "all-gather",
        happens=lambda communication: communication.sharding is not Sharding.NONE,
        made=Made.BEFORE_RUNS,
    ),
    "REDUCE": Row(
        "reduce",
        Scope.UNIT,
        DATA,
        writes=(REDUCED,),
        ends=(GRADIENTS,),
        group=_sharding_group,
        algorithm=_reduction,
        called=_reduction,
        made=Made.AFTER_RUNS,
    ),
    "OPTIMIZER": Row(
        "optimizer",
        Scope.RANK,
        reads=(REDUCED, REPLICATED, TIED_GRADIENTS, NORM_OF_RANK, ORTHOGONAL),
        ends=(WEIGHTS,),  # no pass may still compute with those before the update
        group=lambda communication: Group.PP if communication.clipping else Group.ALONE,
        algorithm=_update,
        made=Made.AFTER_DATA,
    ),
    "NORM": Row(
        "norm",
        Scope.RANK,
        DATA,
        reads=(REDUCED, REPLICATED, TIED_GRADIENTS),
        writes=(NORM_OF_RANK,),
        group=_keepers,
        algorithm=lambda communication: (
            "norm" if communication.sharding is Sharding.NONE else "norm-of-shares"
        ),
        happens=lambda communication: communication.clipping,
        made=Made.AFTER_DATA,
    ),
    "ALL_REDUCE": Row(
        "all-reduce",
        Scope.UNIT,
        REPLICAS,
        reads=(REDUCED,),
        writes=(REPLICATED,),
        group=Group.DP_REPLICATE,
        happens=lambda communication: communication.hybrid,
        made=Made.AFTER_DATA,
    ),
    "TIED_ALL_REDUCE": Row(
        "tied all-reduce",
        Scope.ENDS,
        TIED,
        reads=(REDUCED, REPLICATED),
        writes=(TIED_GRADIENTS,),
        group=Group.ENDS,
        happens=lambda communication: communication.tied_embeddings,
        made=Made.AFTER_DATA,
    ),
    "EXPERT_DISPATCH": Row(
        "expert dispatch", Scope.CELL, EXPERTS, group=Group.EP, algorithm=lambda _: "all-to-all"
    ),
    "EXPERT_COMBINE": Row(
        "expert combine", Scope.CELL, EXPERTS, group=Group.EP, algorithm=lambda _: "all-to-all"
    ),
    "OFFLOAD": Row(
        "offload",
        Scope.CELL,
        TO_HOST,
        reads=(SAVED,),
        writes=(OFFLOADED,),
        made=Made.OFFLOADING,
    ),
    "RELOAD": Row(
        "reload",
        Scope.CELL,
        FROM_HOST,
        reads=(OFFLOADED,),
        writes=(RELOADED,),
        ends=(OFFLOADED,),
        made=Made.RELOADING,
    ),
    "ORTHOGONALISE": Row(
        "orthogonalise",
        Scope.RANK,
        reads=(REDUCED, REPLICATED, TIED_GRADIENTS, NORM_OF_RANK),
        writes=(ORTHOGONAL,),
        group=_keepers,
        algorithm=_orthogonalisation,
        happens=lambda communication: communication.muon,
        made=Made.AFTER_DATA,
    ),
}

PASSES = ("FORWARD", "BACKWARD", "BACKWARD_INPUT", "BACKWARD_WEIGHT")
"""The operations of compute steps, by their codes in orders: from 0 on."""
