"""Peak memory of ranks as it is reported: JSON, and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bfpp.schedules import TaskGraph
from bfpp.schedules.columns import NONE
from bfpp.terminal.printing import RANKS_SHOWN, print_table
from bfpp.traces.timeline.memory_record import PARTS, MemoryRecord, steps_of

if TYPE_CHECKING:
    from bfpp.executor.memory.sizes import StartMemory
    from bfpp.executor.train.memory_report import MeasuredMemory

HOST = "offloaded, on the host"

UNITS = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "bytes": 1}


def memory_record(
    measured: Sequence[MeasuredMemory], predicted: Sequence[MemoryRecord], graph: TaskGraph
) -> list[dict[str, Any]]:
    """The peak of each rank of each replica, and its prediction; in bytes.

    What is offloaded is left out while it is on the host alone; of the host's memory there is the
    most that is taken for it.
    """
    on_device = [held.on_device(graph) for held in predicted]
    on_host = [round(held.on_host(graph)) if held.has_saved else None for held in predicted]
    return [
        {
            "rank": each.held.rank,
            "replica": each.replica,
            "tp_rank": each.tp_rank,
            **(held := each.held.on_device(graph)).at_peak_in_bytes,
            **_task(held, graph),
            "host": each.host,
            **{
                f"predicted_{name}": it
                for name, it in on_device[held.rank].at_peak_in_bytes.items()
            },
            "predicted_host": on_host[held.rank],
            "allocated": each.allocated,
            "reserved": each.reserved,
        }
        for each in measured
    ]


def _task(held: MemoryRecord, graph: TaskGraph) -> dict[str, Any]:
    task = graph.task(steps_of(graph, held.rank)[held.peak].item())
    return {
        "operation": task.operation.title,
        "stage": None if task.stage == NONE else task.stage,
        "microbatch": None if task.microbatch == NONE else task.microbatch,
    }


def start_record(measured: Sequence[int], predicted: Sequence[StartMemory]) -> list[dict[str, Any]]:
    """The most bytes of tensors in each process before the first step, and what is predicted."""
    return [
        {"process": process, "peak": peak, "predicted_peak": expected.peak}
        for process, (peak, expected) in enumerate(zip(measured, predicted, strict=True))
    ]


def start_in_words(record: Sequence[dict[str, Any]]) -> str:
    """The largest memory of a process before the first step, measured and predicted."""
    most = max(record, key=lambda start: int(start["peak"]))
    unit, size = unit_of(most["peak"])
    return f"{most['peak'] / size:.4g} {unit}, {most['predicted_peak'] / size:.4g} predicted"


def print_memory(record: Sequence[dict[str, Any]]) -> None:
    """A table of the first replica's ranks: the parts of each peak, and the prediction."""
    ranks = [each for each in record if each["replica"] == each["tp_rank"] == 0][:RANKS_SHOWN]
    if not ranks:
        return
    unit, size = unit_of(max(each["peak"] for each in ranks))
    names = [name for name in PARTS.values() if any(each["parts"].get(name) for each in ranks)]
    pinned = [HOST] if any(each["host"] for each in ranks) else []

    def cell(measured: float, predicted: float | None) -> str:
        return f"{measured / size:.4g} / {'?' if predicted is None else f'{predicted / size:.4g}'}"

    print_table(
        f"Peak memory in {unit}, measured in the first step / predicted",
        ("rank", "during", "peak", *names, *pinned),
        [
            (
                str(each["rank"]),
                each["operation"],
                cell(each["peak"], each["predicted_peak"]),
                *(cell(each["parts"][name], each["predicted_parts"].get(name)) for name in names),
                *(cell(each["host"], each["predicted_host"]) for _ in pinned),
            )
            for each in ranks
        ],
    )


def print_dry_run(record: Mapping[str, Any]) -> None:
    """Tables of one rank that is not run: its tasks, groups, kernels that may spin, and memory."""
    tasks, groups, spinning = record["tasks"], record["groups"], record["spinning"]
    print_table(
        f"{record['schedule']}: process {record['process']} of {record['processes']:,}, pipeline "
        f"rank {record['rank']}, replica {record['replica']}, tensor-parallel rank "
        f"{record['tp_rank']}",
        ("", ""),
        [
            ("stages", ", ".join(map(str, record["stages"]))),
            ("layers", str(len(record["layers"]))),
            ("tasks in a step", f"{tasks['total']:,}"),
            *((each["operation"], f"{each['tasks']:,}") for each in tasks["operations"]),
        ],
    )
    print_table(
        "First tasks",
        ("task", "operation", "stage", "micro-batch", "with process"),
        [
            tuple("" if each is None else str(each) for each in row.values())
            for row in tasks["first"]
        ],
    )
    print_table(
        "Process groups, in the order in which they are made",
        ("", "processes", "members", *(("CTAs, most", "memory, most") if spinning else ())),
        [_group_row(each, with_nccl=spinning is not None) for each in groups],
    )
    if spinning:
        print_table(
            f"Kernels of communication that may spin at one time on a GPU of {spinning['cluster']}",
            ("lane", "group", "multiprocessors"),
            [
                *((it["lane"], it["group"], str(it["ctas"])) for it in spinning["kernels"]),
                ("together, at the most", "", str(spinning["ctas"])),
                ("of the GPU", "", str(spinning["multiprocessors"])),
            ],
        )
    _print_predicted(record)


def _group_row(group: Mapping[str, Any], *, with_nccl: bool) -> tuple[str, ...]:
    members = group["members"]
    if members is None or len(members) > MEMBERS_SHOWN:
        shown = f"{members[0]}, {members[1]}, ... {members[-1]}" if members else "all"
    else:
        shown = ", ".join(map(str, members))
    cells = (group["purpose"], f"{group['size']:,}", shown)
    return (*cells, str(group["max_ctas"]), _in_words(group["bytes"])) if with_nccl else cells


MEMBERS_SHOWN = 8
"""Members of a group that a table names."""


def _print_predicted(record: Mapping[str, Any]) -> None:
    memory, start = record["memory"], record["start_memory"]
    parts = memory["parts"] if memory else {}
    rows = [(name, _in_words(size)) for name, size in parts.items()]
    if memory and memory["peak"] is not None:
        rows.append(("peak of a step", _in_words(memory["peak"])))
    communicators = [each["bytes"] or 0 for each in record["groups"]]
    rows += [
        ("communicators, at the most", _in_words(sum(communicators))),
        ("peak before the first step", _in_words(start["peak"])),
        ("of which on the host", _in_words(start["host"])),
    ]
    print_table("Memory, predicted", ("", ""), rows)


def _in_words(size: float) -> str:
    unit, one = unit_of(size)
    return f"{size / one:.4g} {unit}"


def unit_of(most: float) -> tuple[str, int]:
    """The unit that fits this number of bytes, and its size."""
    return next((unit for unit in UNITS.items() if most >= unit[1]), ("bytes", 1))
