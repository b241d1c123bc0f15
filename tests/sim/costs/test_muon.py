"""Muon in predictions: its matrices, its GEMMs, its states, and who makes which matrix."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import bfpp
from bfpp.schedules import Operation, Sharding
from bfpp.sim.cluster.software_profiles import BFPP, CURRENT, Implementation
from bfpp.sim.costs.units.muon import orthogonalising_seconds
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.memory.device_memory import rank_memories
from bfpp.sim.models.matrix_shapes import MatrixShape, matrix_shapes
from bfpp.sim.models.model import load_model
from bfpp.sim.operators.muon import newton_schulz, working_bytes

DENSE = Experiment(
    "1f1b", model="llama3-8b", cluster="dgx-h100", pp=4, dp=2, tp=2, microbatches=8,
    update_rule="muon", clipping=True,
)  # fmt: skip


@pytest.mark.parametrize(
    "name", ["llama3-8b", "gpt3-175b", "deepseek-v3", "mixtral-8x22b", "bert-52b"]
)
def test_the_matrices_of_a_layer_are_those_that_are_counted(name: str) -> None:
    for kind in load_model(name).kinds:
        found, counted = matrix_shapes(kind), kind.matrices
        assert sum(each.parameters for each in found if each.is_routed) == counted.routed
        assert sum(each.parameters for each in found if not each.is_routed) == (
            counted.divided + counted.whole
        )


def test_the_operations_of_a_matrix() -> None:
    """Of m x n in each of five steps: 4 m^2 n + 2 m^3, whichever side is longer."""
    wide, tall = (newton_schulz(MatrixShape(*sides)) for sides in ((3, 7), (7, 3)))
    assert wide.flops == tall.flops == 5 * (4 * 9 * 7 + 2 * 27)
    assert wide.kernels == 15 + 3
    assert working_bytes(MatrixShape(3, 7)) == 2 * (2 * 21 + 2 * 9)


def test_a_tensor_parallel_rank_makes_whole_matrices() -> None:
    """The GEMMs of all layers of a rank take at least as long as their operations at the peak."""
    physical, layout = DENSE.require_physical(), DENSE.configuration.layout
    seconds = orthogonalising_seconds(physical, layout, Sharding.NONE)
    flops = 8 * sum(
        each.number * newton_schulz(each).flops for each in matrix_shapes(physical.model)
    )
    least = flops / physical.cluster.device.peak_of(physical.execution.precision)
    assert (least < seconds).all()
    assert (seconds < 3 * least).all()


@pytest.mark.parametrize(
    ("implementation", "most"), [(CURRENT, (3 / 8, 6 / 16)), (BFPP, (4 / 8, 7 / 16))]
)
def test_replicas_that_share_the_state_share_the_matrices(
    implementation: Implementation, most: tuple[float, float]
) -> None:
    """Of 8 or 16 of a kind, one of three makes a third; of shares cut anywhere, one more."""
    physical = DENSE.changed(implementation=implementation).require_physical()
    layout = DENSE.configuration.layout
    alone, shared = (
        orthogonalising_seconds(physical, layout, sharding)
        for sharding in (Sharding.NONE, Sharding.PARTIAL)
    )
    assert np.allclose(shared, alone / 2)  # 8 of each kind for 2 replicas
    of_three = replace(physical, degrees=replace(physical.degrees, dp=3))
    thirds = orthogonalising_seconds(of_three, layout, Sharding.PARTIAL)
    share = thirds / alone
    assert (min(most) - 1e-9 <= share).all()
    assert (share <= max(most) + 1e-9).all()


def test_matrices_have_one_moment_and_all_else_two() -> None:
    """8 bytes of a matrix's parameter, and 12 of any other."""
    graph, physical = DENSE.graph(), DENSE.require_physical()
    adam = DENSE.changed(update_rule="adam")
    of_adam = rank_memories(adam.graph(), adam.require_physical())
    matrices = 8 * physical.model.matrices.divided / 2  # layers of a rank, over two devices
    for own, other in zip(rank_memories(graph, physical), of_adam, strict=True):
        assert other.state - own.state == pytest.approx(4 * matrices)
        assert own.update > other.update


def test_a_step_is_longer_by_what_muon_takes() -> None:
    """Nothing overlaps with it: it comes when all gradients are there, and before the update."""
    adam = DENSE.changed(update_rule="adam")
    physical, layout = DENSE.require_physical(), DENSE.configuration.layout
    longer = bfpp.simulate(DENSE).step_time - bfpp.simulate(adam).step_time
    own = orthogonalising_seconds(physical, layout, DENSE.communication.sharding)
    assert longer == pytest.approx(own.max(), rel=0.02)
    tasks = DENSE.graph().operation == Operation.ORTHOGONALISE
    assert tasks.sum() == layout.pp
