"""What can be said of an experiment: each value by its name, how it is given, and its default.

Options, experiment files, rows of measured tables and search results name the same values, and
read them here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from bfpp.schedules import P2P, InvalidConfiguration, Per, Schedule, Sharding
from bfpp.schedules.attention import Attention, ContextExchange
from bfpp.schedules.cut import Balance
from bfpp.schedules.invalid import did_you_mean
from bfpp.schedules.offload import NAMED, OFF, parse_offload
from bfpp.schedules.precision import Precision
from bfpp.schedules.recomputation import Recomputation
from bfpp.sim.cluster import Cluster
from bfpp.sim.constants import Constants
from bfpp.sim.implementation import IMPLEMENTATIONS, Implementation
from bfpp.sim.model import Transformer
from bfpp.sim.numbers import is_count, is_usable, real, whole
from bfpp.sim.optimizer_states import STATES

if TYPE_CHECKING:
    from bfpp.sim.profile import ProfiledCosts

ALIASES = {"virtual_stages": "loops", "vpp": "loops", "stages_per_rank": "units_per_stage"}
"""Other names of values."""


class Option(NamedTuple):
    """How people give a value: as what, in which group of options, and what it means."""

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
        "groups of replicas that shard the training state, each all of it (HSDP); divides dp",
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
        "units of each stage of a non-looped schedule, gathered and reduced one by one "
        "(default: 1, or --loops where schedules are compared; with --model, one layer each)",
    )
    sharding: Sharding = _option(
        Sharding.NONE,
        COMMUNICATION,
        "choice",
        "what data parallelism shards: nothing (ddp), the optimizer state (zero1, zero2), or "
        "everything (zero3, fsdp)",
        choices=Sharding.names(),
    )
    pp_overlap: bool = _option(
        True, COMMUNICATION, "flag", "without: P2P transfers block the compute of both their ranks"
    )
    dp_overlap: bool = _option(
        True,
        COMMUNICATION,
        "flag",
        "without: all-gathers, reduce-scatters and all-reduces block the compute of their rank",
    )
    clipping: bool = _option(
        False,
        COMMUNICATION,
        "flag",
        "gradients are clipped by their norm, which all ranks wait for",
    )
    tied_embeddings: bool = _option(
        False,
        COMMUNICATION,
        "flag",
        "the first and the last unit share parameters, whose gradients are added up once a step",
    )
    p2p: P2P = _option(
        P2P.CHANNELS,
        COMMUNICATION,
        "choice",
        "how sends and receives are posted: by direction, with receives ahead (channels); in one "
        "queue a rank, receives when their senders' turn comes (fifo, as PyTorch) or right before "
        "the steps that need them (deferred); or in a group between two steps (batched, as "
        "Megatron)",
        choices=tuple(P2P),
    )
    eager: bool = _option(
        False,
        COMMUNICATION,
        "flag",
        "sends in queues or groups end without their receivers, as small messages do",
    )
    gather_per: Per = _option(
        Per.RUN,
        COMMUNICATION,
        "choice",
        "fully sharded: weights are gathered for each run of micro-batches through a unit, or once "
        "a step (reshard_after_forward=False)",
        choices=tuple(Per),
    )
    reduce_per: Per = _option(
        Per.RUN,
        COMMUNICATION,
        "choice",
        "fully sharded: gradients are reduced after each run, or once a step",
        choices=tuple(Per),
    )
    run_length: int | None = _option(
        None,
        COMMUNICATION,
        "count",
        "fully sharded: the micro-batches of a run at most (default: all that follow one another)",
    )
    weight_buffers: int = _option(
        2, COMMUNICATION, "count", "fully sharded: units whose weights are gathered at once"
    )
    prefetch: int = _option(
        1, COMMUNICATION, "count", "fully sharded: runs ahead that a gather may begin"
    )
    offload: int | str = _option(
        OFF,
        COMMUNICATION,
        "offload",
        "activations that wait on the host for their backward pass: off, all, a number (those with "
        "at least that many passes of their rank in between), or selective (with as many as take "
        "as long as a copy there and back)",
        "WHICH",
    )
    offload_ahead: int = _option(
        1, COMMUNICATION, "count", "backward passes ahead that offloaded activations come back"
    )
    forward: float | None = _option(
        None, ABSTRACT, "seconds", "forward pass of one micro-batch through one stage", "S"
    )
    backward: float | None = _option(
        None,
        ABSTRACT,
        "seconds",
        "backward pass (default: the sum of its halves if they are given, else 2)",
        "S",
    )
    backward_input: float | None = _option(
        None,
        ABSTRACT,
        "seconds",
        "input half of a backward pass (default: what the other leaves, or half)",
        "S",
    )
    backward_weight: float | None = _option(
        None,
        ABSTRACT,
        "seconds",
        "weight half of a backward pass (default: what the other leaves, or half)",
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
        None, ABSTRACT, "seconds", "all-gather of one stage's weights", "S"
    )
    reduce: float | None = _option(
        None, ABSTRACT, "seconds", "reduction of one stage's gradients", "S"
    )
    optimizer: float | None = _option(None, ABSTRACT, "seconds", "optimizer step of a rank", "S")
    norm: float | None = _option(
        None, ABSTRACT, "seconds", "norm of a rank's gradients, with --clipping", "S"
    )
    all_reduce: float | None = _option(
        None,
        ABSTRACT,
        "seconds",
        "all-reduce of one stage's gradients across replicas, with --dp-replicate",
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
    layers: int | None = _option(
        None, PHYSICAL, "count", "layers of the model, if not all (default: the model's)"
    )
    seq_length: int | None = _option(
        None,
        PHYSICAL,
        "count",
        "tokens of a sequence (default: the model's; a config.json has only the longest)",
    )
    prediction: bool = _option(
        True, PHYSICAL, "flag", "without: the model's prediction modules (MTP) are left out"
    )
    cluster: Cluster | str | None = _option(
        None, PHYSICAL, "name", "a preset, or a TOML file", "NAME|FILE"
    )
    implementation: Implementation | str | None = _option(
        None,
        PHYSICAL,
        "choice",
        "whose software: the paper's library, which overlaps communication, Megatron-LM of 2022, "
        "which does not, today's Megatron-LM, or PyTorch's FSDP of 2023 (default: paper)",
        choices=tuple(IMPLEMENTATIONS),
    )
    precision: Precision | str | None = _option(
        None,
        PHYSICAL,
        "name",
        "fp16, bf16, fp32 or fp64; or bf16 with products of narrower operands: fp8-delayed, "
        "fp8-current, fp8-block, mxfp8 or nvfp4 (default: the implementation's)",
        "NAME",
    )
    quantised_weights: bool = _option(
        False,
        PHYSICAL,
        "flag",
        "weights that products take quantised are kept and gathered so (Megatron's "
        "--fp8-param-gather)",
    )
    moments: str | None = _option(
        None,
        PHYSICAL,
        "choice",
        "what Adam's two moments are kept in (default: fp32)",
        choices=STATES["moments"],
    )
    master_weights: str | None = _option(
        None,
        PHYSICAL,
        "choice",
        "what the optimizer's copy of the weights is kept in (default: fp32)",
        choices=STATES["master_weights"],
    )
    main_gradients: str | None = _option(
        None,
        PHYSICAL,
        "choice",
        "what gradients are added up and reduced in (default: the implementation's)",
        choices=STATES["main_gradients"],
    )
    quantised_dispatch: bool = _option(
        False,
        PHYSICAL,
        "flag",
        "tokens are on their way to experts as products take them, and gradients of what those "
        "make (DeepEP, DeepSeek-V3)",
    )
    quantised_attention: bool = _option(
        False, PHYSICAL, "flag", "attention's own products take operands in 8 bits too"
    )
    quantised_head: bool = _option(
        False, PHYSICAL, "flag", "the output layer's products take quantised operands too"
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
        "share of a pass's activations that --offload moves; the others stay",
        "X",
    )
    attention: Attention | str | None = _option(
        None,
        PHYSICAL,
        "choice",
        "whether scores and probabilities stay on the chip (default: the implementation's)",
        choices=tuple(Attention),
    )
    sequence_parallel: bool | None = _option(
        None,
        PHYSICAL,
        "flag",
        "tensor-parallel devices share the activations between layers too "
        "(default: the implementation's)",
    )
    cp_comm: ContextExchange | str = _option(
        ContextExchange.RING,
        PHYSICAL,
        "choice",
        "what context-parallel devices exchange: blocks of keys and values around a ring, "
        "overlapped with attention, heads for the sequence, or all keys and values",
        choices=tuple(ContextExchange),
    )
    capacity_factor: float | None = _option(
        None,
        PHYSICAL,
        "number",
        "rows that each expert takes over the mean, padded to as many "
        "(default: as many as come, none dropped)",
        "X",
    )
    expert_imbalance: float = _option(
        1.0,
        PHYSICAL,
        "number",
        "rows that the busiest expert-parallel device takes over the mean, without a capacity",
        "X",
    )
    dispatch: str = _option(
        "all-to-all",
        PHYSICAL,
        "choice",
        "how tokens are sent: once for each of their experts, or once for each device with some, "
        "and over the network once for each node (DeepEP, HybridEP)",
        choices=("all-to-all", "deduplicated"),
    )
    shared_overlap: bool = _option(
        False, PHYSICAL, "flag", "tokens are on their way to experts while the shared ones compute"
    )
    microbatch_overlap: bool = _option(
        False,
        PHYSICAL,
        "flag",
        "tokens are on their way to experts while another micro-batch computes (Megatron's "
        "--overlap-moe-expert-parallel-comm, DualPipe)",
    )
    fused_experts: bool = _option(
        False,
        PHYSICAL,
        "flag",
        "a product is one kernel for all experts, with the activation and casts after it "
        "(Transformer Engine's fused grouped MLP)",
    )
    fused_router: bool = _option(
        False,
        PHYSICAL,
        "flag",
        "routing to experts is a few kernels (Megatron's --moe-router-fusion)",
    )
    cuda_graphs: bool = _option(
        False, PHYSICAL, "flag", "kernels are launched as CUDA graphs, which the host does faster"
    )
    cut: str | None = _option(
        None,
        PHYSICAL,
        "text",
        "layers of each stage: even, fewer-at-ends, a list such as 7,8,8,7, Megatron-LM's layout "
        "(Et*7|(t*8|)*2t*7L), or torchtitan's lists of names; these say --loops too "
        "(default: even)",
        "CUT",
    )
    balance: Balance | None = _option(
        None,
        PHYSICAL,
        "choice",
        "layers of each stage such that the largest takes as little as can be: time, or memory at "
        "its peak",
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
        "a profile of a machine, as bfpp calibrate writes it, best for as many ranks",
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


def values_read(values: Mapping[str, object], parameters: Mapping[str, object]) -> dict[str, Any]:
    """Values by name as an experiment has them, those of schedules' `parameters` among them."""
    for each in values:
        if each not in OPTIONS and each not in parameters:
            raise InvalidConfiguration(each, f"there is no such value{did_you_mean(each, OPTIONS)}")
    kinds = {each: parameter_kind(value) for each, value in parameters.items()}
    return {
        each: read_value(each, kinds.get(each) or OPTIONS[each].kind, value)
        for each, value in values.items()
    }


