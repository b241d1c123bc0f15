"""Tables E.1 to E.3: every measured configuration available, next to its prediction."""

from __future__ import annotations

from bfpp.paper.best import printed
from bfpp.paper.item import Folder, ItemOutput, PaperTable
from bfpp.sim.measurements.validation import Comparison, compare, mean_absolute_error

COLUMNS = (
    "method", "batch", "pp x tp x dp", "micro-batches", "loops", "sharding",
    "TFLOP/s per GPU", "predicted", "error", "memory (GiB)", "predicted", "error",
)  # fmt: skip


def make(table: str, folder: Folder) -> ItemOutput:
    """Predict the rows of a table (E.1, E.2 or E.3)."""
    comparisons = [compare(row) for row in printed(table)]
    throughput = mean_absolute_error(comparisons, "tflops_per_gpu")
    memory = mean_absolute_error(comparisons, "memory_gb")
    worst = max(comparisons, key=lambda each: abs(each.error("tflops_per_gpu")))
    layout = PaperTable(
        f"Table {table}: measured and predicted", COLUMNS, [_row(each) for each in comparisons]
    )
    path = folder / f"table-{table.lower().replace('.', '')}.md"
    layout.write(path)
    sentence = (
        f"Over {len(comparisons)} rows the mean absolute error is {throughput:.1f} % for "
        f"throughput and {memory:.1f} % for memory; the largest is "
        f"{worst.error('tflops_per_gpu'):+.1f} %, for {worst.measured.schedule} at batch "
        f"{worst.measured.batch}."
    )
    record = {"throughput_mape": throughput, "memory_mape": memory, "rows": len(comparisons)}
    return ItemOutput([path], record, layout, sentence)


def _row(each: Comparison) -> list[str]:
    row = each.measured.record
    cells = [
        row["schedule"],
        str(row["batch"]),
        f"{row['pp']} x {row['tp']} x {row['dp']}",
        f"{row['microbatches']} of {row['microbatch_size']}",
        str(row["loops"]),
        row["sharding"],
    ]
    for name in ("tflops_per_gpu", "memory_gb"):
        measured, predicted = each.measured_value(name), each.predicted[name]
        cells += [f"{measured:.2f}", f"{predicted:.2f}", f"{each.error(name):+.1f} %"]
    return cells
