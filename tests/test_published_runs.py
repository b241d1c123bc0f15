"""Predictions beside published runs that no constant of the software was fitted to, or few were."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from bfpp.schedules import Communication, Degrees, Layout, Sharding, build_graph, find_schedule
from bfpp.schedules.recomputation import FULL_RECOMPUTATION, SELECTIVE_RECOMPUTATION
from bfpp.sim.cluster import load_cluster
from bfpp.sim.engines import simulate
from bfpp.sim.implementation import CURRENT, MEGATRON
from bfpp.sim.memory import rank_memories
from bfpp.sim.model import Transformer, load_model
from bfpp.sim.physical import PhysicalCosts


class Gpt(NamedTuple):
    """A row of table 5 of Korthikanti et al. (2022, arXiv 2205.05198), on A100.

    Seconds of a step with full recomputation, and with selective recomputation and sequence
    parallelism; N_TP = 8.
    """

    sizes: tuple[int, int, int]  # layers, hidden, heads
    ranks: int
    loops: int
    batch: int
    microbatch_size: int
    full: float
    selective: float


GPTS = {
    "22B": Gpt((48, 6144, 64), 1, 1, 4, 4, 1.42, 1.10),
    "175B": Gpt((96, 12288, 96), 8, 3, 64, 1, 18.13, 13.75),
    "530B": Gpt((105, 20480, 128), 35, 3, 280, 1, 49.05, 37.83),
    "1T": Gpt((128, 25600, 160), 64, 1, 512, 1, 94.42, 71.49),
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


def test_recomputation_and_sequence_parallelism_on_a100():
    errors = np.array([error for run in GPTS.values() for error in gpt_errors(run)])
    assert np.abs(errors).mean() < 0.04
    assert np.abs(errors).max() < 0.08


# Llama-3-70B cut to 12 layers, sequences of 4,096, on eight B200 (MooreThreads/SimuMax,
# docs/b200, v1.2; Megatron-LM 0.14, no recomputation, communication not overlapped): N_TP, N_PP,
# N_DP, the GiB allocated on the fullest device, and seconds of a step by micro-batches.
LLAMAS = [
    (1, 2, 4, 66.55, {4: 0.8430, 8: 1.4768, 32: 5.4365}),
    (2, 1, 4, 60.68, {4: 0.7255, 8: 1.3870, 32: 5.3765}),
    (4, 1, 2, 39.07, {4: 0.4098, 8: 0.7656, 32: 2.9646}),
    (8, 1, 1, 28.29, {4: 0.2809, 8: 0.5567, 32: 2.0737}),
]


@pytest.mark.parametrize(("tensor", "pipeline", "data", "allocated", "seconds"), LLAMAS)
def test_llama_without_recomputation_on_b200(tensor, pipeline, data, allocated, seconds):
    model = replace(load_model("llama3-70b"), layers=12, sequence=4096)
    degrees = Degrees(tp=tensor, dp=data)
    costing = PhysicalCosts(model, load_cluster("dgx-b200"), degrees, 1, CURRENT)
    for microbatches, measured in seconds.items():
        layout = Layout(pipeline, microbatches)
        communication = Communication(Sharding.PARTIAL, dp_overlap=False)
        timeline = simulate(build_graph("1f1b", layout, communication), costing)
        assert timeline.step_time == pytest.approx(measured, rel=0.06)
        fullest = max(memory.total_gb for memory in rank_memories(timeline.graph, costing))
        assert fullest == pytest.approx(allocated, rel=0.01)
