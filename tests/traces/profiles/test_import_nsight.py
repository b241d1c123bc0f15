"""Files of Nsight Systems as timelines: every pass of every process, by name or by operators."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bfpp.schedules import Layout, Operation, Task
from bfpp.schedules.orders.actions import LETTERS, action
from bfpp.traces.profiles.import_profile import import_profiles
from bfpp.traces.profiles.nsight import read_nsight
from bfpp.traces.timeline.timeline import Timeline
from tests.helpers.nsight_files import Kernel, Named, Seen, write_nsight
from tests.traces.profiles.test_import import MEGATRON, RECEIVED, passes, simulated

SECOND = 10**9
VEE = Layout(3, 6, placement=(0, 1, 2, 2, 1, 0))
LATER = SECOND // 2
"""From a kernel's launch to its start: half a forward pass."""


def by_pytorch(task: Task) -> str:
    """A range of PyTorch's pipelining under `emit_nvtx`."""
    return f"PP:{action((task.operation, task.stage, task.microbatch, False))}, op_id = 17"


def by_zero_bubble(task: Task) -> str:
    """A range of zero bubble's runtime: its micro-batch, chunk, and slice."""
    letter = LETTERS[task.operation].replace("I", "B")
    return f"{letter}{task.microbatch}.{task.stage // 3}.0"


def seen(timeline: Timeline, rank: int, named: Callable[[Task], str], slow: int = 0) -> Seen:
    """A rank's process in Nsight: a range where a pass is launched, kernels where it runs.

    A host launches ahead of its device. `slow` is what its clock is behind by.
    """
    ranges, kernels = [Named("cudaProfilerStart", 0, 1)], []
    for task, *times in map(timeline.describe, range(len(timeline.graph))):
        start, end = (round(time * SECOND) - slow for time in times)
        if task.rank == rank and task.operation in LETTERS:
            launched = start - LATER
            ranges.append(Named(named(task), launched - 5, launched + 5))
            ranges.append(Named("aten::mm, seq = 3, op_id = 4, sizes = [[2, 2]]", launched, end))
            kernels.append(Kernel("gemm", launched, start, end))
        if task.peer == rank and task.operation in RECEIVED:
            stages_on, letter = RECEIVED[task.operation]
            launched = start - LATER
            name = f"PP:{task.stage + stages_on}RECV_{letter}{task.microbatch}"
            ranges.append(Named(name, launched + 10, launched + 20))
            kernels.append(Kernel("ncclDevKernel_SendRecv", launched + 15, start, end))
    return Seen(rank, ranges, kernels)


@pytest.mark.parametrize(
    ("schedule", "layout"),
    [("1f1b", Layout(3, 6)), ("breadth-first", Layout(3, 6, 2)), ("zb-v", VEE)],
)
def test_processes_of_one_file_are_ranks_by_their_devices(tmp_path, schedule, layout):
    timeline = simulated(schedule, layout)
    processes = [seen(timeline, rank, by_pytorch) for rank in (2, 0, 1)]
    found = import_profiles(read_nsight(write_nsight(tmp_path / "all.sqlite", processes)))
    assert passes(found) == passes(timeline)
    assert found.graph.digest == timeline.graph.digest
    assert found.about == {
        "passes": "by name",
        "clocks": "as in the traces",
        "not_measured": found.about["not_measured"],
        "unknown_ranges": "3 cudaProfilerStart",
    }
    assert "transfer" not in found.about["not_measured"]


