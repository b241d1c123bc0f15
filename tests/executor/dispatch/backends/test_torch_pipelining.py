"""PyTorch's runtime, torch.distributed.pipelining, runs our orders, and learns what a loop does."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from bfpp.executor.dispatch.backends.torch_pipelining import orders_of, require_runnable
from bfpp.executor.processes import ProcessContext, launch
from bfpp.executor.settings import Activations, BackendName, DType, Optimization
from bfpp.executor.train.job import Job
from bfpp.schedules import (
    Communication,
    InvalidConfiguration,
    Layout,
    Sharding,
    build_graph,
    find_schedule,
    lower,
    registered_schedules,
)
from tests.helpers.gloo_runs import Chain, Ran, run_all
from tests.helpers.small_models import chain, dropout
from tests.helpers.strategies import some_configuration
from tests.helpers.training_runs import EXACT, STEPS, compare, plan_of


def job_of(name: str, ranks: int, replicas: int = 1, clips: bool = False) -> Job:
    communication = Communication(Sharding.NONE, clipping=clips)
    schedule, layout, _ = some_configuration(find_schedule(name), ranks, communication)
    return Job(
        schedule=schedule,
        layout=layout,
        communication=communication,
        model=Chain(layout.units + 1),
        steps=STEPS,
        backend=BackendName.TORCH_PIPELINING,
        dp=replicas,
        microbatch_size=2,
        precision=DType.FLOAT64,
        activations=Activations.KEEP,
        optimization=Optimization(1e-2, clip=0.05 if clips else None),
    )


def jobs(ranks: int, replicas: int = 1) -> dict[str, Job]:
    """Every schedule that can be run so, every second one with clipping."""
    found = {}
    for number, name in enumerate(registered_schedules()):
        with suppress(InvalidConfiguration):
            job = job_of(name, ranks, replicas, clips=number % 2 == 1)
            job.plan()
            found[name] = job
    return found


def run_counted(context: ProcessContext, jobs: Sequence[Job]) -> tuple[list[Ran], int]:
    """The result of `run_all`, and the number of steps that PyTorch's runtime ran here."""
    steps = [0]
    step = _PipelineScheduleRuntime.step

    def counted(self: object, *arguments: object, **options: object) -> object:
        steps[0] += 1
        return step(self, *arguments, **options)

    _PipelineScheduleRuntime.step = counted
    return run_all(context, jobs), steps[0]


def require_exact(cases: dict[str, Job], processes: int) -> None:
    ran, steps = launch(run_counted, list(cases.values()), processes)
    assert steps == STEPS * len(cases)
    for job, found in zip(cases.values(), ran, strict=True):
        losses = [report.loss for report in found.reports]
        assert compare(job.plan(), losses, found.state).worst < EXACT


@pytest.mark.usefixtures("forked_processes")
def test_two_ranks_train_as_a_plain_loop() -> None:
    cases = jobs(2)
    cases["buffers that passes change"] = replace(
        cases["1f1b"], model=replace(cases["1f1b"].model, averages=True)
    )
    assert {"1f1b", "breadth-first", "zb-h1", "zb1p", "zb-v", "v-half"} <= cases.keys()
    require_exact(cases, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "replicas"), [(2, 2), (4, 1), (3, 1)])
def test_more_ranks_and_replicas_do_too(ranks: int, replicas: int) -> None:
    require_exact(jobs(ranks, replicas), ranks * replicas)


def test_orders_are_those_of_the_schedule() -> None:
    for name in jobs(2):
        job = job_of(name, 2)
        orders = job.schedule.orders(job.layout)
        assert [each.tolist() for each in orders_of(job.plan().graph)] == [
            each.tolist() for each in orders
        ]


def test_what_it_cannot_run_is_refused_in_a_line() -> None:
    layout = Layout(2, 4)
    graph = build_graph("1f1b", layout)
    model = chain(2)
    kept = {"activations": Activations.KEEP}
    require_runnable(plan_of(graph, model, **kept))
    sharded = build_graph("1f1b", layout, Communication(Sharding.FULL))
    chimera = some_configuration(find_schedule("chimera"), 2, Communication()).graph()
    orders = find_schedule("gpipe").orders(layout)
    for order in orders:
        order["microbatch"] = 3 - order["microbatch"]
    from_the_last = lower(orders, layout, Communication())
    half = {**kept, "precision": DType.BFLOAT16}
    for plan, field in (
        (plan_of(graph, model), "activations"),
        (plan_of(sharded, model, **kept), "sharding"),
        (plan_of(chimera, chain(chimera.layout.units), **kept), "copies"),
        (plan_of(graph, model, **half), "precision"),
        (plan_of(graph, chain(2, 4, dropout), **kept), "model"),
        (plan_of(from_the_last, model, **kept), "schedule"),
    ):
        with pytest.raises(InvalidConfiguration, match="PyTorch's runtime ") as refused:
            require_runnable(plan)
        assert refused.value.field == field
