"""Optimizer states in less than full precision: bytes, traffic, and what is refused."""

from __future__ import annotations

from itertools import product

import pytest

from bfpp.schedules import InvalidConfiguration, Sharding
from bfpp.schedules.precision import Precision
from bfpp.sim.engines import simulate
from bfpp.sim.experiment import Experiment
from bfpp.sim.implementation import CURRENT
from bfpp.sim.memory import rank_memories
from bfpp.sim.optimizer_states import BYTES, STATES, OptimizerStates
from bfpp.sim.physical import rank_parameters

EVERY = [
    OptimizerStates(*values) for values in product(*((None, *each) for each in STATES.values()))
]


def experiment(**values):
    values = {"model": "llama3-8b", "cluster": "dgx-h100", "implementation": "current", **values}
    return Experiment("1f1b", **{"pp": 2, "dp": 4, "sharding": "zero1", **values})


@pytest.mark.parametrize("states", EVERY, ids=str)
def test_each_state_has_the_bytes_of_its_numbers(states):
    """Megatron-LM, precision-aware: master weights and two moments are sharded, gradients not."""
    moments, master, gradients = (BYTES[each or "fp32"] for each in states)
    changed = states.of(CURRENT, Precision.BF16)
    kept = changed.parameter_bytes(Precision.BF16, Sharding.PARTIAL)
    assert (kept.state, kept.weights, kept.gradients) == (2 * moments + master, 2, gradients)
    whole = changed.parameter_bytes(Precision.BF16, Sharding.FULL)
    assert whole.state == 4 + 2 * moments + master
    assert changed.accumulation_traffic == 2 * gradients
    # Of 46 bytes: gradients four times, master weights and moments read and written, and the rest.
    assert changed.optimizer_traffic == 4 * gradients + 2 * (2 * moments + master) + 6


def test_states_as_they_are_change_nothing():
    assert OptimizerStates().of(CURRENT, Precision.BF16) == CURRENT
    assert OptimizerStates("fp32", "fp32", "fp32").of(CURRENT, Precision.BF16) == CURRENT


def test_narrower_states_take_no_more_memory_and_no_more_time():
    """DeepSeek-V3 keeps moments in BF16: two bytes less for each, over the replicas."""

    def run(**values):
        costing = experiment(**values).require_physical()
        graph = experiment(**values).graph()
        return simulate(graph, costing).step_time, rank_memories(graph, costing)[1]

    usual, moments = run(), run(moments="bf16")
    costing = experiment().require_physical()
    parameters = rank_parameters(costing, experiment().graph().layout)[1]
    assert usual[1].state - moments[1].state == pytest.approx(4 * parameters / 4)
    chain = [
        usual,
        moments,
        run(moments="fp8"),
        run(moments="fp8", master_weights="fp16"),
        run(moments="fp8", master_weights="fp16", main_gradients="bf16"),
    ]
    seconds = [each[0] for each in chain]
    memory = [each[1].total for each in chain]
    assert seconds == sorted(seconds, reverse=True)
    assert memory == sorted(memory, reverse=True)
    assert len({*memory}) == len({*seconds}) == len(chain)


@pytest.mark.parametrize("name", STATES)
def test_full_precision_has_no_narrower_states(name):
    with pytest.raises(InvalidConfiguration, match="fp32 trains with states") as refusal:
        _ = experiment(precision="fp32", **{name: STATES[name][-1]}).costs
    assert refusal.value.field == name
