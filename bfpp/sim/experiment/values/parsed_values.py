"""Values of an experiment as objects: the model, cluster, software and policies that texts name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from bfpp.schedules import Degrees, InvalidConfiguration
from bfpp.schedules.settings.attention import Attention, parse_attention
from bfpp.schedules.settings.offloading import parse_offload_modules
from bfpp.schedules.settings.precision import Precision, parse_precision
from bfpp.schedules.settings.recomputation import Recomputation, parse_recomputation
from bfpp.schedules.settings.tensor_overlap import TensorOverlap, parse_tensor_overlap
from bfpp.sim.cluster.cluster import Cluster, load_cluster
from bfpp.sim.cluster.constants import Constants, load_constants
from bfpp.sim.cluster.software_profiles import (
    Implementation,
    find_implementation,
    implementation_on,
)
from bfpp.sim.experiment.values import Values
from bfpp.sim.experiment.values.uneven import SOURCES_OF_UNEVENNESS
from bfpp.sim.memory.optimizer_states import MUON, OptimizerStates
from bfpp.sim.models.layer_kinds import other_mix
from bfpp.sim.models.model import Transformer, load_model

if TYPE_CHECKING:  # loaded where a model is simulated, so that abstract costs are there soon
    from bfpp.sim.operators.operators import Routing

Value = TypeVar("Value")


@dataclass(frozen=True, repr=False)
class ParsedValues(Values):
    """Values, and the objects that they name or make together.

    Raises `InvalidConfiguration`, which names the value at fault, when one is asked for that
    cannot be.
    """

    @property
    def _degrees(self) -> Degrees:
        return Degrees(self.pp, self.dp, self.tp, self.cp, self.ep, self.dp_replicate)

    @property
    def hybrid(self) -> bool:
        """HSDP: only some of the replicas shard their state together."""
        return self._degrees.is_hybrid

    @property
    def muon(self) -> bool:
        """True if the optimizer makes momentum of matrices orthogonal."""
        return self.update_rule == MUON

    @property
    def is_uneven(self) -> bool:
        """True if replicas, ranks or micro-batches differ."""
        return any(getattr(self, name) for name in SOURCES_OF_UNEVENNESS)

    def require_even(self, where: str) -> None:
        """Raise `InvalidConfiguration` for replicas that differ, where they are not simulated."""
        for name in SOURCES_OF_UNEVENNESS:
            if getattr(self, name):
                raise InvalidConfiguration(name, f"{where} simulates alike replicas alone")

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

    @cached_property
    def _cluster(self) -> Cluster:
        if self.cluster is None:
            raise InvalidConfiguration("cluster", "must be given together with --model")
        if isinstance(self.cluster, str):
            return load_cluster(self.cluster, self._constants.clusters)
        return self.cluster

    @property
    def cluster_doubts(self) -> tuple[str, ...]:
        """Numbers of the cluster's file, if there is one, that are likely in another unit."""
        return () if self.cluster is None else self._cluster.doubts

    @property
    def _implementation(self) -> Implementation:
        named, known = self.implementation, self._constants.implementations
        if named is None:
            usual = implementation_on(self._cluster, fitted=known)
        else:
            usual = find_implementation(named, known) if isinstance(named, str) else named
        usual = replace(
            usual,
            cuda_graphs=self.cuda_graphs or usual.cuda_graphs,
            tp_overlap=self._tp_overlap or usual.tp_overlap,
        )
        states = OptimizerStates(
            self.moments, self.master_weights, self.main_gradients, self.update_rule
        )
        return states.of(usual, self._precision or usual.precision)

    @property
    def software(self) -> str | None:
        """The name of the implementation, of a model on a cluster."""
        if self.model is None or self.cluster is None:
            return None
        return self._implementation.name

    @property
    def warnings(self) -> list[str]:
        """Reasons why a prediction of a model on a cluster may not be the intended one."""
        if self.model is None or self.cluster is None:
            return []
        whole = replace(self, layers=None).transformer
        reasons = [
            *self.cluster_doubts,
            self._implementation.too_old_for(self._cluster),
            other_mix(self.transformer, whole),
        ]
        return [each for each in reasons if each is not None]

    @property
    def recomputation(self) -> Recomputation | None:
        """The activation checkpointing that is asked for, if any is."""
        return _parsed(parse_recomputation, self.recompute)

    @property
    def _tp_overlap(self) -> TensorOverlap | None:
        return _parsed(parse_tensor_overlap, self.tp_overlap)

    @property
    def _precision(self) -> Precision | None:
        return _parsed(parse_precision, self.precision)

    @property
    def _attention(self) -> Attention | None:
        return _parsed(parse_attention, self.attention)

    @property
    def _offload_modules(self) -> frozenset[str]:
        return _parsed(parse_offload_modules, self.offload_modules) or frozenset()

    @property
    def _routing(self) -> Routing:
        from bfpp.sim.operators.operators import Routing

        return Routing(
            self.capacity_factor,
            self.expert_imbalance,
            self.dispatch == "deduplicated",
            self.shared_overlap,
            quantised=self.quantised_dispatch,
            fused=self.fused_router,
            interleaved=self.microbatch_overlap,
            fused_experts=self.fused_experts,
        )


def _parsed(parse: Callable[[str], Value], value: Value | str | None) -> Value | None:
    """Parse a text; anything but a text is parsed already."""
    return parse(str(value)) if isinstance(value, str) else value
