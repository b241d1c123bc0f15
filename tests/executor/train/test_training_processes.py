"""Training over gloo, one process a rank: exact, and measured."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import cycle, pairwise, product

import numpy as np
import pytest
import torch

from bfpp.executor.model.sources import TransformerSource
from bfpp.executor.model.transformer.transformer import TransformerSizes
from bfpp.executor.processes import RunFailed, launch
from bfpp.executor.settings import Activations, DType, Optimization
from bfpp.executor.train.job import Job
from bfpp.executor.train.measured_timeline import timeline_of
from bfpp.schedules import (
    P2P,
    Communication,
    Layout,
    Sharding,
    find_schedule,
    registered_schedules,
)
from bfpp.schedules.columns import NONE
from bfpp.schedules.operations.operations import collectives
from tests.helpers.gloo_runs import Chain, Counts, Ran, run_and_count, swap_receives
from tests.helpers.spoilt_models import SpoiltSource
from tests.helpers.strategies import some_configuration
from tests.helpers.training_runs import EXACT, STEPS, compare, run_locally

PROCESSES = 4
CUTS = [(4, 1), (2, 2)]
OTHER_CUTS = [(3, 1), (1, 2), (2, 1), (1, 1)]
"""Of these, the processes' part is the same for all schedules."""


def job_of(name: str, sharding: Sharding, ranks: int, replicas: int) -> Job:
    """Settings that differ from case to case, so that each is met with each schedule."""
    clips = (ranks + replicas + len(name)) % 2 == 0
    overlaps = sharding is not Sharding.PARTIAL
    communication = Communication(sharding, overlaps, overlaps, clips, offload=len(name) % 2)
    schedule, layout, _ = some_configuration(find_schedule(name), ranks, communication)
    return Job(
        schedule=schedule,
        layout=layout,
        communication=communication,
        model=Chain(layout.units + 1),
        steps=STEPS,
        dp=replicas,
        microbatch_size=1 + ranks % 2,
        precision=DType.FLOAT64,
        activations=list(Activations)[(ranks + overlaps) % 2],
        optimization=Optimization(1e-2, clip=0.05 if clips else None),
        checks_messages=ranks == 2,
    )


Row = tuple[str, Sharding, tuple[int, int]]


def jobs(rows: Iterable[Row]) -> dict[str, Job]:
    return {
        f"{name} {sharding} {ranks}x{replicas}": job_of(name, sharding, ranks, replicas)
        for name, sharding, (ranks, replicas) in rows
    }


ONE = "breadth-first"
OTHERS = [name for name in registered_schedules() if name != ONE]
IN_TURN = cycle(product(reversed(Sharding), CUTS))
JOBS = jobs(
    [
        *product([ONE], Sharding, [*CUTS, (1, 4)]),
        *((ONE, sharding, cut) for sharding, cut in zip(cycle(Sharding), OTHER_CUTS, strict=False)),
        *((name, *next(IN_TURN)) for name in OTHERS),
    ]
)
"""One schedule in every sharding, each of the others in one; in all, if that is `slow`."""

POSTED = [
    ("1f1b", P2P.BATCHED, (4, 1)),
    ("depth-first", P2P.COALESCED, (4, 1)),
    ("breadth-first", P2P.FIFO, (2, 2)),
    ("gpipe", P2P.DEFERRED, (4, 1)),
]
"""Schedules whose transfers are posted as other software does."""

for name, p2p, cut in POSTED:
    job = job_of(name, Sharding.FULL, *cut)
    communication = replace(job.communication, p2p=p2p)
    checks = job.checks_messages and not communication.in_groups
    JOBS[f"{name} {p2p} {cut[0]}x{cut[1]}"] = replace(
        job, communication=communication, checks_messages=checks
    )

SINGLE = "breadth-first full 2x2"
JOBS["single precision"] = replace(JOBS[SINGLE], precision=DType.FLOAT32)

for sharding in (Sharding.PARTIAL, Sharding.FULL):
    job = JOBS[f"breadth-first {sharding} 1x4"]
    hybrid = replace(job.communication, hybrid=True)
    JOBS[f"{sharding} in groups of replicas"] = replace(job, communication=hybrid, dp_replicate=2)

for name, sharding in (
    ("1f1b", Sharding.NONE),
    ("depth-first", Sharding.PARTIAL),
    ("breadth-first", Sharding.FULL),
    ("zb-v", Sharding.FULL),
    ("chimera", Sharding.PARTIAL),
):
    job = job_of(name, sharding, 2, 2)
    JOBS[f"{name} {sharding}, ends tied"] = replace(
        job,
        communication=replace(job.communication, tied_embeddings=True),
        model=replace(job.model, tied=True),
    )

