"""A training step and what it costs, said once.

An `Experiment` holds the values that options, experiment files, rows of measured tables and
search results name alike. What they mean (a configuration, and a cost model) follows from
them here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, Field, dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from bfpp.schedules import (
    P2P,
    Communication,
    Configuration,
    Degrees,
    InvalidConfiguration,
    InvalidInput,
    Per,
    Schedule,
    Sharding,
    TaskGraph,
    find_schedule,
)
from bfpp.schedules.attention import Attention, ContextExchange, parse_attention, parse_exchange
from bfpp.schedules.communication import CHOICES
from bfpp.schedules.cut import Balance, cut_of, default_division, even_cut, given_cut
from bfpp.schedules.invalid import chosen, did_you_mean
from bfpp.schedules.precision import Precision, parse_precision
from bfpp.schedules.recomputation import Recomputation, parse_recomputation
from bfpp.sim.abstract import AbstractCosts
from bfpp.sim.cluster import Cluster, load_cluster
from bfpp.sim.constants import Constants, load_constants
from bfpp.sim.costs import CostModel
from bfpp.sim.implementation import IMPLEMENTATIONS, Implementation, find_implementation
from bfpp.sim.model import Transformer, load_model
from bfpp.sim.numbers import (
    MOST_DEVICES,
    MOST_PASSES,
    MOST_RANKS,
    is_count,
    is_usable,
    real,
    whole,
)
from bfpp.sim.optimizer_states import STATES, OptimizerStates

if TYPE_CHECKING:
    # Loaded where a model is simulated, so that abstract costs are there soon.
    from bfpp.sim.physical import PhysicalCosts
    from bfpp.sim.profile import ProfiledCosts

Value = TypeVar("Value")

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
class Experiment:
    """A schedule, how a model and its batch are divided, and what the tasks cost.

    Costs are abstract seconds, or those of a `model` on a `cluster`, or those of a measured
    `profile`. Raises `InvalidConfiguration`, which names the value at fault, when one of
    `configuration` and `costs` is asked for that cannot be.

    >>> experiment = Experiment("breadth-first", pp=4, loops=4, microbatches=8)
    >>> len(experiment.graph())
    516
    """

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
        "of each stage, or a list of modules (default: the implementation's)",
        "POLICY",
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
        "what context-parallel devices exchange: blocks of keys and values around a ring beside "
        "attention, heads for the sequence, or all keys and values",
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", self.rule)
        for name, kind in CHOICES.items():
            object.__setattr__(self, name, chosen(kind, name, getattr(self, name)))
        if self.balance is not None:
            object.__setattr__(self, "balance", chosen(Balance, "balance", self.balance))

    @cached_property
    def rule(self) -> Schedule:
        """The schedule itself."""
        return find_schedule(self.schedule) if isinstance(self.schedule, str) else self.schedule

    def changed(self, **values: Any) -> Experiment:
        """The experiment with other values, parameters of the schedule among them."""
        schedule = values.pop("schedule", self.rule)
        if isinstance(schedule, str):
            schedule = find_schedule(schedule)
        own = {name: values.pop(name) for name in list(values) if name in schedule.parameters}
        for name in values:
            if name not in OPTIONS:
                raise InvalidConfiguration(name, f"{schedule.name} has no such parameter")
        return replace(self, schedule=replace(schedule, **own), **values)

    @cached_property
    def configuration(self) -> Configuration:
        """How the step is divided, ordered and communicated."""
        loops, units = self._division()
        self._require_size(sum(units) if isinstance(units, tuple) else self.pp * loops * units)
        return Configuration(
            self.rule,
            self._degrees,
            self.microbatches,
            self.microbatch_size,
            loops,
            units,
            self.communication,
            self._precision,
            self._recomputation,
            self._cut,
        )

    def _require_size(self, parts: int) -> None:
        """Raise `InvalidInput` for a step that is too large to simulate, of so many units."""
        if (passes := parts * self.microbatches * self.rule.slices) > MOST_PASSES:
            raise InvalidInput(
                f"--pp, --microbatches: {self.microbatches:,} micro-batches through "
                f"{parts:,} stages are {passes:,} passes; at most "
                f"{MOST_PASSES:,} can be simulated"
            )
        if self.pp > MOST_RANKS:
            raise InvalidInput(f"--pp: {self.pp:,} ranks; at most {MOST_RANKS:,} can be simulated")
        if (devices := self._degrees.devices) > MOST_DEVICES:
            raise InvalidInput(
                f"--pp, --tp, --dp: {devices:,} devices; at most {MOST_DEVICES:,} can be simulated"
            )

    @property
    def _degrees(self) -> Degrees:
        return Degrees(self.pp, self.dp, self.tp, self.cp, self.ep, self.dp_replicate)

    @property
    def hybrid(self) -> bool:
        """Whether only some of the replicas shard their state together (HSDP)."""
        return self._degrees.is_hybrid

    def _division(self) -> tuple[int, int | tuple[int, ...]]:
        """Loops, and units of a stage."""
        if self.rule.looped:
            if self.units_per_stage not in (None, 1, self.loops):
                raise InvalidConfiguration(
                    "units_per_stage", f"{self.rule.name} is looped: its --loops divide a rank"
                )
            return self._stages // self.pp, 1
        if self.loops not in (None, self.rule.loops):
            held = f" but holds {self.rule.loops} stages a rank" if self.rule.loops > 1 else ""
            raise InvalidConfiguration(
                "loops",
                f"{self.rule.name} is not looped{held}; --units-per-stage splits its stages",
            )
        if self.units_per_stage is None and self.model is not None:
            return default_division(self.rule, self.transformer.layers, self.pp, cut=self._cut)
        return self.rule.loops, self.units_per_stage or 1

    @property
    def _stages(self) -> int:
        """How many stages there are: a looped schedule's, as a cut says unless loops are given."""
        loops = self.loops or self.rule.loops
        if not self.rule.looped:
            return len(self.rule.placement(self.pp, loops))
        if self.loops is None and self.cut is not None:
            given = given_cut(self.cut, self.transformer.prediction_modules)
            if given is not None and len(given) % self.pp == 0:
                return len(given)
        return self.pp * loops

    @cached_property
    def _cut(self) -> tuple[int, ...] | None:
        """The layers of each stage, if they are given."""
        if self.balance is not None:
            return self._balanced(self.balance)
        if self.cut is None:
            return None
        model = self.transformer
        return cut_of(self.cut, model.layers, self._stages, model.prediction_modules)

    @property
    def layers_of_stages(self) -> tuple[int, ...]:
        """The number of layers of each stage of the model."""
        return self._cut or even_cut(self.transformer.layers, self._stages)

    def _balanced(self, balance: Balance) -> tuple[int, ...]:
        """The layers of each stage that balance time or memory."""
        if self.cut is not None:
            raise InvalidConfiguration("balance", "does not go with --cut")
        from bfpp.sim.balance import balanced

        self._require_size(self._stages)
        loops = self._stages // self.pp
        layout = self.rule.layout(self.pp, self.microbatches, loops)
        communication = self.communication
        physical = self.physical_of_cut(None)
        return balanced(balance, physical, self.rule, layout, communication)

    @property
    def communication(self) -> Communication:
        """What is communicated, and what of it a cluster's software overlaps."""
        values = {each.name: getattr(self, each.name) for each in fields(Communication)}
        if self.model is not None:
            for name in ("pp_overlap", "dp_overlap"):
                values[name] &= getattr(self._implementation, name)
        return Communication(**values)

    @cached_property
    def transformer(self) -> Transformer:
        """The model, with the layers and the sequence that are trained."""
        model = load_model(self.model) if isinstance(self.model, str) else self.model
        if model is None:
            raise InvalidConfiguration("model", "must be given together with --cluster")
        trained = replace(
            model,
            layers=self.layers or model.layers,
            sequence=self.seq_length or model.sequence,
            prediction_modules=model.prediction_modules if self.prediction else 0,
        )
        return model if trained == model else trained  # keeps what is cached on the model

    @cached_property
    def _constants(self) -> Constants:
        if isinstance(self.constants, str):
            return load_constants(self.constants)
        return self.constants or Constants()

    @property
    def _implementation(self) -> Implementation:
        usual = self.implementation
        if not isinstance(usual, Implementation):
            usual = find_implementation(usual or "paper", self._constants.implementations)
        usual = replace(usual, cuda_graphs=self.cuda_graphs or usual.cuda_graphs)
        states = OptimizerStates(self.moments, self.master_weights, self.main_gradients)
        return states.of(usual, self._precision or usual.precision)

    @property
    def _recomputation(self) -> Recomputation | None:
        return _parsed(parse_recomputation, self.recompute)

    @property
    def _precision(self) -> Precision | None:
        return _parsed(parse_precision, self.precision)

    @cached_property
    def costs(self) -> CostModel:
        """The cost model."""
        given = {name: getattr(self, name) for name in of_group(ABSTRACT)}
        given = {name: value for name, value in given.items() if value is not None}
        if self.profile is not None:
            return self._profiled(self.profile, given)
        if self.model is None and self.cluster is None:
            dividing = ("tp", "cp", "ep", "microbatch_size", *(() if self.hybrid else ("dp",)))
            for name in (*of_group(PHYSICAL), *dividing):
                if getattr(self, name) != DEFAULTS[name]:
                    raise InvalidConfiguration(name, "needs --model and --cluster too")
            return AbstractCosts(**given)
        for name in given:
            raise InvalidConfiguration(
                name, "abstract seconds do not go with --model and --cluster"
            )
        return self.physical_of_cut(self._cut)

    def physical_of_cut(self, cut: tuple[int, ...] | None) -> PhysicalCosts:
        """The costs of the model on the cluster, with so many layers in each stage."""
        from bfpp.sim.operators import Routing
        from bfpp.sim.physical import PhysicalCosts

        model = self.transformer
        if self.cluster is None:
            raise InvalidConfiguration("cluster", "must be given together with --model")
        cluster = self.cluster
        if isinstance(cluster, str):
            cluster = load_cluster(cluster, self._constants.clusters)
        return PhysicalCosts(
            model=model,
            cluster=cluster,
            degrees=self._degrees,
            microbatch_size=self.microbatch_size,
            implementation=self._implementation,
            recompute=self._recomputation,
            attention=_parsed(parse_attention, self.attention),
            sequence_parallel=self.sequence_parallel,
            precision=self._precision,
            cut=cut,
            exchange=parse_exchange(self.cp_comm),
            routing=Routing(
                self.capacity_factor,
                self.expert_imbalance,
                self.dispatch == "deduplicated",
                self.shared_overlap,
                quantised=self.quantised_dispatch,
                fused=self.fused_router,
                interleaved=self.microbatch_overlap,
                fused_experts=self.fused_experts,
            ),
            quantised_weights=self.quantised_weights,
            quantised_attention=self.quantised_attention,
            quantised_head=self.quantised_head,
        )

    @property
    def physical(self) -> PhysicalCosts | None:
        """The cost model, if it is that of a model on a cluster."""
        costs = self.costs
        if self.model is None:
            return None
        from bfpp.sim.physical import PhysicalCosts

        return costs if isinstance(costs, PhysicalCosts) else None

    def require_physical(self) -> PhysicalCosts:
        """The cost model; raises `InvalidConfiguration` unless it is that of a model."""
        if (physical := self.physical) is None:
            raise InvalidConfiguration("model", "must be given, and a cluster")
        return physical

    def _profiled(self, profile: ProfiledCosts | str, given: Mapping[str, float]) -> ProfiledCosts:
        """The costs of a profile, which says all that other values could say of costs."""
        for name in (*given, *of_group(PHYSICAL), "tp", "cp", "ep"):
            if getattr(self, name) != DEFAULTS[name]:
                raise InvalidConfiguration(name, "does not go with --profile")
        from bfpp.sim.profile import load_profile

        costs = load_profile(profile) if isinstance(profile, str) else profile
        for name, measured in {
            "dp": costs.replicas,
            "microbatch_size": costs.microbatch_size,
        }.items():
            if (value := getattr(self, name)) not in (DEFAULTS[name], measured):
                raise InvalidConfiguration(
                    name, f"{costs.name} was measured with {measured}, not {value}"
                )
        return costs

    def graph(self) -> TaskGraph:
        """The task graph of the step."""
        return self.configuration.graph()

    @property
    def record(self) -> dict[str, Any]:
        """The values that are not the defaults, by name: `experiment_of` reads them back.

        Raises `InvalidConfiguration` for values that have no name, such as a cluster made
        in Python.
        """
        values: dict[str, Any] = {"schedule": self.rule.name}
        defaults = {each.name: each.default for each in fields(self.rule)}
        values |= {
            name: value
            for name, value in self.rule.parameters.items()
            if value != defaults.get(name)
        }
        for name, default in DEFAULTS.items():
            if (value := getattr(self, name)) != default:
                if not isinstance(value, str | int | float):
                    raise InvalidConfiguration(name, "was made in Python: it has no name to write")
                values[name] = str(value) if isinstance(value, str) else value
        return values


