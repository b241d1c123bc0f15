"""The interval of a prediction: constants that are left out change nothing."""

from __future__ import annotations

import pytest

from bfpp import Experiment
from bfpp.api.predictions import predict
from bfpp.sim.costs.parameters import numbers, with_number
from bfpp.sim.experiment.uncertainty import PredictedStep, _matters

MIXTRAL = {"model": "mixtral-8x22b", "microbatches": 8}
LLAMA = {"model": "llama3-8b", "microbatches": 8}
EXPERIMENTS = [
    Experiment("1f1b", **LLAMA, cluster="dgx-h100", pp=4),
    Experiment(
        "1f1b", model="gpt-7.5b", microbatches=8, cluster="dgx-h100", pp=4, tied_embeddings=True
    ),
    Experiment("1f1b", **LLAMA, cluster="dgx1-v100", pp=4, dp=8, sharding="full"),
    Experiment("breadth-first", **LLAMA, cluster="dgx-h100", pp=4, loops=2, tp=2, dp=64),
    Experiment("gpipe", **LLAMA, cluster="gb200-nvl72", pp=2, cp=2, dp=64),
    Experiment("dualpipe", **LLAMA, cluster="dgx1-v100-ethernet", pp=4),
    Experiment("1f1b", **MIXTRAL, cluster="dgx-h100", pp=4, dp=8, ep=8),
    Experiment("zb-h1", **MIXTRAL, cluster="dgx-h100", pp=4, dp=8),
]


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=repr)
def test_a_constant_that_does_not_matter_changes_nothing(experiment):
    timeline, physical = predict(experiment).timeline, experiment.require_physical()
    expected = physical.step_time(timeline.graph)
    left_out = [
        (path, value)
        for path, value in numbers(physical)
        if path[0] in ("cluster", "implementation")
        and isinstance(value, float)
        and value
        and not _matters(path, PredictedStep.of(timeline), physical)
    ]
    assert left_out
    for path, value in left_out:
        for factor in (0.7, 1.0 if path[-1].endswith("efficiency") else 1.5):
            changed = with_number(physical, path, factor * value)
            assert changed.step_time(timeline.graph) == expected, path


def test_levels_that_a_job_does_not_cross_do_not_matter():
    alone, spread = (Experiment("1f1b", **LLAMA, cluster="dgx-h100", pp=4, dp=dp) for dp in (1, 8))
    steps = [
        (PredictedStep.of(predict(each).timeline), each.require_physical())
        for each in (alone, spread)
    ]
    for name, expected in (
        ("nvlink", [True, True]),
        ("leaf", [False, True]),
        ("spine", [False] * 2),
    ):
        assert [_matters(("cluster", name, "latency"), *each) for each in steps] == expected
