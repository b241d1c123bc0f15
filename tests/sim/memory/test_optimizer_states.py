"""Optimizer states in less than full precision: bytes, traffic, and what is refused."""

from __future__ import annotations

from itertools import product

import pytest

from bfpp.schedules import InvalidConfiguration, Sharding
from bfpp.schedules.settings.precision import Precision
from bfpp.sim.cluster.software_profiles import CURRENT
from bfpp.sim.costs.physical import rank_parameters
from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.memory.device_memory import rank_memories
from bfpp.sim.memory.optimizer_states import BYTES, MOMENTS, STATES, OptimizerStates

EVERY = [
    OptimizerStates(*values, rule)
    for rule, count in MOMENTS.items()
    for values in product(*((None, *each) for each in STATES.values()))
    if count or values[0] is None
]


def experiment(**values):
    values = {"model": "llama3-8b", "cluster": "dgx-h100", "implementation": "current", **values}
    return Experiment("1f1b", **{"pp": 2, "dp": 4, "sharding": "zero1", **values})


@pytest.mark.parametrize("states", EVERY, ids=str)
def test_each_state_has_the_bytes_of_its_numbers(states):
    """Megatron-LM, precision-aware: master weights and moments are sharded, gradients not."""
    of_moment, master, gradients = (BYTES[each or "fp32"] for each in states[:3])
    moments = MOMENTS[states.update_rule] * of_moment
    changed = states.of(CURRENT, Precision.BF16)
    kept = changed.parameter_bytes(Precision.BF16, Sharding.PARTIAL)
    assert (kept.state, kept.weights, kept.gradients) == (moments + master, 2, gradients)
    whole = changed.parameter_bytes(Precision.BF16, Sharding.FULL)
    assert whole.state == 4 + moments + master
    assert changed.accumulation_traffic == 2 * gradients
    # Of 46 bytes: gradients four times, master weights and moments read and written, and the rest.
    assert changed.optimizer_traffic == 4 * gradients + 2 * (moments + master) + 6


def test_states_as_they_are_change_nothing():
    assert OptimizerStates().of(CURRENT, Precision.BF16) == CURRENT
    assert OptimizerStates("fp32", "fp32", "fp32").of(CURRENT, Precision.BF16) == CURRENT


@pytest.mark.parametrize(
    ("precision", "sharding", "without"),
    [
        (Precision.BF16, Sharding.PARTIAL, 4),  # the copy of the weights
        (Precision.BF16, Sharding.FULL, 8),  # and the sum of gradients
        (Precision.FP32, Sharding.PARTIAL, 0),
        (Precision.FP32, Sharding.FULL, 8),
        (Precision.FP64, Sharding.PARTIAL, 0),
        (Precision.FP64, Sharding.FULL, 16),
    ],
)
def test_a_moment_is_a_number_of_each_parameter(precision, sharding, without):
    for rule, moments in MOMENTS.items():
        changed = OptimizerStates(update_rule=rule).of(CURRENT, precision)
        state = changed.parameter_bytes(precision, sharding).state
        assert state == without + moments * max(precision.bytes, 4)


def test_what_has_no_moments_has_no_precision_of_them():
    with pytest.raises(InvalidConfiguration, match="sgd keeps none") as refusal:
        _ = experiment(update_rule="sgd", moments="bf16").costs
    assert refusal.value.field == "moments"


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
