"""Sources that divide work unevenly: lengths of documents, images of samples, routing to experts.

An even step has the same work, its mean over replicas and micro-batches.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from bfpp.schedules import InvalidConfiguration, Operation
from bfpp.schedules.columns import Offsets, Seconds
from bfpp.schedules.settings.recomputation import CORE_ATTENTION, EXPERT_ACTIVATION, EXPERTS
from bfpp.sim.unevenness.counted_numbers import CountedNumbers
from bfpp.sim.unevenness.documents import NO_PACKING, Sequences, packed
from bfpp.sim.unevenness.replicated_step import NOTHING, Effect, ReplicatedStep


class WorkSource:
    """A source without which there would be as much work, in equal parts.

    `is_of_microbatches`: the work goes where a micro-batch goes.
    """

    is_of_microbatches: ClassVar[bool] = True

    @property
    def is_random(self) -> bool:
        """By default, there is chance in it."""
        return True

    def even(self, step: ReplicatedStep, effect: Effect) -> Effect:
        """The mean of each kind of task, over replicas and micro-batches."""
        return Effect(*(step.by_kind(each)[np.newaxis] for each in effect))


class DrawnDocuments(NamedTuple):
    """By replica and micro-batch, over those of full sequences.

    Tokens, with padding; squares of documents; and tokens that are documents'.
    """

    tokens: Seconds
    squares: Seconds
    documents: Seconds


@dataclass(frozen=True, eq=False)
class DocumentLengths(WorkSource):
    """Lengths of documents, packed into sequences of which a micro-batch has some.

    A pass takes its seconds in proportion to the tokens, and core attention's share of them
    (`attention_share`; by default the model's) to the squares of documents. What is sent between
    ranks is in proportion to tokens. Slices of a micro-batch have equal shares of it.

    Costs are of sequences of `packed_length`; documents are packed into as many times that as
    `stretched` says.
    """

    name: ClassVar[str] = "lengths"

    lengths: CountedNumbers
    packing: str = "concatenate"
    packed_length: int | None = None
    attention_share: float | None = None
    stretched: int = 1

    def effect(self, step: ReplicatedStep, random: np.random.Generator) -> Effect:
        """A factor of passes and transfers, by replica and micro-batch."""
        drawn = self.drawn(step, random)
        of_tokens, of_squares = (each[:, step.microbatch] for each in drawn[:2])
        share = step.of_passes(self._attention_share(step))
        passes = (1 - share) * of_tokens + share * of_squares
        moved = np.where(step.is_transfer, of_tokens, 1.0)
        return Effect(np.where(step.graph.is_compute, passes, moved), NOTHING.added)

    def drawn(self, step: ReplicatedStep, random: np.random.Generator) -> DrawnDocuments:
        """The documents of a step."""
        size, length = step.microbatch_size, self._length(step)
        sequences = self._packed(step, random)
        layout = step.graph.layout
        shape = step.replicas, layout.whole_microbatches, size
        chosen = random.permutation(np.resize(np.arange(len(sequences.tokens)), np.prod(shape)))
        tokens, squares, documents = (
            each[chosen].reshape(shape)
            for each in (sequences.tokens, sequences.squares, sequences.documents)
        )
        if self.packing == NO_PACKING:  # all are padded to the longest
            tokens = np.broadcast_to(tokens.max(axis=2, keepdims=True), shape)
            squares = tokens**2
        of_full = size * length
        return DrawnDocuments(
            tokens.sum(axis=2) / of_full,
            squares.sum(axis=2) / (of_full * length),
            documents.sum(axis=2) / of_full,
        )

    def filled(self, step: ReplicatedStep) -> float:
        """The share of tokens that are documents', of a pool of documents."""
        return self._packed(step, np.random.default_rng(0)).filled

    def _packed(self, step: ReplicatedStep, random: np.random.Generator) -> Sequences:
        length = self._length(step) * self.stretched
        return packed(self.lengths, self.packing, length, random)

    def _length(self, step: ReplicatedStep) -> int:
        """Tokens of a full sequence, which the even step's costs are of."""
        if self.packed_length is not None:
            return self.packed_length
        return self.lengths.largest if step.physical is None else step.physical.model.sequence

    def _attention_share(self, step: ReplicatedStep) -> Seconds:
        return _share(step, self.attention_share, {CORE_ATTENTION})


@dataclass(frozen=True, eq=False)
class SampleImages(WorkSource):
    """Images of samples, which an encoder in the first stage turns into tokens.

    `seconds` is the encoder's forward pass of one image; its backward pass takes twice that.
    """

    name: ClassVar[str] = "images"

    images: CountedNumbers
    seconds: float

    TIMES: ClassVar[dict[Operation, float]] = {
        Operation.FORWARD: 1.0,
        Operation.BACKWARD: 2.0,
        Operation.BACKWARD_INPUT: 1.0,
        Operation.BACKWARD_WEIGHT: 1.0,
    }

    def effect(self, step: ReplicatedStep, random: np.random.Generator) -> Effect:
        """Seconds more of the first unit's passes."""
        layout = step.graph.layout
        shape = step.replicas, layout.whole_microbatches, step.microbatch_size
        chances = self.images.counts / self.images.counts.sum()
        images = random.choice(self.images.numbers, shape, p=chances).sum(axis=2)
        times = step.same_for_passes(0.0)
        for operation, each in self.TIMES.items():
            times[operation, 0] = each * self.seconds / layout.slices
        return Effect(NOTHING.factor, images[:, step.microbatch] * step.of_passes(times))


@dataclass(frozen=True, eq=False)
class ExpertRouting(WorkSource):
    """Tokens that a router sent to each expert: `loads` by observation, layer and expert.

    Each micro-batch of a replica is like one observation, drawn at random. One layer is for all.
    The busiest expert-parallel device makes the others of its group wait in each layer: passes take
    as much more, in the share of them that is the experts' (`expert_share`; by default the
    model's). An even step has as many tokens for each device. With a `capacity`, an expert takes
    as many times the mean at most; what is beyond is dropped.
    """

    name: ClassVar[str] = "routing"

    loads: Offsets
    expert_share: float | None = None
    capacity: float | None = None

    @property
    def is_random(self) -> bool:
        """True if there are several observations to draw from."""
        return len(self.loads) > 1

    def effect(self, step: ReplicatedStep, random: np.random.Generator) -> Effect:
        """A factor of passes, by micro-batch and unit."""
        shape = step.replicas, step.graph.layout.whole_microbatches
        observed = random.integers(0, len(self.loads), shape)[:, step.microbatch]
        busiest = self._busiest(step)[observed, np.maximum(step.graph.unit, 0)]
        share = step.of_passes(_share(step, self.expert_share, {EXPERTS, EXPERT_ACTIVATION}))
        return Effect(1 + share * (busiest - 1), NOTHING.added)

    def even(self, step: ReplicatedStep, effect: Effect) -> Effect:
        """None: each device has as much."""
        del step, effect
        return NOTHING

    def _busiest(self, step: ReplicatedStep) -> Seconds:
        """By observation and unit, the busiest device's load over the mean: of layers, the mean."""
        units, devices = step.graph.layout.units, step.degrees.ep
        observations, layers, experts = self.loads.shape
        if experts % devices:
            raise InvalidConfiguration("routing", f"has {experts} experts, for --ep {devices}")
        mean = self.loads.mean(axis=2, keepdims=True)
        most = np.inf if self.capacity is None else self.capacity * mean
        taken = np.minimum(self.loads, most).reshape(observations, layers, devices, -1)
        of_device = np.maximum(mean[:, :, 0] * experts / devices, 1)
        of_layers = taken.sum(axis=3).max(axis=2) / of_device
        if layers < units:
            if layers > 1:
                raise InvalidConfiguration("routing", f"has {layers} layers, for {units} units")
            return np.repeat(of_layers, units, axis=1)
        unit = np.arange(layers) * units // layers
        return np.stack([of_layers[:, unit == each].mean(axis=1) for each in range(units)], axis=1)


def _share(step: ReplicatedStep, given: float | None, modules: Collection[str]) -> Seconds:
    """By operation and unit, the share of a pass: as given, or that of the model's modules."""
    if given is not None or step.physical is None:
        return step.same_for_passes(given or 0.0)
    from bfpp.sim.costs.module_shares import module_shares  # loads all of the operators

    return module_shares(step.physical, step.graph.layout, modules)
