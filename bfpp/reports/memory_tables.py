"""Peak memory of ranks as it is reported: JSON, and tables."""

from __future__ import annotations

from collections.abc import Sequence
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
    on_host = [round(held.on_host(graph)) if _is_known(held) else None for held in predicted]
    return [
        {
            "rank": each.held.rank,
            "replica": each.replica,
            "tp_rank": each.tp_rank,
            **_peak(held := each.held.on_device(graph)),
            **_task(held, graph),
            "host": each.host,
            **{f"predicted_{name}": it for name, it in _peak(on_device[held.rank]).items()},
            "predicted_host": on_host[held.rank],
            "allocated": each.allocated,
            "reserved": each.reserved,
        }
        for each in measured
    ]


def _peak(held: MemoryRecord) -> dict[str, Any]:
    """A peak that leaves activations out is none."""
    known = _is_known(held) and PARTS["transient"] in held.during
    parts = {name: round(size) for name, size in held.at_peak.items()}
    return {"peak": sum(parts.values()) if known else None, "parts": parts}


def _is_known(held: MemoryRecord) -> bool:
    """True if saved activations are among the parts: of some models they are not predicted."""
    return PARTS["saved"] in held.during


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


def unit_of(most: float) -> tuple[str, int]:
    """The unit that fits this number of bytes, and its size."""
    return next((unit for unit in UNITS.items() if most >= unit[1]), ("bytes", 1))
