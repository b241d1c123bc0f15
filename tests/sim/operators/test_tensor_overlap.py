"""Tensor-parallel communication that overlaps GEMMs: closed forms against chunks one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.schedules.settings.tensor_overlap import TensorOverlap
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.operators.operators import Collective, Overlapped, Way
from bfpp.sim.operators.tensor_overlap import CHUNKS, Gemm, exposed_seconds
from bfpp.sim.search.enumeration import configurations
from bfpp.sim.search.problem import Problem

ALL_FREE = 10**12
"""Multiprocessors of which communication takes no share that matters."""

SECONDS = st.floats(1e-6, 1.0)
DENSE = Experiment(
    "1f1b", model="llama3-70b", cluster="dgx-h100", implementation="current", pp=4, tp=8,
    microbatches=8,
)  # fmt: skip


def exposed(overlap, overlapped, seconds, members, gemm):
    return exposed_seconds(
        overlap, Collective(Way.ALL_GATHER, 1.0, overlapped), seconds, members, gemm
    )


def gathered_in_chunks(seconds, computing, members):
    """End of a GEMM that begins with its own chunk; others come around a ring."""
    end = 0.0
    for chunk in range(members):
        end = max(end, chunk * seconds / (members - 1)) + computing / members
    return end


def reduced_in_chunks(seconds, computing):
    """End of the reduction of the last chunk of a GEMM's output."""
    end = 0.0
    for chunk in range(1, CHUNKS + 1):
        end = max(end, chunk * computing / CHUNKS) + seconds / CHUNKS
    return end


@given(SECONDS, SECONDS, st.integers(2, 16), st.floats(0, 1e-3))
def test_what_is_exposed_is_what_chunks_one_by_one_leave(seconds, computing, members, again):
    gemm = Gemm(computing, ALL_FREE, again)
    of_input, of_output, of_other = (
        exposed(TensorOverlap.CHUNKED, each, seconds, members, gemm)
        for each in (Overlapped.INPUT, Overlapped.OUTPUT, Overlapped.OTHER)
    )
    blocked = computing + seconds  # what is faster in one piece is not divided
    gathered = gathered_in_chunks(seconds, computing + (members - 1) * again, members)
    reduced = reduced_in_chunks(seconds, computing + (CHUNKS - 1) * again)
    assert computing + of_input == pytest.approx(min(gathered, blocked), rel=1e-9)
    assert computing + of_output == pytest.approx(min(reduced, blocked), rel=1e-9)
    assert computing + of_other == pytest.approx(max(computing, seconds), rel=1e-9)


@given(SECONDS, SECONDS, st.integers(2, 16), st.sampled_from(Overlapped), st.integers(1, 200))
def test_more_overlap_never_takes_longer(seconds, computing, members, overlapped, multiprocessors):
    gemm = Gemm(computing, multiprocessors)
    blocked = exposed(TensorOverlap.NONE, overlapped, seconds, members, gemm)
    chunked = exposed(TensorOverlap.CHUNKED, overlapped, seconds, members, gemm)
    free = exposed(TensorOverlap.CHUNKED, overlapped, seconds, members, Gemm(computing, ALL_FREE))
    assert blocked == seconds
    assert max(seconds - computing, 0.0) <= free * (1 + 1e-9) <= chunked * (1 + 1e-9) + 1e-15
    assert chunked <= blocked


def test_a_step_is_between_one_that_waits_for_collectives_and_one_without():
    step = {
        each: DENSE.changed(tp_overlap=each).require_physical().step_time(DENSE.graph())
        for each in TensorOverlap
    }
    slow = DENSE.require_physical()
    free = tuple(replace(each, bandwidth=1e18, latency=0.0) for each in slow.cluster.levels[:1])
    without = replace(slow, cluster=replace(slow.cluster, levels=free + slow.cluster.levels[1:]))
    assert step["none"] == slow.step_time(DENSE.graph())
    assert step["none"] > step["bulk"] > step["chunked"] > without.step_time(DENSE.graph())
    alone = DENSE.changed(tp=1, cluster="dgx-b200", layers=8)
    chunked = alone.changed(tp_overlap="chunked").require_physical()
    assert chunked.step_time(alone.graph()) == (alone.require_physical().step_time(alone.graph()))


def test_all_reduces_are_not_overlapped_in_chunks(bfpp):
    given = "1f1b --model llama3-8b --cluster dgx-h100 --tp 8 --tp-overlap chunked"
    given += " --no-sequence-parallel"
    code, _, error = bfpp(f"simulate {given} --attention fused")
    assert code == 2
    assert "--tp-overlap: chunked needs --sequence-parallel" in error


def test_it_is_searched_where_there_is_something_to_overlap():
    physical = DENSE.changed(model="llama3-8b", layers=4).require_physical()
    problem = Problem(
        physical.model, physical.cluster, (8,), (8,), ("1f1b",), physical.implementation,
        tp_overlap=("none", "chunked"),
    )  # fmt: skip
    found = configurations(problem)
    plain = configurations(replace(problem, tp_overlap=()))
    several = [each for each in plain if each.degrees.tp > 1]
    assert len(found) == len(set(found)) == len(plain) + len(several)
    for each in found:
        overlap = problem.physical_of(each).implementation.tp_overlap
        assert overlap == (each.tp_overlap or "none")
        assert (each.tp_overlap is None) == (each.degrees.tp == 1)
