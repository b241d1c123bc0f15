"""Values of any experiment: degrees, batch, stages, communication, and costs in seconds."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from bfpp.schedules import P2P, Per, Schedule, Sharding
from bfpp.schedules.settings.offloading import OFF
from bfpp.sim.experiment.values.option import (
    ABSTRACT,
    BATCH,
    COMMUNICATION,
    PARALLELISM,
    STAGES,
    option,
)


@dataclass(frozen=True)
class StepValues:
    """A schedule, how its step is divided and communicated, and abstract costs."""

    schedule: Schedule | str
    _: KW_ONLY
    pp: int = option(4, PARALLELISM, "count", "pipeline-parallel ranks")
    dp: int = option(1, PARALLELISM, "count", "data-parallel replicas")
    tp: int = option(1, PARALLELISM, "count", "tensor-parallel devices")
    cp: int = option(1, PARALLELISM, "count", "context-parallel devices")
    ep: int = option(1, PARALLELISM, "count", "expert-parallel devices; divides dp x cp x tp")
    dp_replicate: int = option(
        1,
        PARALLELISM,
        "count",
        "groups of replicas; each shards one copy of the training state (HSDP); divides dp",
    )
    microbatches: int = option(8, BATCH, "count", "sequential micro-batches of a step")
    microbatch_size: int = option(1, BATCH, "count", "samples in a micro-batch")
    loops: int | None = option(
        None, STAGES, "count", "virtual pipeline stages: stages on each rank of a looped schedule"
    )
    units_per_stage: int | None = option(
        None,
        STAGES,
        "count",
        "units per stage of a non-looped schedule, gathered and reduced one by one; each takes "
        "what --forward and the like say (default: 1, or --loops where schedules are compared; "
        "with --model, one layer each)",
    )
    sharding: Sharding = option(
        Sharding.NONE,
        COMMUNICATION,
        "choice",
        "what data parallelism shards: nothing (none or ddp), the optimizer state (partial, zero1 "
        "or zero2), or everything (full, zero3 or fsdp)",
        choices=Sharding.names(),
    )
    pp_overlap: bool = option(
        True, COMMUNICATION, "flag", "P2P transfers block the compute of both ranks"
    )
    dp_overlap: bool = option(
        True,
        COMMUNICATION,
        "flag",
        "all-gathers, reduce-scatters and all-reduces block the compute of their rank",
    )
    clipping: bool = option(
        False,
        COMMUNICATION,
        "flag",
        "clip gradients by their global norm, which every rank waits for",
    )
    tied_embeddings: bool = option(
        False,
        COMMUNICATION,
        "flag",
        "the first and the last unit share their weights; one all-reduce per step sums their "
        "gradients",
    )
    p2p: P2P = option(
        P2P.CHANNELS,
        COMMUNICATION,
        "choice",
        "how sends and receives are posted: one queue per direction, receives ahead of time "
        "(channels); one queue per rank, receives in the order of the sends (fifo, as PyTorch) or "
        "right before the step that needs them (deferred); or grouped after each pass (batched, as "
        "Megatron-LM's 1F1B), or after a forward and a backward pass together (coalesced, as its "
        "interleaved schedule); or per direction, receives in the order of the sends (posted, as "
        "PyTorch over gloo)",
        choices=tuple(P2P),
    )
    eager: bool = option(
        False,
        COMMUNICATION,
        "flag",
        "queued and grouped sends complete without waiting for the receiver, as small messages do",
    )
    gather_per: Per = option(
        Per.RUN,
        COMMUNICATION,
        "choice",
        "fully sharded: gather weights for each run of consecutive micro-batches through a unit, "
        "or once per step (reshard_after_forward=False)",
        choices=tuple(Per),
    )
    reduce_per: Per = option(
        Per.RUN,
        COMMUNICATION,
        "choice",
        "fully sharded: reduce gradients after each run, or once per step",
        choices=tuple(Per),
    )
    run_length: int | None = option(
        None,
        COMMUNICATION,
        "count",
        "fully sharded: the most micro-batches in a run (default: no limit)",
    )
    weight_buffers: int = option(
        2,
        COMMUNICATION,
        "count",
        "fully sharded: units whose gathered weights are held at the same time",
    )
    prefetch: int | None = option(
        None,
        COMMUNICATION,
        "count",
        "fully sharded: start an all-gather no earlier than the N-th run before its own (default: "
        "once a buffer is free)",
    )
    offload: int | str = option(
        OFF,
        COMMUNICATION,
        "offload",
        "activations kept in host memory until their backward pass: off, all, a number (those with "
        "at least that many passes of their rank in between), or selective (those with enough "
        "passes in between to hide both copies) (default: off)",
        "WHICH",
    )
    offload_ahead: int = option(
        1,
        COMMUNICATION,
        "count",
        "how many backward passes ahead offloaded activations are copied back",
    )
    forward: float | None = option(
        None,
        ABSTRACT,
        "seconds",
        "forward pass of one micro-batch through one stage, or one unit of it",
        "S",
    )
    backward: float | None = option(
        None,
        ABSTRACT,
        "seconds",
        "backward pass (default: the sum of its halves if given, else 2)",
        "S",
    )
    backward_input: float | None = option(
        None,
        ABSTRACT,
        "seconds",
        "input half of a backward pass (default: the rest, or half)",
        "S",
    )
    backward_weight: float | None = option(
        None,
        ABSTRACT,
        "seconds",
        "weight half of a backward pass (default: the rest, or half)",
        "S",
    )
    forward_backward: float | None = option(
        None,
        ABSTRACT,
        "seconds",
        "fused block of a forward and a backward pass (default: the sum)",
        "S",
    )
    transfer: float | None = option(
        None, ABSTRACT, "seconds", "P2P transfer between two ranks", "S"
    )
    gather: float | None = option(
        None, ABSTRACT, "seconds", "all-gather of one stage's or unit's weights", "S"
    )
    reduce: float | None = option(
        None, ABSTRACT, "seconds", "reduction of one stage's or unit's gradients", "S"
    )
    optimizer: float | None = option(None, ABSTRACT, "seconds", "optimizer step of a rank", "S")
    norm: float | None = option(
        None, ABSTRACT, "seconds", "norm of a rank's gradients, with --clipping", "S"
    )
    all_reduce: float | None = option(
        None,
        ABSTRACT,
        "seconds",
        "all-reduce of one stage's or unit's gradients across replicas, with --dp-replicate",
        "S",
    )
    host_copy: float | None = option(
        None,
        ABSTRACT,
        "seconds",
        "copy of one stage's activations to the host or back, with --offload",
        "S",
    )
    tied_all_reduce: float | None = option(
        None,
        ABSTRACT,
        "seconds",
        "sum of the first and the last unit's gradients, with --tied-embeddings",
        "S",
    )