def parameter_kind(value: object) -> str:
    """How a schedule's own parameter is given, by a value of it."""
    return "flag" if isinstance(value, bool) else "count"


def read_value(name: str, kind: str, value: object) -> Any:
    """A value as its kind has it, from what a file or a table holds."""
    reader, expected = _KINDS[kind]
    if (read := reader(value)) is None:
        raise InvalidConfiguration(name, f"must be {expected}, not {value!r}")
    if kind == "choice" and read not in OPTIONS[name].choices:
        known = ", ".join(OPTIONS[name].choices)
        raise InvalidConfiguration(name, f"{read!r} is not one of {known}")
    return read


def _count(value: object) -> int | None:
    number = whole(value.strip()) if isinstance(value, str) else value
    return number if isinstance(number, int) and is_count(number) else None


def _number(value: object) -> float | None:
    number = real(value.strip()) if isinstance(value, str) else value
    return float(number) if isinstance(number, int | float) and is_usable(number) else None


def _flag(value: object) -> bool | None:
    if isinstance(value, bool):
        return value
    return {"true": True, "1": True, "false": False, "0": False}.get(str(value).strip().lower())


def _name(value: object) -> str | None:
    return value.strip() if isinstance(value, str) and value.strip() else None


def _offload(value: object) -> int | str | None:
    try:
        return parse_offload(value)
    except InvalidConfiguration:
        return None


_KINDS = {
    "count": (_count, "a whole number of at least 1"),
    "seconds": (_number, "a number of at least 0"),
    "number": (_number, "a number of at least 0"),
    "flag": (_flag, "true or false"),
    "name": (_name, "a name or a path"),
    "text": (_name, "a text"),
    "choice": (_name, "a name"),
    "offload": (_offload, f"{', '.join(NAMED)}, or a number of passes"),
}
"""How a value of each kind is read, and what it must be."""