@pytest.mark.parametrize(
    ("schedule", "layout"), [("zb-h1", Layout(3, 6)), ("1f1b", Layout(3, 6)), ("zb-v", VEE)]
)
def test_zero_bubbles_chunks_are_stages_in_turn_or_on_a_v(bfpp, answer, tmp_path, schedule, layout):
    """One file a rank; a session may start at any time, and times count from there."""
    timeline = simulated(schedule, layout)
    began = [1_763_000_000 * SECOND + 137 * rank for rank in range(3)]
    for rank in range(3):
        process = seen(timeline, rank, by_zero_bubble, slow=137 * rank)
        write_nsight(tmp_path / f"{rank}.sqlite", [process], began[rank])
    names = " ".join(str(tmp_path / f"{rank}.sqlite") for rank in range(3))
    assert bfpp(f"import {names} --out {tmp_path / 'step.json'}")[0] == 0
    shown = answer(f"show {tmp_path / 'step.json'}")
    assert shown["step_time"] == pytest.approx(timeline.step_time - optimizers(timeline), abs=1e-6)
    processes = [each for name in names.split() for each in read_nsight(Path(name))]
    assert import_profiles(processes).graph.digest == timeline.graph.digest


def optimizers(timeline: Timeline) -> float:
    """The time of updates, which these files do not show."""
    return float(timeline.duration[timeline.graph.operation == Operation.OPTIMIZER].max())


def test_what_has_no_names_is_told_by_operators(tmp_path):
    """Backward operators are those that autograd runs; forward ones share their numbers."""
    autograd = "autograd::engine::evaluate_function: MmBackward0, seq = {}, op_id = 9"
    ranges, kernels = [], []
    for place, name in enumerate(
        ["aten::mm, seq = 0", "aten::rand", "c10d::send, op_id = 3", "aten::mm, seq = 1",
         autograd.format(1), "c10d::send, op_id = 5", autograd.format(0)]
    ):  # fmt: skip
        at = 100 * place
        ranges.append(Named(name, at, at + 50))
        kernels.append(Kernel("gemm" if "mm" in name.lower() else "ncclKernel", at, at, at + 80))
    [process] = read_nsight(write_nsight(tmp_path / "one", [Seen(0, ranges, kernels)]))
    assert len(process.differentiated) == 2
    found = import_profiles([process])
    assert found.about["passes"] == "by operators"
    orders = "".join(LETTERS[it.operation] for it in map(found.graph.task, found.compute_tasks(0)))
    assert orders == "FFBB"


@pytest.mark.parametrize("prefix", ["", "megatron.core.pipeline_parallel.schedules.", MEGATRON])
def test_functions_of_megatron_are_passes(tmp_path, prefix):
    ranges, kernels = [], []
    for place, name in enumerate(["forward", "forward", "backward", "backward"]):
        at = 100 * place
        ranges.append(Named(f"{prefix}{name}_step", at, at + 50))
        kernels.append(Kernel("gemm", at + 10, at + 60, at + 80))
    found = import_profiles(read_nsight(write_nsight(tmp_path / "x", [Seen(0, ranges, kernels)])))
    np.testing.assert_allclose(found.duration[found.graph.is_compute], 20e-9, atol=1e-12)
    assert found.about["unknown_ranges"] == "none"


def test_what_nsight_did_not_export_is_refused_in_a_line(bfpp, tmp_path):
    with sqlite3.connect(tmp_path / "other.sqlite") as database:
        database.execute("CREATE TABLE cats (name TEXT)")
    with sqlite3.connect(tmp_path / "old.sqlite") as database:
        database.execute("CREATE TABLE NVTX_EVENTS (start INTEGER)")
    (tmp_path / "cut.sqlite").write_bytes((tmp_path / "old.sqlite").read_bytes()[:1000])
    (tmp_path / "run.nsys-rep").write_bytes(b"anything")
    for name, reason in (
        ("other.sqlite", "holds neither NVTX ranges nor kernels"),
        ("old.sqlite", "is not what nsys exports: no such"),
        ("cut.sqlite", "is not what nsys exports: "),
        ("run.nsys-rep", "is a report: nsys export --type sqlite run.nsys-rep makes"),
    ):
        code, _, err = bfpp(f"import {tmp_path / name} --out {tmp_path / 'out.json'}")
        assert (code, err.count("\n")) == (2, 1)
        assert f"TRACE: {tmp_path / name}: {reason}" in err
