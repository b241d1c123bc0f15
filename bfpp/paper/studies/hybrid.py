"""The hybrid that the paper conjectures: depth-first in sequences of more than N_PP.

The paper believes, "but did not verify", that longer sequences let depth-first overlap
its transfers. Studied twice: with transfers of a given share of a forward pass, where the
answer has a closed form (`hiding_sequence`), and as the 52 B model on the paper's cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from bfpp.paper.charts import UTILIZATION, draw_charts, utilization
from bfpp.paper.item import Folder, ItemOutput, PaperTable
from bfpp.schedules import Layout, Schedule, TaskGraph, build_graph, find_schedule
from bfpp.schedules.graph.counts import peak_microbatches
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.engines import simulate
from bfpp.traces.figures.svg.line_chart import Chart, Series
from bfpp.traces.timeline.metrics import bubble

RANKS, LOOPS, BATCH = 8, 4, 72
SEQUENCES = [each for each in range(RANKS, BATCH + 1) if BATCH % each == 0]
TRANSFERS = (0.25, 0.5, 1.0)
"""Seconds; a forward pass of a stage takes one, a backward pass two."""

MODEL, MODEL_BATCH, MODEL_SEQUENCES = "bert-52b", 64, (8, 16, 32, 64)
NETWORKS = {"InfiniBand": "dgx1-v100", "Ethernet": "dgx1-v100-ethernet"}
CHOICE = (
    "The sequence is the shortest, of those that divide the batch, whose step is as short as "
    "breadth-first's; in brackets N_PP (1 + transfer / forward)."
)
LOSS = (
    "What is lost otherwise is lost in the warm-up and the drain alone, once a step: (N_loop - 1) "
    "[N_PP (F + T) - N F] for the first sequence of N, and the like with B for the last one. "
    "Between them a rank has a pass of the other kind to do while a transfer is under way, up to "
    "T = (F + B) / 2."
)
SHARDINGS = {"none": "", "full": ", fully sharded"}


def hiding_sequence(ranks: int, transfer: float) -> int:
    """The shortest sequence in which transfers as long as `transfer` passes delay no loop.

    A micro-batch is back at its first rank after N_PP forward passes and as many
    transfers, and is not waited for if the sequence keeps that rank busy until then.
    """
    return ceil(ranks * (1 + transfer))


def make(folder: Folder) -> ItemOutput:
    """Simulate, draw what each sequence costs and saves, and say what follows."""
    graphs = {each: _graph(_hybrid(each)) for each in SEQUENCES}
    breadth_first = _graph(find_schedule("breadth-first"))
    charts = [_of_transfers(graphs), _of_memory(graphs, breadth_first), *_of_the_model()]
    made = draw_charts(charts, folder, "hybrid", _sentence(charts))
    table = _table(graphs, breadth_first)
    path = folder / "hybrid.md"
    table.write(path)
    return ItemOutput([*made.files, path], made.record, table, made.sentence)


def _hybrid(sequence: int) -> Schedule:
    return find_schedule("depth-first", sequence=sequence)


def _graph(schedule: Schedule) -> TaskGraph:
    return build_graph(schedule, Layout(RANKS, BATCH, LOOPS))


def _step(graph: TaskGraph, transfer: float) -> float:
    return simulate(graph, AbstractCosts(transfer=transfer)).step_time


def _in_flight(graph: TaskGraph) -> float:
    return float(peak_microbatches(graph).max())


def _of_transfers(graphs: dict[int, TaskGraph]) -> Chart:
    series = []
    for transfer in TRANSFERS:
        added = [_step(graph, transfer) - _step(graph, 0) for graph in graphs.values()]
        series.append(Series(f"transfer = {transfer:g} forward", SEQUENCES, added))
    return Chart(
        "(a) What transfers add to the step",
        "micro-batches in a sequence",
        "forward passes of a stage",
        series,
        logarithmic_x=True,
    )


def _of_memory(graphs: dict[int, TaskGraph], breadth_first: TaskGraph) -> Chart:
    held = [_in_flight(graph) for graph in graphs.values()]
    most = [_in_flight(breadth_first)] * len(SEQUENCES)
    return Chart(
        "(b) Activations of the first rank",
        "micro-batches in a sequence",
        "in-flight micro-batches",
        [
            Series("hybrid", SEQUENCES, held),
            Series("breadth-first", SEQUENCES, most, dotted=False),
        ],
        logarithmic_x=True,
    )


def _of_the_model() -> list[Chart]:
    charts = []
    for letter, (network, cluster) in zip("cd", NETWORKS.items(), strict=True):
        series = []
        for sharding, words in SHARDINGS.items():
            values = [_utilization(_hybrid(n), cluster, sharding) for n in MODEL_SEQUENCES]
            series.append(Series(f"hybrid{words}", MODEL_SEQUENCES, values))
        title = f"({letter}) 52 B on 256 V100, {network}"
        charts.append(
            Chart(title, "micro-batches in a sequence", UTILIZATION, series, logarithmic_x=True)
        )
    return charts


def _utilization(schedule: Schedule, cluster: str, sharding: str) -> float:
    return utilization(
        schedule, MODEL, (8, 8, 4), MODEL_BATCH, LOOPS,
        cluster=cluster, sharding=sharding, implementation="paper",
    )  # fmt: skip


def _table(graphs: dict[int, TaskGraph], breadth_first: TaskGraph) -> PaperTable:
    """For each transfer time, the shortest sequence that costs no more than breadth-first."""
    rows = []
    for transfer in TRANSFERS:
        least = hiding_sequence(RANKS, transfer)
        enough = next(
            each
            for each, graph in graphs.items()
            if _step(graph, transfer) <= _step(breadth_first, transfer) * (1 + 1e-9)
        )
        rows.append(
            [
                f"{transfer:g}",
                *(_bubble(graph, transfer) for graph in (graphs[RANKS], graphs[enough])),
                _bubble(breadth_first, transfer),
                f"{enough} ({least})",
                *(f"{_in_flight(graph):.1f}" for graph in (graphs[RANKS], graphs[enough])),
                f"{_in_flight(breadth_first):.1f}",
            ]
        )
    return PaperTable(
        f"Depth-first in longer sequences: {RANKS} ranks, {LOOPS} loops, {BATCH} micro-batches",
        [
            "transfer / forward",
            "bubble, depth-first",
            "bubble, hybrid",
            "bubble, breadth-first",
            "sequence (formula)",
            "in flight, depth-first",
            "in flight, hybrid",
            "in flight, breadth-first",
        ],
        rows,
        [CHOICE, LOSS],
    )


def _bubble(graph: TaskGraph, transfer: float) -> str:
    return f"{100 * bubble(simulate(graph, AbstractCosts(transfer=transfer))):.1f} %"


def _sentence(charts: Sequence[Chart]) -> str:
    infiniband, ethernet = ({each.name: each.y for each in chart.series} for chart in charts[2:])
    sharded, unsharded = infiniband["hybrid, fully sharded"], ethernet["hybrid"]
    most = [
        _utilization(find_schedule("breadth-first"), cluster, sharding)
        for cluster, sharding in ((NETWORKS["InfiniBand"], "full"), (NETWORKS["Ethernet"], "none"))
    ]
    return (
        "The conjecture holds: a sequence of N_PP (1 + transfer / forward) micro-batches hides "
        "all transfers behind compute, and each micro-batch beyond N_PP costs the activations of "
        "1 - 1 / N_loop of one. It is a hybrid for pipeline-parallel transfers alone. Gathers and "
        "reductions still come once a sequence: fully sharded, the 52 B model reaches "
        f"{sharded[0]:.0f} % in sequences of 8, {sharded[1]:.0f} % of 16 and {sharded[-1]:.0f} % "
        f"in one of 64 (breadth-first {most[0]:.0f} %); on Ethernet, unsharded, "
        f"{unsharded[0]:.0f} %, {unsharded[1]:.0f} % and {unsharded[-1]:.0f} % "
        f"({most[1]:.0f} %). The whole batch in one sequence is as fast as breadth-first and "
        "holds less, since its last stages already take turns."
    )
