"""The plan of a run: everything that its ranks agree on before it begins."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
from torch import nn

from bfpp.executor.devices.compiled import load_compiler
from bfpp.executor.devices.messages import Form, Tree, tensors_of
from bfpp.executor.devices.uncompiled import uncompiled
from bfpp.executor.model.batches import bits, require_function, require_whole, samples_of
from bfpp.executor.model.buffers import require_in_order, shared_after
from bfpp.executor.model.model import (
    GENERATOR,
    Model,
    build,
    compute_in,
    cut,
    cut_as,
    drawing,
    named,
)
from bfpp.executor.model.parallel.exchange import ThreadExchange, ThreadShards
from bfpp.executor.model.parallel.layers import divide, divided_form, divided_loss
from bfpp.executor.model.parallel.region import Region
from bfpp.executor.model.recomputation import counted_layers, require_recomputable
from bfpp.executor.model.tracing.tracing import Traced, trace
from bfpp.executor.optimizer.optimizers import require_elementwise, require_rates
from bfpp.executor.plan.first_weights import require_stored, stored_tensors
from bfpp.executor.plan.offloads import Offloads
from bfpp.executor.plan.ranks import Ranks
from bfpp.executor.settings import DType
from bfpp.schedules import InvalidConfiguration, TaskGraph
from bfpp.schedules.settings.offloading import require_share
from bfpp.schedules.settings.recomputation import NO_RECOMPUTATION

DTYPES = {
    DType.FLOAT64: torch.float64,
    DType.FLOAT32: torch.float32,
    DType.BFLOAT16: torch.bfloat16,
    DType.FLOAT16: torch.float16,
}

REMEMBERED = 8
"""Size of the cache of traces: more steps than are under way or loaded ahead at a time."""


@dataclass(frozen=True, eq=False)
class Plan(Ranks):
    """A step's graph, the model it trains, and how; and the graph of an evaluation, if any."""

    model: Model
    forward_graph: TaskGraph | None = None

    def __post_init__(self) -> None:
        if self.compile:
            load_compiler()

    @cached_property
    def evaluating(self) -> Plan | None:
        """Forward passes over the model's held-out batches, in the same buffers.

        Raises `InvalidConfiguration` for a model without such batches.
        """
        if self.forward_graph is None:
            return None
        if self.model.held_out is None:
            raise InvalidConfiguration(
                "evaluation", "the model has no held-out batches (Model.held_out, --evaluate-text)"
            )
        model = replace(self.model, batch=self.model.held_out)
        return replace(self, graph=self.forward_graph, model=model, forward_graph=None)

    @cached_property
    def offloads(self) -> Offloads:
        """The activations that the graph offloads, and when."""
        return Offloads.of(self.graph)

    @cached_property
    def shares_buffers_after(self) -> frozenset[int]:
        """The tasks with which the first replica gives its buffers that passes change to others."""
        return shared_after(self.graph) if self.traced.moving else frozenset()

    @cached_property
    def cuts(self) -> list[range]:
        """The layers of each unit."""
        if self.cut is None:
            return cut(self.model, self.graph.layout.units, self.ends)
        return cut_as(self.cut, self.model, self.graph.layout, self.ends)

    @cached_property
    def traced(self) -> Traced:
        """The trace of the layers, made without computing."""
        return self._trace(0)

    def _trace(self, step: int) -> Traced:
        traced = trace(
            self.model,
            self.cuts,
            self.microbatch_size,
            self.dtype,
            self.seed,
            step,
            self.keeps_float32,
            ties_ends=self.graph.communication.tied_embeddings,
        )
        if self.tp == 1 or not self.sequence_parallel:
            return traced
        divided_form(traced.inputs, self.tp)  # a single unit, which sends nothing, is divided too
        *forms, last = traced.forms
        return replace(traced, forms=[*(divided_form(form, self.tp) for form in forms), last])

    @cached_property
    def tied(self) -> dict[str, str]:
        """The tied parameters: their names in the last unit, and in the first."""
        first, last = self.cuts[0], self.cuts[-1]
        return {
            later: earlier
            for later, earlier in self.traced.shared.items()
            if named(earlier)[0] in first and named(later)[0] in last and first != last
        }

    @cached_property
    def _traced(self) -> dict[str, Traced]:
        """Cache of traces by the form of the inputs."""
        return {str(self.traced.inputs): self.traced}

    def traced_at(self, step: int) -> Traced:
        """The trace of a step: with its first micro-batch, if steps vary."""
        if not self.model.varies:
            return self.traced
        with GENERATOR:  # ranks in one process ask at the same time
            return self._varying(step)

    @cached_property
    def _varying(self) -> Callable[[int], Traced]:
        """Traces by step, cached for the last steps: each of their micro-batches asks for one."""
        return lru_cache(REMEMBERED)(self._traced_with)

    def _traced_with(self, step: int) -> Traced:
        """A trace with the first micro-batch of a step."""
        inputs, _ = samples_of(self.model, step, self.samples(0, 0))
        form = str(Form.of(inputs, "a batch has a"))
        if form not in self._traced:
            self._traced[form] = self._trace(step)
        return self._traced[form]

    def check(self) -> None:
        """Raises `InvalidConfiguration` for a model that cannot be cut, or cannot be run so."""
        if self.graph.layout.slices > 1:
            raise InvalidConfiguration("slices", "slices of micro-batches cannot be trained yet")
        require_share(self.offload_share)
        _ = self.traced
        if self.evaluating:
            _ = self.evaluating.traced
        require_function(self.model, self.microbatch_size)
        require_whole(self.model, self.microbatches * self.microbatch_size)
        if self.reduce_dtype.itemsize > self.gradient_dtype.itemsize:
            raise InvalidConfiguration(
                "reduce_precision",
                f"{self.reduce_precision} is more than gradients have, {self.gradient_dtype}",
            )
        if self.recomputation != NO_RECOMPUTATION:
            self.recomputation.require(self.graph.layout.stages)
            outlines = {each: self.outline(each) for each in counted_layers(self.model)}
            require_recomputable(self.recomputation, outlines, self.traced.random)
            if self.compile and self.traced.moving:
                raise InvalidConfiguration(
                    "compile",
                    f"layer {min(self.traced.moving)} has buffers that passes change, with which "
                    "compiled layers are not run again: --recompute full or none",
                )
        require_in_order(self.graph, self.traced.moving)
        self._require_divisible()
        self._require_tied_alike()
        self._require_stored()
        require_elementwise(self.optimization)
        require_rates(self.optimization.rates)
        if self.graph.communication.eager:
            raise InvalidConfiguration("eager", "is for the network to choose, not for bfpp run")
        self._require_whole_matrices()
        if self.optimization.needs_norm and not self.graph.communication.clipping:
            raise InvalidConfiguration(
                "clipping", "the task graph measures no norm to clip or to skip steps by"
            )

    def _require_whole_matrices(self) -> None:
        """Raise `InvalidConfiguration` where Muon's matrices cannot be gathered."""
        needs, layout = self.optimization.is_muon, self.graph.layout
        if needs and not self.graph.communication.muon:
            raise InvalidConfiguration(
                "optimizer", "muon needs a task graph in which matrices are made orthogonal"
            )
        if needs and layout.copies and self.is_sharded:
            raise InvalidConfiguration(
                "optimizer",
                "muon gathers no matrices from two pipeline ranks: copies of stages need "
                "--sharding none",
            )

    def _require_divisible(self) -> None:
        """Raise `InvalidConfiguration` for layers that tensor-parallel ranks cannot divide."""
        if self.tp > 1:
            region = Region(ThreadShards(ThreadExchange(self.tp), 0), self.sequence_parallel)
            divided_loss(self.model.loss, region)
            for each in range(len(self.model.layers)):
                divide(self.outline(each), region, f"layer {each}")

    def _require_tied_alike(self) -> None:
        """Raise `InvalidConfiguration` for ends that share nothing, or not in the same way."""
        if self.graph.communication.tied_embeddings and not self.traced.shared:
            reason = "the first and the last stage share no parameter"
            raise InvalidConfiguration("tied_embeddings", reason)
        for names in self.tied.items():
            layers = [self.compute_in(self.outline(named(name)[0])) for name in names]
            later, earlier = (
                layer.get_parameter(named(name)[1])
                for layer, name in zip(layers, names, strict=True)
            )
            if (later.shape, later.dtype) != (earlier.shape, earlier.dtype):
                raise InvalidConfiguration(
                    "model",
                    f"ties {names[0]}, {[*later.shape]} in {later.dtype}, to {names[1]}, "
                    f"{[*earlier.shape]} in {earlier.dtype}",
                )

    def _require_stored(self) -> None:
        """Raise `InvalidConfiguration` unless the stored weights are those of the model."""
        if self.model.weights is None:
            return
        layers = {each: self.outline(each) for each in range(len(self.model.layers))}
        require_stored(self.model, layers, self.traced.shared, self.traced.moving)

    def build(self, layers: Iterable[int]) -> dict[int, nn.Module]:
        """The modules of some layers, by their number, with the first weights."""
        made = self._made(layers)
        if self.model.weights:
            self.model.weights.fill(stored_tensors(self.model, made, self.traced.shared))
        return made

    def _made(self, layers: Iterable[int]) -> dict[int, nn.Module]:
        return build(self.model, layers, self.seed, self.traced.kept)

    def compute_in(self, layer: nn.Module) -> nn.Module:
        """A layer that computes in this precision, except for its float32 modules."""
        return compute_in(layer, self.dtype, self.keeps_float32)

    @uncompiled()
    def outline(self, layer: int) -> nn.Module:
        """A layer's module, to look at; without values, if it is not kept by somebody else."""
        if layer in self.traced.kept:
            return self._made([layer])[layer]
        with torch.device("meta"):
            return self._made([layer])[layer]

    @property
    def forms(self) -> list[Form]:
        """The form of each unit's output for a micro-batch of the first step."""
        return self.traced.forms

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the buffers to compute with."""
        return DTYPES[self.precision]

    @property
    def state_dtype(self) -> torch.dtype:
        """The precision of the weights that the optimizer updates."""
        return torch.promote_types(self.dtype, torch.float32)

    @property
    def gradient_dtype(self) -> torch.dtype:
        """The precision of the buffers that micro-batches' gradients are added to.

        A sum of many in 16 bits would lose terms that are small compared with the sum.
        """
        return self.state_dtype

    @property
    def reduce_dtype(self) -> torch.dtype:
        """The precision of gradients in reductions."""
        return DTYPES[self.reduce_precision] if self.reduce_precision else self.gradient_dtype

    @property
    def microbatches(self) -> int:
        """Micro-batches of a step over all replicas."""
        return self.graph.layout.microbatches * self.dp

    def samples(self, replica: int, microbatch: int) -> range:
        """The samples of a step's batch that are one replica's micro-batch."""
        first = self.number_of(replica, microbatch) * self.microbatch_size
        return range(first, first + self.microbatch_size)

    def number_of(self, replica: int, microbatch: int) -> int:
        """The number of one replica's micro-batch among those of all replicas."""
        return replica * self.graph.layout.microbatches + microbatch

    def batch(self, step: int, replica: int, microbatch: int) -> tuple[Tree, Tree]:
        """Inputs and targets of one replica's micro-batch.

        Raises `InvalidConfiguration` for inputs of another form than the step's first ones have.
        """
        samples = self.samples(replica, microbatch)
        inputs, targets = samples_of(self.model, step, samples)
        self.traced_at(step).inputs.require(inputs, f"batch({step}, {samples}) returns inputs of")
        return inputs, targets

    def drawing(self, step: int, number: int, layer: int) -> AbstractContextManager[None]:
        """Seed a layer's pass over a micro-batch of a step, numbered among those of all."""
        if layer not in self.traced.random:
            return nullcontext()
        return drawing(self.seed, step, number, layer)

    @property
    def digest(self) -> str:
        """A hash of all that ranks must agree on: for their messages to match, and their data."""
        data = [bits(part) for part in tensors_of(self.batch(0, 0, 0))]
        agreed = (
            self.graph.digest, self.cuts, self.forms, self.dp, self.dp_replicate,
            self.tp, self.sequence_parallel,
            self.microbatch_size, self.precision, self.reduce_dtype, self.keeps_float32,
            self.activations, str(self.recomputation), self.offload_share,
            self.optimization, self.seed,
            self.evaluation, self.evaluating and self.evaluating.digest,
            [part.numpy().tobytes() for part in data],
        )  # fmt: skip
        return hashlib.sha256(repr(agreed).encode()).hexdigest()
