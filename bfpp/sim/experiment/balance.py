"""Layers cut over stages so that the largest stage is as small as can be, in time or in memory.

A model is a row of pieces: its embedding, its layers, its head. A stage is a run of them, the
first with the embedding and the last with the head. What a stage takes is a sum over its pieces,
so every cut can be compared exactly. Of cuts with the same largest stage, the one whose squares
sum up to least is the evenest.

Several stages on a rank take the sum of their times, and the others wait for the fullest rank.
Not all cuts are compared then: single layers leave the fullest rank for as long as that helps.
Memory is not balanced so: what such a rank keeps at its peak is no sum of what its stages keep
at theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from bfpp.schedules import (
    Communication,
    InvalidConfiguration,
    Layout,
    Schedule,
    Sharding,
    build_graph,
)
from bfpp.schedules.columns import Seconds as Numbers
from bfpp.schedules.graph.counts import peak_activations
from bfpp.schedules.layout.cut import Balance
from bfpp.schedules.settings.recomputation import NO_RECOMPUTATION, Recomputation
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.costs.units.activations import UnitActivations, unit_activations
from bfpp.sim.costs.units.seconds import UnitSeconds, parts
from bfpp.sim.memory.gradients_alive import end_parameters

Matrix = npt.NDArray[np.float64]
"""Seconds of a stage, by its first layer and the first one after it."""

Cut = tuple[int, ...]
"""The number of layers of each stage."""

EQUAL = 1 + 1e-9
"""Sums of the same numbers in another order are equal."""

DIGITS = 12
"""Decimal digits to which shares of the whole are compared."""

MOST_STAGES = 20_000_000
"""Entries of all stages' tables, by first layer and the first one after them: 8 bytes each."""


def balanced(
    balance: Balance,
    physical: PhysicalCosts,
    schedule: Schedule,
    layout: Layout,
    communication: Communication,
) -> tuple[int, ...]:
    """The layers of each stage that balance time or memory.

    Raises `InvalidConfiguration` for more stages on a rank than can be balanced.
    """
    _require_balance(balance, layout, physical.model.layers)
    physical.recomputation.require(layout.stages)
    pieces = Pieces(physical, layout)
    if balance is Balance.TIME:
        seconds = [pieces.seconds(stage) for stage in range(layout.stages)]
        return evened_over_ranks(seconds, balanced_cut(seconds), layout)
    graph = build_graph(schedule, layout, communication)
    alive = peak_activations(graph)[layout.rank_of_stage]
    return balanced_cut(
        [
            pieces.memory(stage, communication.sharding, alive[stage])
            for stage in range(layout.stages)
        ]
    )


def _require_balance(balance: Balance, layout: Layout, layers: int) -> None:
    if layout.stages * layers**2 > MOST_STAGES:
        raise InvalidConfiguration(
            "balance", f"{layers:,} layers over {layout.stages:,} stages are too many to balance"
        )
    if balance is Balance.MEMORY and (layout.loops > 1 or layout.copies):
        raise InvalidConfiguration("balance", "memory needs schedules with one stage on each rank")


def balanced_cut(taken: list[Matrix]) -> tuple[int, ...]:
    """The layers of each stage, given the seconds of each with any run of layers.

    The largest is the least that can be, and among those cuts the sum of squares.
    """
    least = best_cut(taken, np.maximum)[0]
    within = [np.where(each <= least * EQUAL, each**2, np.inf) for each in taken]
    return best_cut(within, np.add)[1]


def evened_over_ranks(taken: list[Matrix], cut: Cut, layout: Layout) -> Cut:
    """The cut after moves of a layer, each the one that most relieves the fullest rank.

    Of moves that leave it as full, what counts is the sum of squares over ranks, then the
    same of stages: the largest, and the squares.
    """
    stages = [layout.stages_of(rank) for rank in range(layout.pp)]
    if max(map(len, stages)) == 1:
        return cut

    def of_ranks(of_stages: Matrix) -> Matrix:
        return np.stack([of_stages[:, own].sum(axis=1) for own in stages], axis=1)

    best = np.array([cut])
    while True:
        [seconds] = of_ranks(_taken(taken, best))
        moved = np.concatenate([best, _moves(best[0], stages[int(seconds.argmax())])])
        of_stages = _taken(taken, moved)
        keys = [each for of in (of_ranks(of_stages), of_stages) for each in _unevenness(of)]
        first = int(np.lexsort(keys[::-1])[0])
        if not first:
            return tuple(best[0].tolist())
        best = moved[first : first + 1]


def _taken(taken: list[Matrix], cuts: npt.NDArray[np.int64]) -> Matrix:
    """Cost of each stage, by cut."""
    end = np.cumsum(cuts, axis=1)
    return np.stack(
        [each[end[:, at] - cuts[:, at], end[:, at]] for at, each in enumerate(taken)], axis=1
    )


def _moves(cut: npt.NDArray[np.int64], own: list[int]) -> npt.NDArray[np.int64]:
    """The cuts with a layer of one of a rank's `own` stages in any other stage."""
    one = np.eye(len(cut), dtype=np.int64)
    given = one[[stage for stage in own if cut[stage]]]
    moved: npt.NDArray[np.int64] = (cut - given[:, None] + one).reshape(-1, len(cut))
    return moved


def _unevenness(taken: Matrix) -> tuple[Numbers, Numbers]:
    """By cut, the largest and the sum of squares; equal where they differ by rounding."""
    shares = taken / taken[0].sum()
    return shares.max(axis=1).round(DIGITS), (shares**2).sum(axis=1).round(DIGITS)


