"""Activities of devices, as profilers write them: kinds, groups, sizes, and what is none."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import numpy as np
import pytest

from bfpp.traces.kernels.breakdown import Breakdown
from bfpp.traces.profiles.device_profile import ActivityKind, ProcessGroup, is_communication
from bfpp.traces.profiles.kineto_activities import read_kineto_activities
from bfpp.traces.profiles.nsight_activities import read_nsight_activities
from tests.helpers.device_traces import Ran, device_trace, event, events_of
from tests.helpers.nsight_files import PROCESS, Kernel, Named, Seen, write_nsight

COMPUTE, COMMUNICATION, COPY = ActivityKind
REDUCE = {
    "Collective name": "allreduce", "In msg nelems": 100, "Out msg nelems": 100,
    "dtype": "BFloat16", "Group size": 8, "Process Group Name": "3",
    "Process Group Description": "mesh_dp", "Process Group Ranks": "[0, 2, 4, 6, 8, 10, 12, 14]",
}  # fmt: skip
EVEN = tuple(range(0, 16, 2))


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", True),
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", True),
        ("void mscclKernel_Sum_half_LL(ncclDevComm*)", True),
        ("void at::native::elementwise_kernel<128, 4>(int)", False),
        ("multimem_all_reduce_kernel", False),
    ],
)
def test_kernels_of_libraries_of_collectives_communicate(name, is_one):
    assert is_communication(name) is is_one


def test_a_collective_has_its_group_and_the_size_of_its_message():
    found = read_kineto_activities(device_trace(events_of(Ran(COMMUNICATION, 0, 5), **REDUCE)))
    (call,) = found.collectives
    assert call == (ProcessGroup("3", "mesh_dp", 8, EVEN), "allreduce", 200.0)


def test_a_group_that_the_kernel_does_not_describe_is_that_of_the_configuration():
    about = {"Collective name": "allgather", "Process Group Name": "3", "dtype": "Half"}
    group = {"pg_name": "3", "pg_desc": "mesh_dp", "pg_size": 8, "ranks": list(EVEN)}
    events = events_of(Ran(COMMUNICATION, 0, 5), **about)
    (call,) = read_kineto_activities(device_trace(events, pg_config=[group])).collectives
    assert call == (ProcessGroup("3", "mesh_dp", 8, EVEN), "allgather", None)


def test_older_traces_describe_a_collective_in_the_operator_that_calls_it():
    called = event("cpu_op", "record_param_comms", -9, -8, **{"External id": 5, **REDUCE})
    kernels = events_of(Ran(COMMUNICATION, 0, 5), **{"External id": 5})
    (call,) = read_kineto_activities(device_trace([called, *kernels])).collectives
    assert (call.operation, call.bytes) == ("allreduce", 200.0)


def test_shortened_lists_of_ranks_are_not_known():
    about = REDUCE | {"Process Group Ranks": "[0, 2, ...]"}
    (call,) = read_kineto_activities(
        device_trace(events_of(Ran(COMMUNICATION, 0, 5), **about))
    ).collectives
    assert call.group == ProcessGroup("3", "mesh_dp", 8, None)


def test_waits_and_the_hosts_operators_are_no_activities():
    events = [
        event("cpu_op", "triton_poi_fused_0", 0, 100, stream=7),
        event("cuda_sync", "Stream Wait Event", 0, 100, device=0, stream=7),
        event("mtia_ccp_events", "event_wait", 0, 100, stream=7),
        event("gpu_user_annotation", "ProfilerStep#1", 0, 100, device=0, stream=7),
        event("mtia_ccp_events", "dma_request", 10, 20, stream=1),
        event("Kernel", "gemm", 20, 30, device=0, stream=7),
    ]
    found = read_kineto_activities(device_trace(events))
    assert found.kind.tolist() == [COPY, COMPUTE]
    assert found.streams == ["1/1", "0/7"]


def test_the_host_is_seen_from_its_first_range_to_its_last(tmp_path):
    ranges = [(20, 30), (5, 90), (40, 50)]
    events = [event("cpu_op", "aten::mm", *span) for span in ranges]
    by_torch = read_kineto_activities(device_trace([*events, *events_of(Ran(COMPUTE, 60, 95))]))
    named = [Named("part", 1000 * begin, 1000 * end) for begin, end in ranges]
    seen = Seen(0, named, [Kernel("gemm", 55_000, 60_000, 95_000)])
    [by_nsight] = read_nsight_activities(write_nsight(tmp_path / "own.sqlite", [seen]))
    for profile in (by_torch, by_nsight):  # moments begin at 0, where the host's do
        assert profile.host == pytest.approx((0, 85e-6))
        assert (profile.start[0], profile.end[0]) == pytest.approx((55e-6, 90e-6))


def test_nsight_and_torch_say_the_same_of_the_same_kernels(tmp_path):
    ran = [Ran(COMPUTE, 10, 20, 7, 1), Ran(COMMUNICATION, 15, 30, 7, 2), Ran(COMPUTE, 40, 45, 7, 3)]
    steps = Named("step 3", 0, 50_000)
    names = {COMPUTE: "gemm", COMMUNICATION: "ncclDevKernel_AllReduce"}
    kernels = [
        Kernel(names[it.kind], *(round(1000 * at) for at in (it.launched, it.start, it.end)))
        for it in ran
    ]
    path = write_nsight(tmp_path / "own.sqlite", [Seen(0, [steps], kernels)])
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER,"
            " streamId INTEGER, correlationId INTEGER, globalPid INTEGER, bytes INTEGER,"
            " copyKind INTEGER)"
        )
        row = (32_000, 35_000, 0, 7, 99, 100 * PROCESS, 4096, 1)
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?,?,?,?,?,?,?,?)", row)
    (by_nsight,) = map(Breakdown, read_nsight_activities(path))
    mark = event("user_annotation", "ProfilerStep#3", 0, 50)
    events = [*events_of(*ran, Ran(COPY, 32, 35)), mark]
    by_torch = Breakdown(read_kineto_activities(device_trace(events)))
    for name in ("whole", "waiting", "delays"):
        np.testing.assert_allclose(getattr(by_nsight, name), getattr(by_torch, name), atol=1e-12)
    np.testing.assert_allclose(by_nsight.steps[0][1], by_torch.steps[0][1], atol=1e-12)
    assert by_nsight.by_name(COPY)["Memcpy HtoD"].bytes == 4096
    assert by_nsight.profile.collectives[0] == (None, None, None)
