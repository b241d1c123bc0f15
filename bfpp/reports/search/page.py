"""The results of a search as a page: throughput against memory, and the best timelines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bfpp.api.panel import panel_of
from bfpp.api.predictions import predict
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.search.outcomes import Outcome, Outcomes
from bfpp.sim.search.space import Space
from bfpp.terminal.outputs import Output
from bfpp.terminal.printing import counted
from bfpp.traces.page.html import contents, document

TIMELINES = 3
"""Number of best configurations whose timelines are drawn."""

GAINS = 100
"""The longest waits of each timeline, whose gains are computed."""

FILTERS = (
    "schedule", "gpus", "pp", "tp", "dp", "cp", "ep", "loops", "microbatch_size", "batch",
    "sharding", "precision", "recompute", "tp_overlap", "offload",
)  # fmt: skip


def write_search_page(
    page: Output,
    title: str,
    best_first: Outcomes,
    front: Space,
    drawn: Sequence[Experiment],
) -> None:
    """Write the configurations that fit, and the timelines of the experiments `drawn`."""
    predictions = [replace(predict(each), with_interval=False) for each in drawn]
    lead = (
        f"Best of {len(best_first):,} that fit: {_title(best_first[0])}." if len(best_first) else ""
    )
    results = {
        "x": "GiB on the largest rank",
        "y": "samples per second",
        "filters": FILTERS,
        "rows": [
            _row(*each)
            for each in zip(best_first, best_first.space.are_in(front).tolist(), strict=True)
        ],
    }
    content = contents([panel_of(each, GAINS) for each in predictions], title, lead)
    with page.written() as path:
        path.write_text(document({**content, "results": results}), encoding="utf-8")


def _row(outcome: Outcome, is_best: bool) -> dict[str, Any]:
    record = outcome.record
    return {
        **{name: record[name] for name in FILTERS},
        "x": outcome.memory_largest_gb,
        "y": outcome.samples_per_second,
        "pareto": is_best,
        "title": _title(outcome),
    }


def _title(outcome: Outcome) -> str:
    record = outcome.record
    sharding = outcome.configuration.communication.sharding
    return (
        f"{record['schedule']}, {record['pp']} pipeline x {record['tp']} tensor x "
        f"{record['dp']} data, {counted(record['loops'], 'loop')}, "
        f"{counted(record['microbatches'], 'micro-batch', 'es')} of "
        f"{counted(record['microbatch_size'], 'sample')}, {sharding.usual_name}: "
        f"{outcome.samples_per_second:.4g} samples per second, "
        f"{outcome.model_tflops_per_gpu:.4g} TFLOP/s per GPU, {outcome.memory_largest_gb:.1f} GiB"
    )
