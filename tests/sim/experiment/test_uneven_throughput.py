"""Throughput of unequal documents: against counts of their tokens and of operations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.api.predictions import predict
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.experiment.uneven import documents_of, replicated_step
from bfpp.sim.models.model import model_flops
from bfpp.sim.unevenness.documents import PACKINGS

VALUES = {
    "model": "llama3-8b", "cluster": "dgx-h100", "pp": 2, "tp": 4, "dp": 2, "microbatches": 4,
    "sampled_steps": 3,
}  # fmt: skip
FULL = 8192
LENGTHS = st.lists(st.tuples(st.integers(1, 2 * FULL), st.integers(1, 9)), min_size=1, max_size=4)


def histogram(counted):
    return ",".join(f"{length}:{count}" for length, count in counted)


@settings(derandomize=True, deadline=None, max_examples=10)
@given(counted=LENGTHS, packing=st.sampled_from(sorted(PACKINGS)), size=st.integers(1, 3))
def test_tokens_are_those_of_documents(counted, packing, size):
    more = {"lengths": histogram(counted), "packing": packing, "microbatch_size": size}
    experiment = Experiment("1f1b", **VALUES, **more)
    predicted = predict(experiment)
    record = predicted.record
    found = record["tokens_per_second_per_gpu"] * 16 * record["step_time"]
    step = replicated_step(experiment, predicted.timeline.graph, experiment.costs)
    drawn = documents_of(experiment, step, predicted.uneven.number)
    assert found == pytest.approx(drawn.documents.sum() * size * FULL)
    assert np.all(drawn.documents <= drawn.tokens * (1 + 1e-12))
    if packing == "none" and size == 1:
        assert np.allclose(drawn.documents, drawn.tokens)
    whole = sum(min(length, FULL) * count for length, count in counted)
    if packing == "concatenate" and whole >= FULL:
        assert found == pytest.approx(2 * 4 * size * FULL)


@pytest.mark.parametrize("packing", PACKINGS)
def test_documents_that_fill_sequences_are_as_fast_as_sequences(packing):
    even = predict(Experiment("1f1b", **VALUES))
    full = predict(Experiment("1f1b", **VALUES, lengths=f"{FULL}:5", packing=packing))
    for name in ("tokens_per_second_per_gpu", "mfu", "hfu", "model_tflops_per_gpu"):
        assert full.record[name] == pytest.approx(even.record[name])


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("tokens", [64, 1000, 4096])
def test_operations_are_those_of_a_model_of_such_sequences(tokens, recompute):
    more = {"packing": "none", "recompute": recompute}
    short = predict(Experiment("1f1b", **VALUES, **more, lengths=f"{tokens}:7"))
    record, model = short.record, short.physical.model
    flops = model_flops(replace(model, sequence=tokens), 8) / 16
    assert record["model_tflops_per_gpu"] * 1e12 * record["step_time"] == pytest.approx(flops)
    assert 0 < record["mfu"] < 1
    ratio = record["hfu"] / record["mfu"]
    assert ratio == pytest.approx(1) if recompute == "none" else 1.2 < ratio < 4 / 3