def _parsed(parse: Callable[[str], Value], value: Value | str | None) -> Value | None:
    """What a text means; anything else is meant already."""
    return parse(str(value)) if isinstance(value, str) else value


def _options() -> dict[str, Field[Any]]:
    return {each.name: each for each in fields(Experiment) if "option" in each.metadata}


OPTIONS: dict[str, Option] = {name: each.metadata["option"] for name, each in _options().items()}
"""Every value besides the schedule, as it is given."""

DEFAULTS: dict[str, Any] = {name: each.default for name, each in _options().items()}


def of_group(group: str) -> list[str]:
    """The names of a group's values."""
    return [name for name, option in OPTIONS.items() if option.group == group]


def experiment_of(values: Mapping[str, object]) -> Experiment:
    """The experiment that values by name say, as numbers or as texts, the schedule among them.

    A file of orders says values too. Raises `InvalidConfiguration` for a name that there is not,
    or a value that cannot be.

    >>> import bfpp
    >>> bfpp.experiment_of({"schedule": "interleaved", "pp": "4", "vpp": 2}).loops
    2
    """
    given = {ALIASES.get(name, name): value for name, value in values.items()}
    name = given.pop("schedule", None)
    if not isinstance(name, str):
        raise InvalidConfiguration("schedule", "must be given, by name")
    schedule = find_schedule(name)
    read = values_read({**schedule.values, **given}, schedule.parameters)
    own = {each: read.pop(each) for each in schedule.parameters if each in read}
    return Experiment(replace(schedule, **own), **read)


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


_KINDS = {
    "count": (_count, "a whole number of at least 1"),
    "seconds": (_number, "a number of at least 0"),
    "number": (_number, "a number of at least 0"),
    "flag": (_flag, "true or false"),
    "name": (_name, "a name or a path"),
    "text": (_name, "a text"),
    "choice": (_name, "a name"),
}
"""How a value of each kind is read, and what it must be."""