for case in ("breadth-first none 2x2", "full in groups of replicas"):
    JOBS[f"{case}, buffers that passes change"] = replace(
        JOBS[case], model=replace(JOBS[case].model, averages=True)
    )

DIVIDED = TransformerSource(TransformerSizes(4, 8, 2, 4, 257, 8, 2))
for name, sharding, ranks, replicas in (
    ("zb-h1", Sharding.NONE, 2, 1),
    ("breadth-first", Sharding.FULL, 1, 2),
):
    JOBS[f"{name} {sharding}, layers divided"] = replace(
        job_of(name, sharding, ranks, replicas),
        model=DIVIDED,
        tp=2,
        sequence_parallel=ranks == 2,
        activations=Activations.KEEP,
    )

HALF = {
    f"{sharding} in half precision, {sent} sent": replace(
        JOBS[f"breadth-first {sharding} 2x2"], precision=DType.BFLOAT16, reduce_precision=sent
    )
    for sharding in Sharding
    for sent in (DType.FLOAT32, DType.BFLOAT16)
}
WRONG_STEPS = {0: (5, "loss"), 1: (7, "loss without gradients"), 3: (2, "gradient")}
LEAVING_OUT = {
    f"{sharding}, some steps left out": replace(
        job,
        communication=replace(job.communication, clipping=True),
        model=SpoiltSource(5, WRONG_STEPS),
        optimization=Optimization(1e-2, skip_nonfinite=2),
        steps=5,
    )
    for sharding in Sharding
    if (job := JOBS[f"breadth-first {sharding} 2x2"])
}


ALL = JOBS | HALF | LEAVING_OUT

# With loops, the last rank is followed by the first: each has two neighbours, and with
# each of them a channel for activations and one for gradients.
GROUPS = {
    ("breadth-first", (3, 1)): [2 + 4] * 3,
    ("breadth-first", (2, 2)): [2 + 4] * 4,
    ("breadth-first", (4, 1)): [2 + 4] * 4,
    ("gpipe", (3, 1)): [2 + 2, 2 + 4, 2 + 2],
}
"""By schedule and cut, how many groups each process makes: of replicas, a pipeline and channels."""


CHAINED = [
    "breadth-first full 2x2",
    "chimera partial, ends tied",
    "full in groups of replicas",
]
"""Cases that also run as in a CUDA graph: what processes do together is one chain."""

Launched = tuple[list[Ran], Counts, list[Ran]]


@pytest.fixture(scope="module")
def launched() -> Launched:
    """All that is run over gloo here: processes are started once."""
    counted = [job_of(name, Sharding.NONE, *cut) for name, cut in GROUPS]
    chained = [JOBS[case] for case in CHAINED]
    found = launch(run_and_count, ([*ALL.values()], counted, chained), PROCESSES)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def ran(launched: Launched) -> dict[str, Ran]:
    return dict(zip(ALL, launched[0], strict=True))


def test_what_processes_do_together_may_be_one_chain(launched: Launched) -> None:
    for case, each in zip(CHAINED, launched[2], strict=True):
        job, losses = JOBS[case], [report.loss for report in each.reports]
        assert compare(job.plan(), losses, each.state).worst < EXACT
        graph, columns = job.plan().graph, each.columns
        for replica in range(job.dp):  # no transfer begins before the one before has all arrived
            timeline = timeline_of(columns, graph, replica)
            for rank in range(graph.layout.pp):
                own = [each for each in graph.rank_tasks.of(rank) if graph.peer[each] == rank]
                for task, following in pairwise(own):
                    assert timeline.end[task] <= timeline.start[following]


@pytest.mark.parametrize("case", JOBS)
def test_training_over_gloo_is_that_of_a_plain_loop(case: str, ran: dict[str, Ran]) -> None:
    losses = [report.loss for report in ran[case].reports]
    errors = compare(JOBS[case].plan(), losses, ran[case].state)
    assert errors.worst < (1e-5 if case == "single precision" else EXACT)


@pytest.mark.slow
def test_every_schedule_trains_so_in_every_sharding() -> None:
    chosen = [*jobs(product(OTHERS, Sharding, CUTS)).values()]
    ran, _, _ = launch(run_and_count, (chosen, [], []), PROCESSES) or ([], [], [])
    for job, each in zip(chosen, ran, strict=True):
        losses = [report.loss for report in each.reports]
        assert compare(job.plan(), losses, each.state).worst < EXACT


@pytest.mark.parametrize("case", HALF)
def test_what_is_sent_in_half_precision_is_so_everywhere(case: str, ran: dict[str, Ran]) -> None:
    """Two replicas have one sum, in one process or in two."""
    _, state = run_locally(HALF[case].plan())
    other = case.replace("bfloat16", "float32")
    differs = []
    for name, held in state.items():
        for offset, piece in held.pieces:
            assert any(
                offset == at and torch.equal(piece, each)
                for at, each in ran[case].state[name].pieces
            ), name
            differs += [
                not torch.equal(piece, each)
                for at, each in ran[other].state[name].pieces
                if at == offset and len(each) == len(piece)
            ]
    assert any(differs) is ("bfloat16" in case)


