"""A model on a cluster, divided over its devices: parameters, flops, links and seconds of units.

Everything that prices of tasks are made of, and nothing that depends on a task graph.
`bfpp.sim.costs.physical.PhysicalCosts` adds the prices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np

from bfpp.schedules import Degrees, InvalidConfiguration, Layout, Sharding
from bfpp.schedules.columns import Seconds
from bfpp.schedules.settings.attention import Attention, ContextExchange
from bfpp.schedules.settings.offloading import MODULES, MODULES_FIELD, require_share
from bfpp.schedules.settings.precision import Precision
from bfpp.schedules.settings.recomputation import LAYER, Recomputation
from bfpp.schedules.settings.tensor_overlap import TensorOverlap
from bfpp.sim.cluster.cluster import Cluster
from bfpp.sim.cluster.placement import DevicePlacement
from bfpp.sim.cluster.software_profiles import (
    CLUSTERS_OWN,
    Implementation,
    ParameterBytes,
    implementation_on,
)
from bfpp.sim.costs.communication.links import Beside, Links
from bfpp.sim.costs.communication.routes import Routes
from bfpp.sim.costs.units.seconds import (
    UnitSeconds,
    part_counts,
    parts,
    recomputes_units,
    unit_launches,
    unit_seconds,
)
from bfpp.sim.costs.units.settings import Setting, setting_of
from bfpp.sim.costs.units.slowest import waiting_factor
from bfpp.sim.engines.caching import of_any_size, once, once_for_stages
from bfpp.sim.models.model import Transformer, model_flops
from bfpp.sim.models.unit_layers import Layers, layers_of_units
from bfpp.sim.operators.checkpointing import recomputed_flops
from bfpp.sim.operators.divisible import NARROW, require_divisible
from bfpp.sim.operators.operators import Execution, Routing
from bfpp.sim.operators.quantisation import quantisation_of


@dataclass(frozen=True, repr=False)
class ModelOnCluster:
    """A model trained on a cluster, divided over its devices: all but the prices of tasks.

    The fields are those of `bfpp.PhysicalCosts`, which prices task graphs with these values.
    """

    model: Transformer
    cluster: Cluster
    degrees: Degrees = field(default_factory=Degrees)
    microbatch_size: int = 1
    implementation: Implementation = CLUSTERS_OWN
    recompute: Recomputation | None = None
    attention: Attention | None = None
    sequence_parallel: bool | None = None
    precision: Precision | None = None
    cut: tuple[int, ...] | None = None
    exchange: ContextExchange = ContextExchange.RING
    routing: Routing = field(default_factory=Routing)
    quantised_weights: bool = False
    quantised_attention: bool = False
    quantised_head: bool = False
    quantised_activation: bool = False
    offload_share: float = 1.0
    offload_modules: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {self.model.name} on {self.cluster.name}: {self.degrees}>"
        )

    def __post_init__(self) -> None:
        if self.implementation is CLUSTERS_OWN:
            object.__setattr__(self, "implementation", implementation_on(self.cluster))
        if self.microbatch_size < 1:
            raise InvalidConfiguration(
                "microbatch_size", f"must be at least 1, not {self.microbatch_size}"
            )
        require_share(self.offload_share)
        require_divisible(self.execution)
        self._require_chunks()
        if self.quantised_weights and self.execution.quantisation is None:
            raise InvalidConfiguration("quantised_weights", NARROW)
        self._require_modules()
        DevicePlacement.on(self.cluster, self.degrees)

    def _require_chunks(self) -> None:
        """Raise `InvalidConfiguration` where all-reduces are to be overlapped in chunks."""
        if self.overlaps_chunks and not self.execution.sequence_parallel:
            raise InvalidConfiguration("tp_overlap", "chunked needs --sequence-parallel")

    def _require_modules(self) -> None:
        """Raise `InvalidConfiguration` where a module is named that no layer has."""
        layers = [part.kept for part in parts(self).layers]
        for module in sorted(self.recomputation.modules - {LAYER}):
            if not any(layer.of(module) for layer in layers):
                raise InvalidConfiguration("recompute", f"{self.model.name} has no {module}")
        for module in sorted(self.offload_modules):
            names = {each.name for layer in layers for each in layer.operators}
            if names.isdisjoint(MODULES[module]):
                raise InvalidConfiguration(MODULES_FIELD, f"{self.model.name} has no {module}")

    @cached_property
    def cells(self) -> dict[object, Beside]:
        """Cached costs of each kind of a micro-batch's tasks, by all that decides them.

        It is the same however parameters are sharded.
        """
        return {}

    @cached_property
    def others(self) -> dict[object, Beside]:
        """Cached costs of all other kinds, for any size of micro-batches."""
        return {}

    @cached_property
    def one_sample(self) -> Self:
        """The model with micro-batches of one sample, which caches results of any size."""
        return self if self.microbatch_size == 1 else replace(self, microbatch_size=1)

    @cached_property
    def not_interleaved(self) -> Self:
        """The model without overlap of the experts' all-to-alls and other micro-batches."""
        return replace(self, routing=replace(self.routing, interleaved=False))

    def of_size(self, microbatch_size: int) -> Self:
        """The model with micro-batches of that size; all sizes share caches."""
        resized = replace(self, microbatch_size=microbatch_size)
        vars(resized)["one_sample"] = self.one_sample
        return resized

    @property
    def recomputation(self) -> Recomputation:
        """Activations that the backward pass recomputes."""
        return self.implementation.recompute if self.recompute is None else self.recompute

    @cached_property
    def execution(self) -> Execution:
        """Execution of a micro-batch on one device."""
        usual, degrees = self.implementation, self.degrees
        precision = self.precision or usual.precision
        divided = (
            usual.sequence_parallel if self.sequence_parallel is None else self.sequence_parallel
        )
        return Execution(
            self.model,
            self.microbatch_size,
            tp=degrees.tp,
            cp=degrees.cp,
            ep=degrees.ep,
            sequence_parallel=divided and degrees.tp > 1,
            attention=self.attention or usual.attention,
            exchange=self.exchange,
            routing=replace(self.routing, dropping_seconds=usual.dropping_seconds),
            precision=precision,
            quantisation=quantisation_of(precision, self.cluster.device),
            quantised_attention=self.quantised_attention,
            quantised_head=self.quantised_head,
            quantised_activation=self.quantised_activation,
            fused=usual.fused_kernels,
            eager=usual.eager,
            accumulation=usual.accumulation_traffic,
            metric_bytes=usual.metric_bytes,
        )

    @cached_property
    def setting(self) -> Setting:
        """Everything that decides a part's seconds and saved bytes: the same for any replicas."""
        return setting_of(self.cluster, self.execution, self.recomputation, self.implementation)

    def parameter_bytes(self, sharding: Sharding) -> ParameterBytes:
        """Bytes kept of each parameter."""
        return self.implementation.parameter_bytes(self.execution.precision, sharding)

    @property
    def tp(self) -> int:
        """Devices that share a layer (N_TP)."""
        return self.degrees.tp

    @property
    def overlaps_chunks(self) -> bool:
        """True if tensor-parallel communication overlaps, in chunks, the GEMMs next to it."""
        return self.tp > 1 and self.implementation.tp_overlap is TensorOverlap.CHUNKED

    def placement(self, layout: Layout) -> DevicePlacement:
        """Placement of the devices, and the ranks that share stages."""
        return self.routes(layout).placement

    def routes(self, layout: Layout) -> Routes:
        """The routes between ranks: the same for all stages, except for ranks that share theirs."""
        sharing = None
        if layout.copies:
            sharing = tuple(tuple(layout.sharing(rank)) for rank in range(layout.pp))
        return self.one_sample._routes(layout.pp, sharing)

    @once
    def _routes(self, pp: int, sharing: tuple[tuple[int, ...], ...] | None) -> Routes:
        placement = DevicePlacement.on(self.cluster, replace(self.degrees, pp=pp), sharing)
        return Routes(self.cluster, self.implementation, placement)

    def devices(self, layout: Layout) -> int:
        """Devices that take part."""
        return self.degrees.devices // self.degrees.pp * layout.pp

    def batch(self, layout: Layout) -> int:
        """Samples of a step (B)."""
        return self.degrees.dp * self.microbatch_size * layout.whole_microbatches

    def model_flops(self, layout: Layout, *, trains: bool = True) -> float:
        """Operations (flop) of a step on one device, without recomputation (for the MFU).

        An evaluation, which has no backward passes, is a third of that.
        """
        return self.step_flops(layout, trains=trains)[0]

    def hardware_flops(self, layout: Layout, *, trains: bool = True) -> float:
        """Operations (flop) of a step on one device, those of recomputation too (for the HFU).

        As in the paper's C_GPU, attention's are counted as if nothing were masked.
        """
        return self.step_flops(layout, trains=trains)[1]

    def step_flops(self, layout: Layout, *, trains: bool = True) -> tuple[float, float]:
        """Both: `model_flops` and `hardware_flops`."""
        of_model, recomputed = self._flops(layout)
        samples = self.batch(layout) / self.devices(layout)
        if not trains:
            return samples * of_model / 3, samples * of_model / 3
        return samples * of_model, samples * (of_model + recomputed)

    @of_any_size
    @once_for_stages
    def _flops(self, layout: Layout) -> tuple[float, float]:
        """Operations (flop) of a sample, over all devices: the model's, and recomputation's."""
        flops = model_flops(self.model, 1)
        if recomputes_units(self):
            return flops, flops / 3
        recomputed = self.layers(layout).recomputed_of_kind.sum(axis=1).tolist()
        again = sum(
            count * recomputed_flops(kind, self.recomputation)
            for kind, count in zip(self.model.kinds, recomputed, strict=True)
        )
        return flops, float(again)

    @of_any_size
    @once_for_stages
    def layers(self, layout: Layout) -> Layers:
        """The layers of each unit, by kind; raises `InvalidConfiguration` if there are too few."""
        return layers_of_units(self.model, self.recomputation, self.cut, layout.units_per_stage)

    def unit_parameters(self, layout: Layout) -> Seconds:
        """For each unit, its parameters on one device of its rank, except for routed experts.

        The embedding is in the first unit, the output layer in the last.
        Where they are tied and on one rank, the output layer adds nothing;
        on two, each has a copy; and so have prediction modules one of the embedding.
        """
        model, ranks = self.model, self.tp
        parameters = self._of_kinds(layout, [kind.layer_parameters(ranks) for kind in model.kinds])
        parameters[0] += model.embedding_parameters(ranks)
        parameters[-1] += model.word_parameters(ranks) * self.copies_of_words(layout)
        parameters[-1] += model.prediction_modules * model.prediction_parameters()
        return parameters

    def copies_of_words(self, layout: Layout) -> int:
        """Number of matrices in the last unit that are as large as the word embedding."""
        own, apart = not self.model.tied_embeddings, layout.ends_are_apart
        embeds = apart and self.model.prediction_modules > 0
        return 1 + embeds if own else int(apart)

    def unit_expert_parameters(self, layout: Layout) -> Seconds:
        """For each unit, the parameters of routed experts on one device of its rank."""
        model, ranks = self.model, self.degrees.ep
        return self._of_kinds(layout, [kind.expert_parameters(ranks) for kind in model.kinds])

    def _of_kinds(self, layout: Layout, of_kind: list[float]) -> Seconds:
        """For each unit, the sum over its layers of so much for one of each kind."""
        total: Seconds = np.array(of_kind) @ self.layers(layout).of_kind
        return total

    @of_any_size
    @once_for_stages
    def by_stride(self, layout: Layout) -> dict[int, Seconds]:
        """The parameters of each unit, by how far apart the devices are that keep the same."""
        parameters = {self.tp: self.unit_parameters(layout)}
        if self.model.experts is not None:
            experts = self.unit_expert_parameters(layout)
            parameters[self.degrees.ep] = experts + parameters.get(self.degrees.ep, 0.0)
        return parameters

    def matrices_by_stride(self, layout: Layout) -> dict[int, Seconds]:
        """The same of matrices of layers, which Muon updates."""
        matrices, tp, ep = [kind.matrices for kind in self.model.kinds], self.tp, self.degrees.ep
        parameters = {tp: self._of_kinds(layout, [m.divided / tp + m.whole for m in matrices])}
        experts = self._of_kinds(layout, [m.routed / ep for m in matrices])
        return parameters | {ep: experts + parameters.get(ep, 0.0)}

    @of_any_size
    @once_for_stages
    def quantised_parameters(self, layout: Layout) -> Seconds:
        """For each unit, the parameters on a device that their GEMMs take quantised."""
        total = np.zeros(layout.units)
        for part, count in part_counts(self, self.layers(layout)):
            total += part.quantised_parameters * count
        return total

    @property
    def quantised_bytes(self) -> float:
        """Bytes that quantisation adds for each such parameter: its copies, or those in place."""
        if (quantisation := self.execution.quantisation) is None:
            return 0.0
        copies = quantisation.copies * quantisation.element
        return copies - (self.execution.number if self.quantised_weights else 0)

    def gathered_bytes(self, layout: Layout, sharding: Sharding) -> Seconds | float:
        """The bytes in which each parameter is gathered; by unit, on average, if they differ."""
        size = self.parameter_bytes(sharding).weights
        if (quantisation := self.execution.quantisation) is None or not self.quantised_weights:
            return size
        parameters: Seconds = sum(self.by_stride(layout).values(), np.zeros(()))
        share = self.quantised_parameters(layout) / np.maximum(parameters, 1.0)
        return size - share * (size - quantisation.gathered_weight)

    def state_share(self, layout: Layout, sharding: Sharding, stride: int | None = None) -> float:
        """The share of its parameters' state that a device keeps and updates.

        Of those that devices so far apart (N_TP by default) keep too.
        """
        degrees = self.degrees
        replicas = degrees.dp_shard * degrees.cp * self.tp // (stride or self.tp)
        return 1.0 if sharding is Sharding.NONE else 1 / (replicas * (1 + len(layout.copies)))

    def kept(self, by_stride: Mapping[int, Seconds], layout: Layout, sharding: Sharding) -> Seconds:
        """The share of these parameters, as in `by_stride`, whose state a device keeps."""
        shares = [
            self.state_share(layout, sharding, stride) * each for stride, each in by_stride.items()
        ]
        total: Seconds = sum(shares, np.zeros(()))
        return total

    def kept_of_ranks(
        self, by_stride: Mapping[int, Seconds], layout: Layout, sharding: Sharding
    ) -> Seconds:
        """The same of each pipeline rank's units."""
        of_ranks = {stride: layout.sums(each) for stride, each in by_stride.items()}
        return self.kept(of_ranks, layout, sharding)

    @of_any_size
    @once_for_stages
    def state_parameters(self, layout: Layout, sharding: Sharding) -> Seconds:
        """For each pipeline rank, the parameters whose state a device keeps and updates."""
        return self.kept_of_ranks(self.by_stride(layout), layout, sharding)

    @of_any_size
    @once_for_stages
    def links(self, layout: Layout) -> Links:
        """The links that communication crosses."""
        return Links(self.routes(layout), self.by_stride(layout))

    def unit_seconds(self, layout: Layout) -> UnitSeconds:
        """Seconds of the passes of each unit."""
        return unit_seconds(self, self.layers(layout))

    @once_for_stages
    def waiting_factor(self, layout: Layout, sharding: Sharding) -> float:
        """Factor of passes' seconds on the slowest of a job's devices to those on a mean one."""
        degrees = replace(self.degrees, pp=layout.pp)
        return waiting_factor(self.cluster, degrees, fully_sharded=sharding is Sharding.FULL)

    @once_for_stages
    def unit_launches(self, layout: Layout) -> UnitSeconds:
        """Seconds in which the host launches the kernels of each unit's passes."""
        return unit_launches(self, self.layers(layout))

    @property
    def dispatch_seconds(self) -> float:
        """Seconds in which the host dispatches a task; of those in a CUDA graph, none."""
        usual, measured = self.implementation, self.cluster.device.dispatch_seconds
        if not usual.dispatch_seconds or usual.cuda_graphs:
            return 0.0
        return usual.dispatch_seconds if measured is None else measured

    @property
    def step_seconds(self) -> float:
        """Seconds that the host takes for each step in addition; none where it is a CUDA graph."""
        measured = self.cluster.device.step_seconds
        if self.implementation.cuda_graphs:
            return 0.0
        return self.implementation.step_seconds if measured is None else measured
