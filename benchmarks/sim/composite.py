"""Steps whose passes are in pieces, next to the same steps with a task a pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from benchmarks.helpers.measure import Results, medians
from bfpp.schedules import TaskGraph
from bfpp.sim.costs.expert_exchanges import with_exchanges
from bfpp.sim.experiment.experiment import Experiment

RUNS = 15
SIZES = {"pp": 4, "dp": 8, "ep": 8, "microbatches": 256}
MODEL = {"model": "deepseek-v2", "cluster": "dgx-h100", "implementation": "current"}


def run() -> Results:
    alone, blocks = Experiment("1f1b", **SIZES, **MODEL), Experiment("dualpipe", **SIZES, **MODEL)
    graph = alone.graph()
    pieces = with_exchanges(graph, alone.require_physical())
    fused = blocks.graph()
    # With this option exchanges are no pieces: a pass is as long as what it does not hide.
    whole = blocks.changed(microbatch_overlap=True)
    cases: dict[str, tuple[int, Callable[[], object], Callable[[], object]]] = {
        "1F1B, priced and replayed": (
            len(graph),
            partial(_times, alone, pieces),
            partial(_times, alone, graph),
        ),
        "DualPipe, priced and replayed": (
            len(fused),
            partial(_times, blocks, fused),
            partial(_times, whole, fused),
        ),
        "DualPipe, from the experiment on": (
            len(fused),
            partial(_whole_step, blocks),
            partial(_whole_step, whole),
        ),
    }
    rows = []
    for name, (tasks, with_pieces, without) in cases.items():
        ours, theirs = medians(RUNS, with_pieces, without, clock=time.process_time)
        rows.append(
            {
                "step": name,
                "tasks": f"{tasks:,}",
                "in pieces (ms of CPU)": f"{1e3 * ours:.1f}",
                "whole (ms of CPU)": f"{1e3 * theirs:.1f}",
                "ratio": f"{ours / theirs:.2f}",
            }
        )
    return Results(
        "Composite passes: exchanges of experts inside passes",
        "at most 1.2 times as slow as with a task a pass",
        rows,
        [
            "DeepSeek-V2 on H100, 4 ranks, EP 8, 256 micro-batches; costs remember nothing.",
            f"Medians of {RUNS} runs in turn; compiled loops loaded.",
        ],
    )


def _times(experiment: Experiment, graph: TaskGraph) -> object:
    """Price and replay a graph, by costs that have priced none before."""
    return experiment.changed().require_physical().times(graph)


def _whole_step(experiment: Experiment) -> object:
    again = experiment.changed()
    return again.require_physical().times(again.graph())


if __name__ == "__main__":
    print(run())
