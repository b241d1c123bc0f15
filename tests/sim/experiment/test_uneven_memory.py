"""Activations of unequal tokens: against a plain count, pass by pass."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.api.predictions import predict
from bfpp.schedules import Operation
from bfpp.sim.costs.units.activations import activations_of_units
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.experiment.uneven import peak_of, replicated_step

VALUES = {"model": "llama3-8b", "cluster": "dgx-h100", "pp": 4, "tp": 4, "dp": 2, "microbatches": 6}
LENGTHS = "512:60,2048:20,8192:4"


def step_of(schedule, **more):
    experiment = Experiment(schedule, **VALUES, **more)
    return replicated_step(experiment, experiment.graph(), experiment.costs)


def plain_peak(step, shares):
    """What is saved from a forward pass to its backward pass, and the running pass in addition."""
    graph = step.graph
    units = activations_of_units(step.physical, graph.layout)
    most = 0.0
    for rank in range(graph.layout.pp):
        alive = {}
        for number in graph.compute_tasks.of(rank).tolist():
            unit, microbatch = int(graph.unit[number]), int(graph.microbatch[number])
            share = shares[microbatch]
            if graph.operation[number] == Operation.FORWARD:
                alive[unit, microbatch] = units.saved[unit] * share
            most = max(most, sum(alive.values()) + units.transient[unit] * share)
            if graph.operation[number] == Operation.BACKWARD:
                del alive[unit, microbatch]
        assert not alive
    return most


@pytest.fixture(scope="module", params=["1f1b", "gpipe", "breadth-first"])
def step(request):
    return step_of(request.param, **({"loops": 2} if request.param == "breadth-first" else {}))


@settings(derandomize=True, deadline=None, max_examples=30)
@given(shares=st.lists(st.floats(0.0, 1.0), min_size=6, max_size=6))
def test_the_peak_is_that_of_a_plain_count(step, shares):
    units = activations_of_units(step.physical, step.graph.layout)
    found = peak_of(step, units, np.array(shares))
    assert found == pytest.approx(plain_peak(step, shares))
    assert found <= peak_of(step, units, None) * (1 + 1e-9)
    assert peak_of(step, units, np.ones(6)) == peak_of(step, units, None)


def test_only_documents_that_are_not_packed_need_less():
    for packing in ("concatenate", "first-fit", "best-fit"):
        record = predict(Experiment("1f1b", **VALUES, lengths=LENGTHS, packing=packing)).record
        assert record["activations_of_full"] == {"mean": 1.0, "largest": 1.0}
    alone = predict(Experiment("1f1b", **VALUES, lengths=LENGTHS, packing="none"))
    shares = alone.record["activations_of_full"]
    assert 0.05 < shares["mean"] < shares["largest"] <= 1
    assert "activations, of full sequences'" in dict(alone.highlights())
    assert "activations_of_full" not in predict(Experiment("1f1b", **VALUES)).record