@pytest.mark.parametrize("case", LEAVING_OUT)
def test_all_processes_leave_the_same_steps_out(case: str, ran: dict[str, Ran]) -> None:
    reports = ran[case].reports
    assert [report.step for report in reports if report.skipped] == [*WRONG_STEPS]
    errors = compare(LEAVING_OUT[case].plan(), [0.0] * len(reports), ran[case].state)
    assert errors.weight < EXACT


@pytest.mark.parametrize("case", [case for case in JOBS if "4x1" in case or "2x2" in case])
def test_what_is_measured_is_an_execution_of_the_graph(case: str, ran: dict[str, Ran]) -> None:
    graph, columns = JOBS[case].plan().graph, ran[case].columns
    for replica in range(JOBS[case].dp):
        timeline = timeline_of(columns, graph, replica)
        assert timeline.posted is not None
        assert timeline.ready is not None
        times = (timeline.posted, timeline.ready, timeline.start, timeline.end)
        assert all(np.isfinite(each).all() for each in times)
        for earlier, later in pairwise(times):
            assert (earlier <= later).all()
        for task in graph.tasks():
            for dependency in task.dependencies:
                # A batch has one end; its other transfers may go on where they are posted apart,
                # and gloo's sends end before their receives.
                is_of_batch = graph.communication.in_groups and graph.is_transfer[dependency]
                is_data = graph.peer[dependency] == task.rank and task.peer == NONE
                if is_data or not is_of_batch:
                    assert timeline.end[dependency] <= timeline.start[task.number]
        for lane in range(len(graph.lanes)):
            for task, following in pairwise(graph.lane_tasks.of(lane)):
                # A sender may go on when all is sent; the transfer ends when all has arrived.
                is_sent = graph.peer[task] != NONE and graph.lane[task] == lane
                late = timeline.end[task] - timeline.start[following]
                assert is_sent or late <= 0


def test_replicas_begin_together_what_they_do_together(ran: dict[str, Ran]) -> None:
    case = "breadth-first full 2x2"
    graph, columns = JOBS[case].plan().graph, ran[case].columns
    start, end = columns[:, 2], columns[:, 3]
    together = np.isin(graph.operation, collectives(graph.communication))
    assert together.any()
    assert (start[0, together] == start[1, together]).all()
    assert (start[0, ~together] != start[1, ~together]).any()
    assert (end >= start).all()


def test_the_step_time_is_that_of_the_timeline(ran: dict[str, Ran]) -> None:
    for case in ("breadth-first none 4x1", "breadth-first full 2x1"):
        job, told = JOBS[case], ran[case]
        seconds = sorted(report.seconds for report in told.reports)
        timeline = timeline_of(told.columns, job.plan().graph)
        assert seconds[len(seconds) // 2] == pytest.approx(timeline.end.max(), abs=1e-9)


def test_a_transfer_takes_two(ran: dict[str, Ran]) -> None:
    """It starts when both ends are ready, and never before its sender is."""
    case = "breadth-first none 4x1"
    graph, columns = JOBS[case].plan().graph, ran[case].columns[0]
    transfers = np.flatnonzero(graph.peer != NONE)
    posted, ready, start, _ = columns[:, transfers]
    assert (posted <= ready).all()
    assert (ready <= start).all()
    assert (ready < start).any()


def test_a_process_makes_the_groups_that_it_is_in(launched: tuple[list[Ran], Counts]) -> None:
    assert launched[1] == [*GROUPS.values()]


# What must not go unnoticed

PAIR = Job(
    schedule=find_schedule("gpipe"),
    layout=Layout(2, 3),
    communication=Communication(),
    model=Chain(2),
    steps=2,
    microbatch_size=2,
    checks_messages=True,
)


@pytest.mark.slow
def test_messages_that_are_received_in_the_wrong_order_are_named() -> None:
    """Of those that are sent in the wrong order, `test_safety` says so by default."""
    with pytest.raises(RunFailed) as failure:
        launch(swap_receives, PAIR, 2)
    assert re.fullmatch(
        r"rank 1 \(process 1\) failed in step 0, in #\d+ transfer activations of stage 0 "
        r"micro-batch 0 from rank 0 to 1: #\d+ transfer activations of stage 0 "
        r"micro-batch 1 from rank 0 to 1 was due, with 8 elements; process 0 sent #\d+ transfer "
        r"activations of stage 0 micro-batch 0 from rank 0 to 1, with 8",
        str(failure.value),
    )
