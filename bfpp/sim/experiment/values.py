"""What can be said of an experiment: each value by its name, how it is given, and its default.

Options, experiment files, rows of measured tables and search results name the same values.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from bfpp.schedules import P2P, Per, Schedule, Sharding
from bfpp.schedules.layout.cut import Balance
from bfpp.schedules.settings.attention import Attention, ContextExchange
from bfpp.schedules.settings.offloading import OFF
from bfpp.schedules.settings.precision import Precision
from bfpp.schedules.settings.recomputation import Recomputation
from bfpp.schedules.settings.tensor_overlap import TensorOverlap
from bfpp.sim.cluster.cluster import Cluster
from bfpp.sim.cluster.constants import Constants
from bfpp.sim.cluster.software_profiles import IMPLEMENTATIONS, Implementation
from bfpp.sim.memory.optimizer_states import ADAM, MOMENTS, STATES
from bfpp.sim.models.model import Transformer

if TYPE_CHECKING:
    from bfpp.sim.costs.measured_profile import ProfiledCosts

ALIASES = {"virtual_stages": "loops", "vpp": "loops", "stages_per_rank": "units_per_stage"}
"""Other names of values."""


class Option(NamedTuple):
    """An option of the command line: its group, its kind, and its help text."""

    group: str
    kind: str
    help: str
    metavar: str = "N"
    choices: tuple[str, ...] = ()


def _option(default: Any, *option: Any, **more: Any) -> Any:
    return field(default=default, metadata={"option": Option(*option, **more)})


PARALLELISM = "parallelism"
BATCH = "batch"
STAGES = "stages"
COMMUNICATION = "communication"
ABSTRACT = "abstract costs, in seconds"
PHYSICAL = "physical costs"
MEASURED = "measured costs"


@dataclass(frozen=True)
class Values:
    """A schedule, and all values of an experiment on it."""

    schedule: Schedule | str
    _: KW_ONLY
    pp: int = _option(4, PARALLELISM, "count", "pipeline-parallel ranks")
    dp: int = _option(1, PARALLELISM, "count", "data-parallel replicas")
    tp: int = _option(1, PARALLELISM, "count", "tensor-parallel devices")
    cp: int = _option(1, PARALLELISM, "count", "context-parallel devices")
    ep: int = _option(1, PARALLELISM, "count", "expert-parallel devices; divides dp x cp x tp")
    dp_replicate: int = _option(
        1,
        PARALLELISM,
        "count",
        "groups of replicas; each shards one copy of the training state (HSDP); divides dp",
    )
    microbatches: int = _option(8, BATCH, "count", "sequential micro-batches of a step")
    microbatch_size: int = _option(1, BATCH, "count", "samples in a micro-batch")
    loops: int | None = _option(
        None, STAGES, "count", "virtual pipeline stages: stages on each rank of a looped schedule"
    )
    units_per_stage: int | None = _option(
        None,
        STAGES,
        "count",
        "units per stage of a non-looped schedule, gathered and reduced one by one; each takes "
        "what --forward and the like say (default: 1, or --loops where schedules are compared; "
        "with --model, one layer each)",
    )
    sharding: Sharding = _option(
        Sharding.NONE,
        COMMUNICATION,
        "choice",
        "what data parallelism shards: nothing (none or ddp), the optimizer state (partial, zero1 "
        "or zero2), or everything (full, zero3 or fsdp)",
        choices=Sharding.names(),
    )
    pp_overlap: bool = _option(
        True, COMMUNICATION, "flag", "P2P transfers block the compute of both ranks"
    )
    dp_overlap: bool = _option(
        True,
        COMMUNICATION,
        "flag",
        "all-gathers, reduce-scatters and all-reduces block the compute of their rank",
    )
    clipping: bool = _option(
        False,
        COMMUNICATION,
        "flag",
        "clip gradients by their global norm, which every rank waits for",
    )
    tied_embeddings: bool = _option(
        False,
        COMMUNICATION,
        "flag",
        "the first and the last unit share their weights; one all-reduce per step sums their "
        "gradients",
    )
    p2p: P2P = _option(
        P2P.CHANNELS,
        COMMUNICATION,
        "choice",
        "how sends and receives are posted: one queue per direction, receives ahead of time "
        "(channels); one queue per rank, receives in the order of the sends (fifo, as PyTorch) or "
        "right before the step that needs them (deferred); or grouped after each pass (batched, as "
        "Megatron-LM's 1F1B), or after a forward and a backward pass together (coalesced, as its "
        "interleaved schedule)",
        choices=tuple(P2P),
    )
    eager: bool = _option(
        False,
        COMMUNICATION,
        "flag",
        "queued and grouped sends complete without waiting for the receiver, as small messages do",
    )
    gather_per: Per = _option(
        Per.RUN,
        COMMUNICATION,
        "choice",
        "fully sharded: gather weights for each run of consecutive micro-batches through a unit, "
        "or once per step (reshard_after_forward=False)",
        choices=tuple(Per),
    )
    reduce_per: Per = _option(
        Per.RUN,
        COMMUNICATION,
        "choice",
        "fully sharded: reduce gradients after each run, or once per step",
        choices=tuple(Per),
    )
    run_length: int | None = _option(
        None,
        COMMUNICATION,
        "count",
        "fully sharded: the most micro-batches in a run (default: no limit)",
    )
    weight_buffers: int = _option(
        2,
        COMMUNICATION,
        "count",
        "fully sharded: units whose gathered weights are held at the same time",
    )
    prefetch: int | None = _option(
        None,
        COMMUNICATION,
        "count",
        "fully sharded: start an all-gather no earlier than the N-th run before its own (default: "
        "once a buffer is free)",
    )
    offload: int | str = _option(
        OFF,
        COMMUNICATION,
        "offload",
        "activations kept in host memory until their backward pass: off, all, a number (those with "
        "at least that many passes of their rank in between), or selective (those with enough "
        "passes in between to hide both copies) (default: off)",
        "WHICH",
    )
    offload_ahead: int = _option(
        1,
        COMMUNICATION,
        "count",
        "how many backward passes ahead offloaded activations are copied back",
    )
    forward: float | None = _option(
        None,
        ABSTRACT,
        "seconds",
        "forward pass of one micro-batch through one stage, or one unit of it",
        "S",
    )
    backward: float | None = _option(
        None,
        ABSTRACT,
        "seconds",
        "backward pass (default: the sum of its halves if given, else 2)",
        "S",
    )
    backward_input: float | None = _option(
        None,
        ABSTRACT,
        "seconds",
        "input half of a backward pass (default: the rest, or half)",
        "S",
    )
    backward_weight: float | None = _option(
        None,
        ABSTRACT,
        "seconds",
        "weight half of a backward pass (default: the rest, or half)",
        "S",
    )
    forward_backward: float | None = _option(
        None,
        ABSTRACT,
        "seconds",
        "fused block of a forward and a backward pass (default: the sum)",
        "S",
    )
    transfer: float | None = _option(
        None, ABSTRACT, "seconds", "P2P transfer between two ranks", "S"
    )
    gather: float | None = _option(
        None, ABSTRACT, "seconds", "all-gather of one stage's or unit's weights", "S"
    )
    reduce: float | None = _option(
        None, ABSTRACT, "seconds", "reduction of one stage's or unit's gradients", "S"
    )
    optimizer: float | None = _option(None, ABSTRACT, "seconds", "optimizer step of a rank", "S")
    norm: float | None = _option(
        None, ABSTRACT, "seconds", "norm of a rank's gradients, with --clipping", "S"
    )
    all_reduce: float | None = _option(
        None,
        ABSTRACT,
        "seconds",
        "all-reduce of one stage's or unit's gradients across replicas, with --dp-replicate",
        "S",
    )
    host_copy: float | None = _option(
        None,
        ABSTRACT,
        "seconds",
        "copy of one stage's activations to the host or back, with --offload",
        "S",
    )
    tied_all_reduce: float | None = _option(
        None,
        ABSTRACT,
        "seconds",
        "sum of the first and the last unit's gradients, with --tied-embeddings",
        "S",
    )
    model: Transformer | str | None = _option(
        None,
        PHYSICAL,
        "name",
        "a preset, a TOML file, or a Hugging Face config.json",
        "NAME|FILE",
    )
    layers: int | None = _option(None, PHYSICAL, "count", "number of layers (default: the model's)")
    seq_length: int | None = _option(
        None,
        PHYSICAL,
        "count",
        "tokens per sequence (default: the model's; a config.json only says the maximum)",
    )
    prediction: bool = _option(
        True, PHYSICAL, "flag", "leave out the model's multi-token prediction modules (MTP)"
    )
    cluster: Cluster | str | None = _option(
        None, PHYSICAL, "name", "a preset, or a TOML file", "NAME|FILE"
    )
    implementation: Implementation | str | None = _option(
        None,
        PHYSICAL,
        "choice",
        "training software: the paper's library (overlaps communication), Megatron-LM of 2022 "
        "(does not), today's Megatron-LM, PyTorch's FSDP of 2023, torchtitan, or bfpp's executor "
        "(default: the cluster's)",
        choices=tuple(IMPLEMENTATIONS),
    )
    precision: Precision | str | None = _option(
        None,
        PHYSICAL,
        "name",
        "fp16, bf16, fp32 or fp64; or bf16 with low-precision GEMMs: fp8-delayed, fp8-current, "
        "fp8-block, mxfp8 or nvfp4 (default: the implementation's)",
        "NAME",
    )
    quantised_weights: bool = _option(
        False,
        PHYSICAL,
        "flag",
        "store and all-gather the weights of low-precision GEMMs quantised (Megatron-LM's "
        "--fp8-param-gather)",
    )
    update_rule: str = _option(
        ADAM,
        PHYSICAL,
        "choice",
        "what the optimizer keeps besides weights: two moments (adam), one (momentum, of SGD), or "
        "none (sgd) (default: adam)",
        choices=tuple(MOMENTS),
    )
    moments: str | None = _option(
        None,
        PHYSICAL,
        "choice",
        "precision of the optimizer's moments (default: fp32)",
        choices=STATES["moments"],
    )
    master_weights: str | None = _option(
        None,
        PHYSICAL,
        "choice",
        "precision of the optimizer's copy of the weights (default: fp32)",
        choices=STATES["master_weights"],
    )
    main_gradients: str | None = _option(
        None,
        PHYSICAL,
        "choice",
        "precision in which gradients are accumulated and reduced (default: the implementation's)",
        choices=STATES["main_gradients"],
    )
    quantised_dispatch: bool = _option(
        False,
        PHYSICAL,
        "flag",
        "dispatch tokens, and the gradients of the experts' outputs, quantised (DeepEP)",
    )
    quantised_attention: bool = _option(
        False, PHYSICAL, "flag", "attention's own GEMMs take 8-bit operands too"
    )
    quantised_head: bool = _option(
        False, PHYSICAL, "flag", "the output layer's GEMMs are low-precision too"
    )
    quantised_activation: bool = _option(
        False,
        PHYSICAL,
        "flag",
        "keep the input of a gated activation for the backward pass in 8 bits",
    )
    recompute: Recomputation | str | None = _option(
        None,
        PHYSICAL,
        "name",
        "activation checkpointing: none, selective (core attention), full, the number of layers "
        "of each stage (or a list of these), or a list of modules (default: the implementation's)",
        "POLICY",
    )
    offload_share: float = _option(
        1.0,
        PHYSICAL,
        "number",
        "share of a pass's activations that --offload moves; the rest stay on the device",
        "X",
    )
    offload_modules: str | None = _option(
        None,
        PHYSICAL,
        "name",
        "modules whose inputs --offload moves, a list of attn_norm, qkv_linear, core_attn, "
        "attn_proj, mlp_norm, expert_fc1 and moe_act (default: all that a pass saves)",
        "MODULES",
    )
    attention: Attention | str | None = _option(
        None,
        PHYSICAL,
        "choice",
        "whether attention is fused, so that scores and probabilities stay on the chip "
        "(default: the implementation's)",
        choices=tuple(Attention),
    )
    sequence_parallel: bool | None = _option(
        None,
        PHYSICAL,
        "flag",
        "shard the activations between layers over tensor-parallel devices too "
        "(default: the implementation's)",
    )
    tp_overlap: TensorOverlap | str | None = _option(
        None,
        PHYSICAL,
        "choice",
        "tensor-parallel communication that GEMMs hide: none; in the backward pass, with the GEMM "
        "that does not wait for it (bulk); that and, in chunks, with the GEMM that it feeds or "
        "follows (chunked: Megatron-LM's --tp-comm-overlap) (default: the implementation's)",
        choices=tuple(TensorOverlap),
    )
    cp_comm: ContextExchange | str = _option(
        ContextExchange.RING,
        PHYSICAL,
        "choice",
        "context-parallel communication: keys and values around a ring, overlapped with attention; "
        "an all-to-all of heads and sequence; or an all-gather of keys and values",
        choices=tuple(ContextExchange),
    )
    capacity_factor: float | None = _option(
        None,
        PHYSICAL,
        "number",
        "capacity of each expert over the mean load, padded to it (default: dropless)",
        "X",
    )
    expert_imbalance: float = _option(
        1.0,
        PHYSICAL,
        "number",
        "load of the busiest expert-parallel device over the mean, without a capacity",
        "X",
    )
    dispatch: str = _option(
        "all-to-all",
        PHYSICAL,
        "choice",
        "how tokens are sent: once per chosen expert, or once per device that has any of them, and "
        "once per node over the network (DeepEP, HybridEP)",
        choices=("all-to-all", "deduplicated"),
    )
    shared_overlap: bool = _option(
        False, PHYSICAL, "flag", "overlap dispatch and combine with the shared experts"
    )
    microbatch_overlap: bool = _option(
        False,
        PHYSICAL,
        "flag",
        "overlap dispatch and combine with another micro-batch (Megatron-LM's "
        "--overlap-moe-expert-parallel-comm, DualPipe)",
    )
    fused_experts: bool = _option(
        False,
        PHYSICAL,
        "flag",
        "one kernel per GEMM for all experts, fused with the activation and casts after it "
        "(Transformer Engine's grouped MLP)",
    )
    fused_router: bool = _option(
        False,
        PHYSICAL,
        "flag",
        "fused routing kernels (Megatron-LM's --moe-router-fusion)",
    )
    cuda_graphs: bool = _option(
        False, PHYSICAL, "flag", "launch kernels as CUDA graphs, at less cost to the host"
    )
    cut: str | None = _option(
        None,
        PHYSICAL,
        "text",
        "layers of each stage: even, fewer-at-ends, a list such as 7,8,8,7, Megatron-LM's layout "
        "(Et*7|(t*8|)*2t*7L), or torchtitan's lists of module names; the last two also set --loops "
        "(default: even)",
        "CUT",
    )
    balance: Balance | None = _option(
        None,
        PHYSICAL,
        "choice",
        "choose the layers of each stage to minimise the fullest rank's time or peak memory",
        choices=tuple(Balance),
    )
    constants: Constants | str | None = _option(
        None,
        PHYSICAL,
        "name",
        "constants of clusters and implementations, as bfpp fit writes them (default: as shipped)",
        "FILE",
    )
    profile: ProfiledCosts | str | None = _option(
        None,
        MEASURED,
        "name",
        "profile of a machine from bfpp calibrate, preferably measured with as many ranks",
        "FILE",
    )


def _options() -> dict[str, Field[Any]]:
    return {each.name: each for each in fields(Values) if "option" in each.metadata}


OPTIONS: dict[str, Option] = {name: each.metadata["option"] for name, each in _options().items()}
"""Every value other than the schedule, as it is given."""

DEFAULTS: dict[str, Any] = {name: each.default for name, each in _options().items()}


def of_group(group: str) -> list[str]:
    """The names of a group's values."""
    return [name for name, option in OPTIONS.items() if option.group == group]