def best_cut(taken: list[Matrix], joined: np.ufunc) -> tuple[float, tuple[int, ...]]:
    """The least that all stages take together, joined so, and the cut that takes it.

    By dynamic programming: `total[end]` is the least of the stages so far if they hold the
    layers before `end`.
    """
    total, firsts = taken[0][0], []
    for stage in taken[1:]:
        all_firsts = joined(total[:, None], stage)
        firsts.append(all_firsts.argmin(axis=0))
        total = all_firsts.min(axis=0)
    borders = [len(total) - 1]
    for first in reversed(firsts):
        borders.append(int(first[borders[-1]]))
    return float(total[-1]), tuple(np.diff([0, *reversed(borders)]).tolist())


@dataclass(frozen=True, eq=False)
class Pieces:
    """Time and memory of a model's pieces on the devices of a layout's ranks."""

    physical: PhysicalCosts
    layout: Layout

    @cached_property
    def _alone(self) -> Layout:
        """A unit for each piece; the ends are on two ranks where they are so in the layout."""
        apart = self.layout.ends_are_apart
        placement = (*(0,) * (self.physical.model.layers + 1), int(apart))
        return Layout(1 + apart, 1, placement=placement)

    def _costs(self, policy: Recomputation) -> PhysicalCosts:
        cut = (0, *(1,) * self.physical.model.layers, 0)
        return replace(self.physical, recompute=policy, cut=cut)

    @cached_property
    def _kept(self) -> PhysicalCosts:
        """Their costs where nothing is recomputed."""
        return self._costs(NO_RECOMPUTATION)

    @cached_property
    def _recomputed(self) -> PhysicalCosts:
        """Their costs where all layers are recomputed by the policy."""
        return self._costs(self.physical.recomputation._replace(layers=None))

    @cached_property
    def units(self) -> UnitSeconds:
        """The passes of each piece, where all layers are recomputed by the policy."""
        return self._recomputed.unit_seconds(self._alone)

    def seconds(self, stage: int) -> Matrix:
        """Of the passes of a micro-batch."""
        kept = self._kept.unit_seconds(self._alone)
        return self._summed(stage, *map(_all_passes, (kept, self.units)))

    @cached_property
    def _parameters(self) -> dict[int, Numbers]:
        return self._kept.by_stride(self._alone)

    def state_parameters(self, sharding: Sharding) -> Numbers:
        """Parameters of each piece whose training state is on a device, after sharding."""
        return self.physical.kept(self._parameters, self.layout, sharding)

    def memory(self, stage: int, sharding: Sharding, alive: int | Matrix) -> Matrix:
        """Bytes at the peak, where `alive` micro-batches keep their activations, of all or each."""
        each = self.physical.parameter_bytes(sharding)
        whole = sum(self._parameters.values(), np.zeros(()))
        resident = end_parameters(self._kept, self._alone) if sharding is Sharding.FULL else whole
        state = (
            each.state * self.state_parameters(sharding)
            + (each.weights + each.gradients) * resident
            - self._saved(sharding)
        )
        saved = [self._activations(of).saved for of in (self._kept, self._recomputed)]
        passing = (
            alive * self._summed(stage, *saved) + self._transient(stage)
        ) / self.layout.slices
        update = self._summed(stage, each.update * whole)
        return self._summed(stage, state) + np.maximum(passing, update)

    def _saved(self, sharding: Sharding) -> Numbers:
        """Bytes of each piece's state that Muon does without."""
        matrices = self._kept.matrices_by_stride(self._alone)
        kept = self.physical.kept(matrices, self.layout, sharding)
        return self.physical.implementation.narrower_matrices * kept

    def _activations(self, physical: PhysicalCosts) -> UnitActivations:
        return unit_activations(physical, physical.layers(self._alone))

    def _transient(self, stage: int) -> Matrix:
        """Bytes that the most demanding piece needs while it runs backward."""
        _, *of_layers, of_head = self._activations(self._recomputed).transient.tolist()
        most: Matrix = np.zeros((len(of_layers) + 1,) * 2)
        for first in range(len(of_layers)):
            most[first, first + 1 :] = np.maximum.accumulate(of_layers[first:])
        if stage == self.layout.stages - 1:
            # What the head saves is gone when the layers before it run backward.
            most = np.maximum(most - parts(self._kept).head.saved_bytes, of_head)
        return most

    def _summed(self, stage: int, kept: Numbers, recomputed: Numbers | None = None) -> Matrix:
        """The sums over the pieces of a stage, by its first layer and the first after it.

        The first layers of a stage are those that are recomputed.
        """
        again = kept if recomputed is None else recomputed
        policy = self.physical.recomputation.of_stage(stage)
        before, before_again = (np.append(0.0, np.cumsum(each[1:-1])) for each in (kept, again))
        first, end = np.ogrid[: len(before), : len(before)]
        count = np.maximum(end - first, 0)
        middle = first + (count if policy.layers is None else np.minimum(count, policy.layers))
        total = before_again[middle] - before_again[first] + before[end] - before[middle]
        if stage == 0:
            total += kept[0]
        if stage == self.layout.stages - 1:
            total += (again if policy.layers is None else kept)[-1]
        sums: Matrix = np.where(end >= first, total, np.inf)
        return sums


def _all_passes(units: UnitSeconds) -> Numbers:
    return units.forward + units.backward_input + units.backward_weight
