"""Breadth-first with backward passes in halves: whether it gains, and when.

Studied as `hybrid` is: with transfers and reductions of a given share of a pass, where the
answer has a closed form (`Passes`), and as the 52 B model on the paper's cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from bfpp.paper.charts import draw_charts, utilization
from bfpp.paper.item import Folder, ItemOutput, PaperTable
from bfpp.schedules import Communication, Layout, Schedule, Sharding, build_graph, find_schedule
from bfpp.schedules.graph.counts import peak_microbatches
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.engines import simulate
from bfpp.traces.figures.svg.line_chart import Chart, Series
from bfpp.traces.timeline.metrics import bubble

RANKS, LOOPS, BATCH = 8, 4, 32
TRANSFERS = (0.0, 0.125, 0.25, 0.375, 0.5)
"""Seconds; a forward pass of a stage takes one, and so does each half of a backward pass."""

BATCHES = (8, 16, 32, 64)
REDUCTIONS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25)
"""Of a stage's backward passes, all micro-batches: what a reduction of it takes."""

SCHEDULES = {
    "breadth-first": find_schedule("breadth-first"),
    "bf-split": find_schedule("bf-split"),
    "zb-bf": find_schedule("zb-bf"),
    "zb1p": find_schedule("zb1p"),
}
MODEL, MODEL_BATCHES = "bert-52b", (16, 64)
NETWORKS = {"InfiniBand": "dgx1-v100", "Ethernet": "dgx1-v100-ethernet"}
SHARDINGS = {Sharding.NONE: "DP_0", Sharding.FULL: "DP_FS"}
NOTE = (
    "GPU utilization (%) of the 52 B model on 256 V100, N_PP = N_TP = 8, N_DP = 4, 4 loops, "
    "all activations recomputed."
)


class Passes(NamedTuple):
    """Seconds of the passes of a stage, and of a transfer.

    The forms hold if W is no longer than F and I, transfers than half of these, and a batch is at
    least `lead` (N_PP - 1) + 1 micro-batches. An idle time is what each rank beyond the first adds.
    """

    forward: float = 1.0
    input: float = 1.0
    weight: float = 1.0
    transfer: float = 0.0

    @property
    def backward(self) -> float:
        """A whole backward pass."""
        return self.input + self.weight

    @property
    def idle_breadth_first(self) -> float:
        """F + I + W + 2 T."""
        return self.forward + self.backward + 2 * self.transfer

    @property
    def idle_split(self) -> float:
        """F + I + 2 T."""
        return self.forward + self.input + 2 * self.transfer

    def idle_zero_bubble(self, lead: int) -> float:
        """F + I + 2 T - lead W, but no less than F + T, with which the last rank begins late."""
        first = self.forward + self.transfer
        return max(first, self.idle_split - lead * self.weight)

    def hidden_reduction(self, layout: Layout, lead: int) -> float:
        """The longest reduction of a stage with which zb-bf is faster than bf-split.

        On the last rank, a stage but the first completes its gradients (N_PP - 1) (lead I - I - T)
        later than in bf-split, and the reduction still has to end before the next one's begins.
        """
        later = (layout.pp - 1) * ((lead - 1) * self.input - self.transfer)
        return layout.microbatches * self.backward - later


def make(folder: Folder) -> ItemOutput:
    """Simulate, draw what halves gain and cost, and say what follows."""
    table = _table()
    made = draw_charts(_charts(), folder, "zero-bubble", _sentence(table))
    path = folder / "zero-bubble.md"
    table.write(path)
    return ItemOutput([*made.files, path], made.record, table, made.sentence)


def _charts() -> list[Chart]:
    backward = Passes().backward * BATCH

    def overhead(
        schedule: Schedule, costs: AbstractCosts, sharding: Sharding = Sharding.NONE
    ) -> float:
        graph = build_graph(schedule, Layout(RANKS, BATCH, LOOPS), Communication(sharding))
        return 100 * bubble(simulate(graph, costs))

    def in_flight(schedule: Schedule, microbatches: float) -> float:
        graph = build_graph(schedule, Layout(RANKS, int(microbatches), LOOPS))
        return float(peak_microbatches(graph).max())

    def sharded(schedule: Schedule, share: float) -> float:
        return overhead(
            schedule, AbstractCosts(gather=share * backward, reduce=share * backward), Sharding.FULL
        )

    return [
        _chart(
            "(a) Transfers", "transfer / forward", "bubble (%)", TRANSFERS,
            lambda schedule, transfer: overhead(schedule, AbstractCosts(transfer=transfer)),
        ),
        _chart(
            "(b) Activations", "micro-batches", "in-flight micro-batches", BATCHES, in_flight,
        ),
        _chart(
            "(c) Reductions, DP_0", "reduction / backward of a stage", "overhead (%)", REDUCTIONS,
            lambda schedule, share: overhead(schedule, AbstractCosts(reduce=share * backward)),
        ),
        _chart(
            "(d) Reductions and gathers, DP_FS", "reduction / backward of a stage", "overhead (%)",
            REDUCTIONS, sharded, [name for name in SCHEDULES if name != "zb1p"],
        ),
    ]  # fmt: skip


def _chart(
    title: str,
    x: str,
    y: str,
    values: Sequence[float],
    of: Callable[[Schedule, float], float],
    names: Sequence[str] = tuple(SCHEDULES),
) -> Chart:
    lines = [
        Series(name, list(values), [of(SCHEDULES[name], value) for value in values])
        for name in names
    ]
    return Chart(title, x, y, lines)


def _table() -> PaperTable:
    rows = [
        [
            network,
            words,
            str(batch),
            *(f"{_of_model(each, cluster, sharding, batch):.1f}" for each in SCHEDULES.values()),
        ]
        for network, cluster in NETWORKS.items()
        for sharding, words in SHARDINGS.items()
        for batch in MODEL_BATCHES
    ]
    title = "Breadth-first with backward passes in halves"
    return PaperTable(title, ["network", "sharding", "micro-batches", *SCHEDULES], rows, [NOTE])


def _of_model(schedule: Schedule, cluster: str, sharding: Sharding, batch: int) -> float:
    return utilization(
        schedule, MODEL, (8, 8, 4), batch, LOOPS,
        cluster=cluster, sharding=sharding, implementation="paper",
    )  # fmt: skip


def _sentence(table: PaperTable) -> str:
    whole, split, zero, _ = zip(*(row[3:] for row in table.rows), strict=True)
    return (
        "Halves in place (bf-split) gain W for each rank beyond the first, with breadth-first's "
        f"activations and communication: {whole[0]} to {split[0]} % of utilization on InfiniBand "
        f"with {MODEL_BATCHES[0]} micro-batches, {whole[1]} to {split[1]} % with "
        f"{MODEL_BATCHES[1]}. Without a bubble on a rank (zb-bf), F + I + W + 2 T for each become "
        f"F + T, in fewer activations: {zero[0]} and {zero[1]} %. That holds as long as a stage's "
        "reduction takes no longer than its backward passes less (N_PP - 1) ((lead - 1) I - T); "
        "from there on bf-split is faster. Fully sharded it is faster soon: zb-bf gathers most "
        "stages three times for their backward passes and reduces them twice "
        f"({zero[2]} % with {MODEL_BATCHES[0]} micro-batches, bf-split {split[2]} %)."
    )
