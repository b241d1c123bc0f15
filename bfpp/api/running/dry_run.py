"""One rank of a job that is not run: its tasks, process groups, communicators and memory.

It is worked out from the plan alone, which is as large for thousands of replicas as for one: no
process is started, no weight is made, and no device is needed.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from bfpp.api.running.run_memory import memory_of_job
from bfpp.executor.settings import BackendName
from bfpp.schedules import InvalidConfiguration, Operation, Task
from bfpp.schedules.columns import NONE
from bfpp.sim.cluster.cluster import Cluster, load_cluster
from bfpp.sim.cluster.communicators import communicator_bytes

if TYPE_CHECKING:
    from bfpp.executor.plan.plan import Plan
    from bfpp.executor.plan.process_groups import Membership
    from bfpp.executor.train.job import Job

FIRST_TASKS = 16
"""The tasks of the rank that are listed, from its first one on."""


def dry_run(job: Job, process: int, cluster: str) -> dict[str, Any]:
    """The record of a process, as JSON has it; with NCCL, on a cluster.

    Raises `InvalidConfiguration` for a process that the job does not have, and where its
    communication could fill a GPU of the cluster and wait for ever.
    """
    if job.backend is BackendName.LOCAL:
        raise InvalidConfiguration("dry_run", "is of one rank; --backend local has one process")
    if process >= job.processes:
        raise InvalidConfiguration("rank", f"must be less than {job.processes}, the processes")
    plan = job.plan()
    plan.check()
    rank, pipeline = divmod(process, plan.pipelines)
    replica, tp_rank = divmod(pipeline, plan.tp)
    layout = plan.graph.layout
    units = layout.units_of(rank)
    return {
        "schedule": job.schedule.name,
        "backend": str(job.backend),
        "processes": job.processes,
        "process": process,
        "rank": rank,
        "replica": replica,
        "tp_rank": tp_rank,
        "stages": sorted({int(layout.stage_of_unit[unit]) for unit in units}),
        "layers": sorted(layer for unit in units for layer in plan.cuts[unit]),
        "tasks": _tasks(plan, rank, pipeline),
        **_communication(job, plan, (rank, pipeline), cluster),
        "memory": _memory(job, plan, rank),
        "start_memory": _start(job, plan, rank),
    }


def _tasks(plan: Plan, rank: int, pipeline: int) -> dict[str, Any]:
    """The rank's tasks: how many there are of each operation, and the first ones."""
    own = [plan.graph.task(number) for number in plan.graph.rank_tasks.of(rank).tolist()]
    counts = Counter(_name(task, rank) for task in own)
    return {
        "total": len(own),
        "operations": [{"operation": name, "tasks": count} for name, count in counts.items()],
        "first": [_task(plan, task, rank, pipeline) for task in own[:FIRST_TASKS]],
    }


def _name(task: Task, rank: int) -> str:
    """The name of the rank's part in a task: of a transfer, its end."""
    if task.operation not in (Operation.TRANSFER_ACTIVATIONS, Operation.TRANSFER_GRADIENTS):
        return task.called
    sent = task.called.removeprefix("transfer ")
    return f"send {sent}" if task.rank == rank else f"receive {sent}"


def _task(plan: Plan, task: Task, rank: int, pipeline: int) -> dict[str, Any]:
    peer = task.peer if task.rank == rank else task.rank
    known = {"stage": task.stage, "microbatch": task.microbatch}
    return {
        "task": task.number,
        "operation": _name(task, rank),
        **{name: None if number == NONE else number for name, number in known.items()},
        "peer": None if task.peer == NONE else plan.process(peer, pipeline),
    }


def _communication(job: Job, plan: Plan, place: tuple[int, int], cluster: str) -> dict[str, Any]:
    """The groups that the process is in; of NCCL's, their memory, and what may spin at a time."""
    from bfpp.executor.dispatch.backends.groups import EVERYONE
    from bfpp.executor.plan.process_groups import SMALL_CTAS, memberships

    groups = [each for each in memberships(plan, *place) if each]
    if job.backend is not BackendName.CUDA:
        return {"groups": [_group(each, None) for each in groups], "spinning": None}
    on = load_cluster(cluster)
    everyone = {
        "purpose": EVERYONE,
        "members": [*range(job.processes)] if job.processes <= MOST_LISTED else None,
        "size": job.processes,
        "max_ctas": SMALL_CTAS,
        "bytes": 0,
    }
    return {
        "groups": [everyone, *(_group(each, on) for each in groups)],
        "spinning": _spinning(plan, place, on, cluster),
    }


MOST_LISTED = 1024
"""Processes up to which the members of a group are listed."""


def _group(group: Membership, cluster: Cluster | None) -> dict[str, Any]:
    is_channel = group.channel is not None
    return {
        "purpose": group.title,
        "members": [*group.members] if len(group.members) <= MOST_LISTED else None,
        "size": len(group.members),
        "max_ctas": cluster and group.max_ctas,
        "bytes": cluster
        and communicator_bytes(
            group.members, group.max_ctas, cluster.gpus_per_node, transfers=is_channel
        ),
    }


def _spinning(plan: Plan, place: tuple[int, int], cluster: Cluster, name: str) -> dict[str, Any]:
    """The largest communication kernel of each lane in CTAs, and the number of SMs of the GPU."""
    from bfpp.executor.plan.process_groups import require_co_resident, spinning

    kernels = spinning(plan, *place)
    there = cluster.device.multiprocessors
    require_co_resident(plan, there, f"a GPU of {name}")
    return {
        "cluster": name,
        "kernels": [
            {"lane": each.lane, "group": each.group.title, "ctas": each.group.max_ctas}
            for each in kernels
        ],
        "ctas": sum(each.group.max_ctas for each in kernels),
        "multiprocessors": there,
    }


def _memory(job: Job, plan: Plan, rank: int) -> dict[str, Any] | None:
    """The predicted peak of the rank; nothing where its memory is not measured either."""
    predicted = memory_of_job(job, plan)
    return predicted[rank].on_device(plan.graph).at_peak_in_bytes if predicted else None


def _start(job: Job, plan: Plan, rank: int) -> dict[str, int]:
    from bfpp.executor.memory.sizes import start_bytes

    return start_bytes(plan, (rank,), restores=job.saving is not None)._asdict()
