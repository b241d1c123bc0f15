"""Predictions beside published runs that no constant of the software was fitted to, or few were."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from bfpp.schedules import Communication, Degrees, Layout, Sharding, build_graph, find_schedule
from bfpp.schedules.settings.recomputation import FULL_RECOMPUTATION, SELECTIVE_RECOMPUTATION
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.cluster.software_profiles import CURRENT, MEGATRON
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.engines.engines import simulate
from bfpp.sim.memory.device_memory import rank_memories
from bfpp.sim.models.model import Transformer, load_model

SAME = 0.1
"""Points of per cent that an error may be from that which is written beside its measurement."""


class Gpt(NamedTuple):
    """A row of table 5 of Korthikanti et al. (2022, arXiv 2205.05198), on A100.

    Seconds of a step with full recomputation, and with selective recomputation and sequence
    parallelism; N_TP = 8. And by how much more of these is predicted, in per cent.
    """

    sizes: tuple[int, int, int]  # layers, hidden, heads
    ranks: int
    loops: int
    batch: int
    microbatch_size: int
    full: float
    selective: float
    errors: tuple[float, float]


GPTS = {
    "22B": Gpt((48, 6144, 64), 1, 1, 4, 4, 1.42, 1.10, (-1.19, -3.04)),
    "175B": Gpt((96, 12288, 96), 8, 3, 64, 1, 18.13, 13.75, (2.18, 1.44)),
    "530B": Gpt((105, 20480, 128), 35, 3, 280, 1, 49.05, 37.83, (5.28, 3.61)),
    "1T": Gpt((128, 25600, 160), 64, 1, 512, 1, 94.42, 71.49, (7.15, 8.32)),
}


def gpt_errors(run):
    model = Transformer("gpt", *run.sizes, 2048, 51200)
    schedule = "1f1b" if run.loops == 1 else "depth-first"
    microbatches = run.batch // run.microbatch_size
    layout = find_schedule(schedule).divided(run.ranks, microbatches, run.loops)
    graph = build_graph(schedule, layout, MEGATRON.communication(Sharding.NONE))
    for measured, policy in (
        (run.full, FULL_RECOMPUTATION),
        (run.selective, SELECTIVE_RECOMPUTATION),
    ):
        costing = PhysicalCosts(
            model,
            load_cluster("dgx-a100"),
            Degrees(tp=8),
            run.microbatch_size,
            MEGATRON,
            recompute=policy,
            sequence_parallel=policy is SELECTIVE_RECOMPUTATION,
        )
        yield simulate(graph, costing).step_time / measured - 1


@pytest.mark.parametrize("run", GPTS.values(), ids=GPTS)
def test_recomputation_and_sequence_parallelism_on_a100(run):
    assert [100 * error for error in gpt_errors(run)] == pytest.approx(run.errors, abs=SAME)


def test_published_runs_on_a100_are_predicted_within_5_per_cent_in_the_mean():
    assert np.abs([run.errors for run in GPTS.values()]).mean() < 5


# Llama-3-70B cut to 12 layers, sequences of 4,096, on eight B200 (MooreThreads/SimuMax,
# docs/b200, v1.2; Megatron-LM 0.14, no recomputation, communication not overlapped): N_TP, N_PP,
# N_DP, the GiB allocated on the fullest device, and seconds of a step by micro-batches; each with
# by how much more is predicted, in per cent.
LLAMAS = [
    (1, 2, 4, (66.55, 0.22), {4: (0.8430, -2.06), 8: (1.4768, -1.77), 32: (5.4365, -4.33)}),
    (2, 1, 4, (60.68, 0.15), {4: (0.7255, -3.75), 8: (1.3870, -4.15), 32: (5.3765, -4.83)}),
    (4, 1, 2, (39.07, 0.33), {4: (0.4098, 0.90), 8: (0.7656, 3.25), 32: (2.9646, 2.97)}),
    (8, 1, 1, (28.29, 0.47), {4: (0.2809, 0.42), 8: (0.5567, -2.45), 32: (2.0737, 1.69)}),
]


@pytest.mark.parametrize(("tensor", "pipeline", "data", "allocated", "seconds"), LLAMAS)
def test_llama_without_recomputation_on_b200(tensor, pipeline, data, allocated, seconds):
    model = replace(load_model("llama3-70b"), layers=12, sequence=4096)
    degrees = Degrees(tp=tensor, dp=data)
    costing = PhysicalCosts(model, load_cluster("b200-simumax"), degrees, 1, CURRENT)
    for microbatches, (measured, error) in seconds.items():
        layout = Layout(pipeline, microbatches)
        communication = Communication(Sharding.PARTIAL, dp_overlap=False)
        timeline = simulate(build_graph("1f1b", layout, communication), costing)
        more = 100 * (timeline.step_time / measured - 1)
        assert more == pytest.approx(error, abs=SAME)
        fullest = max(memory.total_gb for memory in rank_memories(timeline.graph, costing))
        assert 100 * (fullest / allocated[0] - 1) == pytest.approx(allocated[1], abs=0.01)
