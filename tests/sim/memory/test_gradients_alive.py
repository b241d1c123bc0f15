"""Memory of PyTorch's FSDP: that of its own allocations, and gradients while they are there."""

from __future__ import annotations

import numpy as np
import pytest

from bfpp.schedules.operations.operations import Operation
from bfpp.sim.costs.physical import rank_parameters
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.memory.device_memory import rank_memories
from bfpp.sim.memory.memory_over_time import memory_over_time
from bfpp.traces.timeline.memory_record import PARTS, steps_of

COUNTED = [
    ("llama3-8b", 8, 1, 1, 32768, 69.80),
    ("llama3-8b", 8, 1, 1, 8192, 27.64),
    ("llama3-8b", 8, 4, 1, 8192, 31.38),
    ("llama3-8b", 2, 1, 1, 8192, 64.72),
    ("llama3-8b", 2, 2, 1, 4096, 69.22),
    ("llama3-8b", 64, 1, 2, 8192, 31.88),
    ("llama3-70b", 8, 1, 1, 8192, 147.08),
    ("llama3-70b", 8, 2, 1, 8192, 159.29),
    ("llama3-70b", 64, 1, 1, 8192, 40.21),
]
"""Model, replicas, micro-batches, samples of each, context; GiB allocated at most.

Counted over PyTorch 2.13's own FSDP2, AdamW and cross-entropy, on tensors without contents: each
layer and the rest a unit, weights in BF16, reductions in full precision, layers recomputed.
"""


def experiment(model, dp, microbatches, size, context, **values):
    return Experiment(
        "1f1b",
        pp=1,
        dp=dp,
        microbatches=microbatches,
        microbatch_size=size,
        model=model,
        seq_length=context,
        cluster="grand-teton-h100",
        **{"implementation": "torchtitan", "recompute": "full", "sharding": "full"} | values,
    )


@pytest.mark.parametrize(("model", "dp", "microbatches", "size", "context", "counted"), COUNTED)
def test_fsdp2_allocates_what_is_predicted(model, dp, microbatches, size, context, counted):
    chosen = experiment(model, dp, microbatches, size, context)
    [memory] = rank_memories(chosen.graph(), chosen.require_physical())
    assert memory.total_gb == pytest.approx(counted, rel=0.04)


def during(chosen, operation):
    """Bytes during the passes of an operation, by part, and what the rest takes all the time."""
    graph, physical = chosen.graph(), chosen.require_physical()
    [record] = memory_over_time(graph, physical)
    passes = np.flatnonzero(graph.operation[steps_of(graph, 0)] == operation)
    return {name: record.during[PARTS[name]][passes] for name in PARTS}


def test_shards_come_unit_by_unit_in_a_step_of_one_micro_batch():
    alone, two = (
        experiment("llama3-8b", 4, number, 1, 2048, recompute="none") for number in (1, 2)
    )
    parameters = rank_parameters(alone.require_physical(), alone.graph().layout)[0]
    shards = 4 * parameters / 4
    one, both = (during(each, Operation.BACKWARD) for each in (alone, two))
    np.testing.assert_allclose(both["state"][0] - one["state"], shards)
    # The last unit runs backward before there are any, the first one after all of the layers.
    come = one["transient"] - both["transient"][: len(one["transient"])]
    assert come[0] == pytest.approx(0)
    assert (np.diff(come) > 0).all()
    in_layers = parameters - 2 * 128256 * 4096
    assert come[-1] == pytest.approx(4 * in_layers / 4)


def test_forward_passes_and_reductions_once_a_step_have_no_gradients_that_go():
    chosen = experiment("llama3-8b", 4, 2, 1, 2048)
    of_layer = 4 * (rank_parameters(chosen.require_physical(), chosen.graph().layout)[0])
    forward, backward = (during(chosen, each) for each in (Operation.FORWARD, Operation.BACKWARD))
    assert (backward["transient"][1:-1] > forward["transient"][1:31].max()).all()
    assert not backward["gradients"].any()
    per_step = experiment("llama3-8b", 4, 2, 1, 2048, reduce_per="step")
    kept = during(per_step, Operation.BACKWARD)
    np.testing.assert_allclose(kept["gradients"], of_layer)
    np.testing.assert_allclose(kept["transient"][-1], forward["transient"][0])
