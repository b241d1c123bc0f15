"""Bytes of a plan's units on each rank, before any is made."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

from torch import Tensor, nn

from bfpp.executor.devices.flat_buffers import size_of
from bfpp.executor.devices.uncompiled import uncompiled
from bfpp.executor.memory.allocations import Allocations
from bfpp.executor.memory.building import layout_of, made_together
from bfpp.executor.memory.rank_memory import counts_of, reduced_in_place, users_of
from bfpp.executor.model.batches import kept_bytes
from bfpp.executor.model.model import make
from bfpp.executor.model.parallel.exchange import ThreadExchange, ThreadShards
from bfpp.executor.model.parallel.layers import divide
from bfpp.executor.model.parallel.region import Region
from bfpp.executor.optimizer.optimizers import TRIED, moment_bytes, trial, update
from bfpp.executor.plan.first_weights import stored_tensors
from bfpp.executor.plan.plan import Plan
from bfpp.schedules import Operation


class Shares(NamedTuple):
    """Elements of a device's share of a unit's trained weights, and of its frozen ones.

    Of the trained ones of each share, `matrices` are Muon's.
    """

    trained: int
    frozen: int
    matrices: tuple[int, ...]

    @property
    def size(self) -> int:
        """All of them."""
        return self.trained + self.frozen


def shares_of(plan: Plan, unit: int) -> Shares:
    """Sizes of a unit, by the shapes of its parameters."""
    own, tied, frozen = layout_of(plan, unit, _region(plan))
    trained = own.share + (tied.share if tied else 0)
    matrices = tuple(own.matrices_in(share) for share in range(plan.shares))
    return Shares(trained, frozen.share if frozen else 0, matrices)


def _region(plan: Plan) -> Region:
    return Region(ThreadShards(ThreadExchange(plan.tp), 0), plan.sequence_parallel)


def resident_bytes(plan: Plan, rank: int) -> dict[str, float]:
    """Bytes that are on a device of a rank all the time: of its state, and in buffers.

    Of the share that takes most: of matrices, Muon keeps less than AdamW does of all else.
    """
    units = plan.graph.layout.units_of(rank)
    shares = {unit: shares_of(plan, unit) for unit in units}
    number, full = plan.dtype.itemsize, plan.state_dtype.itemsize
    in_place = number == full and not counts_of(plan, Operation.GATHER, rank)
    moments = moment_bytes(plan.optimization, plan.state_dtype)
    kept, less = full + moments, moments - full
    matrices = min(map(sum, zip(*(each.matrices for each in shares.values()), strict=True)))
    apart = {*units} - reduced_in_place(plan, rank)
    weights = [
        max(shares[unit].size for unit in users)
        for users in users_of(plan, units, "weight_buffer").values()
        if not in_place
    ]
    gradients = [
        max(shares[unit].trained for unit in users)
        for users in users_of(plan, units, "gradient_buffer").values()
    ]
    return {
        "state": sum(
            (kept + full * (unit in apart)) * shares[unit].trained + full * shares[unit].frozen
            for unit in units
        )
        - less * matrices,
        "weights": number * plan.shares * sum(weights),
        "gradients": plan.gradient_dtype.itemsize * plan.shares * sum(gradients),
    }


class StartMemory(NamedTuple):
    """The most bytes of tensors in a process before its first step, and those on its host alone.

    On the host are the modules that the model was given, and the layers that are made just then.
    """

    peak: int
    host: int


def start_bytes(plan: Plan, ranks: Iterable[int], *, restores: bool, read: int = 0) -> StartMemory:
    """Memory of a process that makes workers of these `ranks`, one after another.

    Where the state `restores` from a checkpoint, or will be saved, buffers and moments are there
    before the first step, too, and `read` bytes of stored pieces. The first batch is there all the
    time, if a loader keeps it.
    """
    given, size = _given(plan) + kept_bytes(plan.model), plan.state_dtype.itemsize
    left = most = making = resident = largest = 0
    for rank in ranks:
        for unit in plan.graph.layout.units_of(rank):
            shares = shares_of(plan, unit)
            left += size * shares.size
            largest = max(largest, shares.trained)
            own, buffers = _making(plan, unit)
            making, most = max(making, own), max(most, left + own)
            left += buffers
            resident += buffers
        resident += round(sum(resident_bytes(plan, rank).values()))
    if restores:
        most = max(most, resident + max(largest * _dummy_step_bytes(plan), read))
    return StartMemory(given + most, given + making)


def _dummy_step_bytes(plan: Plan) -> int:
    """Bytes for each element of a part while the optimizer is let make its moments."""
    optimizer = trial(plan.optimization, plan.state_dtype)
    allocations = Allocations()
    with allocations.seen():
        update(optimizer)
    return plan.state_dtype.itemsize + allocations.peak // TRIED


def _given(plan: Plan) -> int:
    """Bytes of the modules that the model was given, which every process has whole."""
    modules = [make(plan.model.layers[each], each) for each in plan.traced.kept]
    return size_of(chain(*map(_tensors, modules)))


@uncompiled()
def _making(plan: Plan, unit: int) -> tuple[int, int]:
    """The most bytes that it takes to make a unit's layers in turn; and those of their buffers."""
    most = left = 0
    for group in made_together(plan, unit):
        allocations = Allocations(outline=group[0] not in plan.traced.kept)
        with allocations.seen():
            outlines = {each: plan.outline(each) for each in group}
            if plan.model.weights and allocations.outline:
                plan.model.weights.fill(stored_tensors(plan.model, outlines, plan.traced.shared))
            layers = {each: divide(layer, _region(plan)) for each, layer in outlines.items()}
        most = max(most, left + allocations.peak)
        own = [layer for each, layer in layers.items() if each in plan.cuts[unit]]
        left += sum(buffer.nbytes for layer in own for buffer in layer.buffers())
    return most, left


def _tensors(module: nn.Module) -> Iterable[Tensor]:
    return chain(module.parameters(), module.buffers())
