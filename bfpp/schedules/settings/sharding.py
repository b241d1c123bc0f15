"""Communication: sharding of the training state, P2P modes, overlap with compute."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from bfpp.schedules.errors import InvalidConfiguration


class Sharding(StrEnum):
    """Sharding of the training state over data-parallel devices.

    The paper's DP_0 (everything: DDP), DP_PS (its share of the optimizer state: ZeRO-1
    and 2, a distributed optimizer) and DP_FS (its share of everything: ZeRO-3, FSDP;
    weights are gathered before each use).

    >>> import bfpp
    >>> bfpp.Sharding("fsdp"), bfpp.Sharding("zero1"), bfpp.Sharding("ddp")
    (<Sharding.FULL: 'full'>, <Sharding.PARTIAL: 'partial'>, <Sharding.NONE: 'none'>)
    """

    NONE = "none"
    PARTIAL = "partial"
    FULL = "full"

    @property
    def usual_name(self) -> str:
        """The usual name: DDP, ZeRO-1 or FSDP."""
        return {Sharding.NONE: "DDP", Sharding.PARTIAL: "ZeRO-1", Sharding.FULL: "FSDP"}[self]

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """All accepted names, the usual ones among them."""
        return (*cls, *_ALSO_CALLED)

    @classmethod
    def _missing_(cls, value: object) -> Sharding:
        if value in _ALSO_CALLED:
            return _ALSO_CALLED[str(value)]
        known = ", ".join(cls.names())
        raise InvalidConfiguration("sharding", f"{value!r} is not one of {known}")


_ALSO_CALLED = {
    "ddp": Sharding.NONE,
    "zero1": Sharding.PARTIAL,
    "zero2": Sharding.PARTIAL,
    "zero3": Sharding.FULL,
    "fsdp": Sharding.FULL,
}


class P2P(StrEnum):
    """Posting modes of P2P transfers between ranks.

    By direction (`CHANNELS`), each kind of transfer to each rank in a queue of its own with its
    receives posted ahead; or in one queue a rank, as on NCCL's one stream for each communicator:
    receives when their senders' turn comes (`FIFO`: how PyTorch's pipelining lowers orders), or
    right before the steps that need them (`DEFERRED`); or what is sent and received between two
    steps as one group, which ends together and which the next step waits for (`BATCHED`: Megatron's
    batched isend and irecv), or one group for a forward and the backward pass that directly follows
    it (`COALESCED`: Megatron's interleaved schedule). Or in queues by direction, with receives as
    in `FIFO` (`POSTED`: PyTorch's pipelining over gloo, which moves nothing until both ends are
    posted).
    """

    CHANNELS = "channels"
    FIFO = "fifo"
    DEFERRED = "deferred"
    BATCHED = "batched"
    COALESCED = "coalesced"
    POSTED = "posted"


class Per(StrEnum):
    """Frequency of all-gathers, or reductions, of fully sharded units."""

    RUN = "run"
    STEP = "step"


@dataclass(frozen=True)
class Communication:
    """Sharding and communication of a step, overlapped with compute or blocking it.

    Without `pp_overlap`, transfers take the compute lanes' time at both
    ends; without `dp_overlap`, gathers and reductions take the compute
    lane's time. With `clipping`, gradients are clipped by their norm over all
    ranks, so that no rank updates its weights before each has contributed its part.
    `eager` sends end without their receiver, which finds them in a buffer later.

    Under full sharding, weights are gathered and gradients reduced for each run of micro-batches
    through a unit, of `run_length` at most, or once a step. Runs take turns in
    `weight_buffers` buffers. A gather begins once its buffer is free and, with `prefetch` of n, no
    earlier than the n-th run before its own begins to compute (by default, buffers alone decide).

    The activations of a pass are offloaded to the host if at least `offload` passes of its rank run
    before its backward pass (0: never). They begin to come back with the backward pass
    `offload_ahead` before that one, and as many offloads may be unfinished when a pass begins.

    With `hybrid` sharding (HSDP), replicas shard their state within groups: gradients are reduced
    within a group, and once a step each device's share is all-reduced across the groups.

    With `tied_embeddings`, the first and the last unit share parameters (the word embedding). Each
    has a copy, whose reduced gradients are added up once a step.

    With `muon`, the momentum of matrices is made orthogonal before the update, for which devices
    that shard the state gather whole matrices.

    >>> import bfpp
    >>> graph = bfpp.build_graph(
    ...     "breadth-first", bfpp.Layout(2, 4, 2), bfpp.Communication(bfpp.Sharding.FULL)
    ... )
    >>> [operation.called(graph.communication) for operation, _ in graph.by_operation()][4:]
    ['all-gather', 'reduce-scatter', 'optimizer']
    """

    sharding: Sharding = Sharding.NONE
    pp_overlap: bool = True
    dp_overlap: bool = True
    clipping: bool = False
    p2p: P2P = P2P.CHANNELS
    eager: bool = False
    gather_per: Per = Per.RUN
    reduce_per: Per = Per.RUN
    run_length: int | None = None
    weight_buffers: int = 2
    prefetch: int | None = None
    hybrid: bool = False
    offload: int = 0
    offload_ahead: int = 1
    tied_embeddings: bool = False
    muon: bool = False

    def __post_init__(self) -> None:
        """Take members for their names: these are equal, with one hash, but not the same."""
        for name, kind in CHOICES.items():
            if not isinstance(value := getattr(self, name), kind):
                object.__setattr__(self, name, kind(value))

    @property
    def has_queues(self) -> bool:
        """True if a transfer holds up all others at both its ends."""
        return self.p2p in (P2P.FIFO, P2P.DEFERRED) and not self.eager

    @property
    def in_groups(self) -> bool:
        """True if the posts between two steps are one group, for which the next step waits."""
        return self.p2p in (P2P.BATCHED, P2P.COALESCED)

    @property
    def gathers_runs(self) -> bool:
        """True if weights are gathered for each run."""
        return self.sharding is Sharding.FULL and self.gather_per is Per.RUN

    @property
    def runs_ahead(self) -> int:
        """Number of runs before its own at which a gather is queued: it may begin as far ahead."""
        return self.prefetch or max(self.weight_buffers - 1, 1)

    @property
    def reduces_runs(self) -> bool:
        """True if gradients are reduced after each run that adds any."""
        return self.sharding is Sharding.FULL and self.reduce_per is Per.RUN

    @property
    def without_idle_choices(self) -> Communication:
        """A copy in which choices of full sharding without effect have their defaults."""
        full, of_runs = self.sharding is Sharding.FULL, self.gathers_runs or self.reduces_runs
        counts = dict(
            zip(FULLY_SHARDED, (full, full, of_runs, *[self.gathers_runs] * 2), strict=True)
        )
        default = Communication()
        idle = {name: getattr(default, name) for name in FULLY_SHARDED if not counts[name]}
        return replace(self, **idle)

    def require(self, *, copies: bool = False) -> None:
        """Raise `InvalidConfiguration` for choices that exclude each other, or `copies` of stages.

        Copies of a stage keep shares of one state: they are all in one group of replicas.
        """
        for name in ("run_length", "weight_buffers", "prefetch", "offload_ahead"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise InvalidConfiguration(name, f"must be at least 1, not {number}")
        if self.offload < 0:
            raise InvalidConfiguration("offload", f"must be at least 0, not {self.offload}")
        default = Communication()
        for name in FULLY_SHARDED:
            if self.sharding is not Sharding.FULL and getattr(self, name) != getattr(default, name):
                raise InvalidConfiguration(name, "needs full sharding")
        if self.hybrid and self.sharding is Sharding.NONE:
            raise InvalidConfiguration("dp_replicate", "needs replicas that shard their state")
        if self.hybrid and copies:
            raise InvalidConfiguration("dp_replicate", "copies of a stage are all in one group")
        if self.p2p is not P2P.CHANNELS and not self.pp_overlap:
            raise InvalidConfiguration(
                "p2p", "needs transfers that overlap (not with --no-pp-overlap)"
            )
        if self.p2p is P2P.CHANNELS and self.eager:
            reason = "on channels, no send waits for what a receiver posts"
            raise InvalidConfiguration("eager", reason)
        if self.p2p is P2P.POSTED and self.eager:
            reason = "with posted receives, each send waits for its own"
            raise InvalidConfiguration("eager", reason)


FULLY_SHARDED = ("gather_per", "reduce_per", "run_length", "weight_buffers", "prefetch")
"""Fields that apply to full sharding alone."""

DERIVED = "hybrid", "muon"
"""Fields of `Communication` that follow from other settings of an experiment."""

CHOICES = {"sharding": Sharding, "p2p": P2P, "gather_per": Per, "reduce_per": Per}
"""Enumerations of the fields of `Communication` that have one."""
