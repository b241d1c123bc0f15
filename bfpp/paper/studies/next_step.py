"""The paper's next step: bigger models and newer GPUs, with what training has learnt since.

Its conclusion asks for A100 and H100, FlashAttention, sequence parallelism and selective
recomputation. Figures 5 to 8 again, with these: does breadth-first still win, and where?
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from bfpp.paper.charts import draw_charts
from bfpp.paper.item import Folder, ItemOutput, PaperTable
from bfpp.paper.studies.next_step_search import (
    LIMITS,
    METHODS,
    NETWORKS,
    Fastest,
    Key,
    Lead,
    Scenario,
    fastest,
    lead,
    rivals,
)
from bfpp.schedules import Sharding, find_schedule
from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.experiment.prediction import predict
from bfpp.sim.search.tradeoff import tradeoff
from bfpp.traces.figures.svg.line_chart import Chart, Series

OURS = METHODS[0].name
UTILIZATION = "MFU (%)"

# The critical batch in tokens grows with the number of parameters as between the paper's two
# models, to the power of 0.33: 14.9 million for 530 B, 13.7 for 405 B, 7.7 for 70 B.
SCENARIOS = (
    Scenario("530 B, 280 A100", "gpt-530b", "dgx-a100", 280, 35, (1, 3), 7280),
    Scenario("Llama-3 405B, 1,008 H100", "llama3-405b", "dgx-h100", 1008, 14, (1, 3, 9), 1670),
    Scenario("Llama-3 70B, 512 H100", "llama3-70b", "dgx-h100", 512, 8, (1, 2, 5, 10), 935),
)

COLUMN_NOTE = (
    "as: pipeline x tensor x data parallelism, stages of a rank, what is sharded, what is "
    "recomputed. GiB: reserved on the fullest rank."
)
INTERVAL_NOTE = (
    "In brackets, where 80 % of leads lie by the constants' uncertainties, which both methods "
    "share; what no constant explains is not in them."
)

SCHEDULES = {
    "breadth-first": "Breadth-first",
    "depth-first": "Depth-first",
    "gpipe": "GPipe",
    "1f1b": "1F1B",
}
MICROBATCHES = (1, 2, 3, 4, 6, 8)
"""For each pipeline rank."""

LOOPED_BATCH = 2
"""Micro-batches for each pipeline rank, where loops vary."""

TIE = 0.005
"""Largest lead that counts as no faster."""

REPLICAS = 2
GROWTH = (1, 2, 4, 8, 16)
"""Clusters of the trade-off, in sizes of the one that is searched."""


def make(folder: Folder) -> ItemOutput:
    """Simulate, search, extrapolate; draw the best, and say what follows."""
    charts = [
        *(_of_microbatches(scenario) for scenario in SCENARIOS),
        *(_of_loops(scenario) for scenario in SCENARIOS),
        *(_of_batches(scenario, network) for network in NETWORKS for scenario in SCENARIOS),
        *(_of_costs(scenario, network) for network in NETWORKS for scenario in SCENARIOS),
    ]
    cases = [case for scenario in SCENARIOS for case in _cases(scenario)]
    made = draw_charts(charts, folder, "next-step", _sentence(cases), len(SCENARIOS))
    path = folder / "next-step.md"
    table = _table(cases)
    table.write(path)
    record = {**made.record, "cases": [case.record for case in cases]}
    return replace(made, files=[*made.files, path], record=record, table=table)


def _series(scenario: Scenario, name: str, points: Sequence[tuple[float, int, int]]) -> Series:
    """A line through what fits; points are (x, micro-batches for each rank, loops)."""
    fitting = [
        (x, value)
        for x, microbatches, loops in points
        if (value := _utilization(scenario, name, microbatches, loops)) is not None
    ]
    return Series(SCHEDULES[name], [x for x, _ in fitting], [value for _, value in fitting])


def _utilization(scenario: Scenario, schedule: str, microbatches: int, loops: int) -> float | None:
    """Per cent of the peak, all layers recomputed; None where memory is not enough."""
    experiment = Experiment(
        schedule,
        pp=scenario.ranks,
        tp=8,
        dp=REPLICAS,
        microbatches=microbatches * scenario.ranks,
        loops=loops if find_schedule(schedule).looped else None,
        model=scenario.model,
        cluster=scenario.cluster,
        implementation="current",
        recompute="full",
        sharding=Sharding.PARTIAL,
    )
    physical = experiment.require_physical()
    prediction = predict(simulate(experiment.graph(), physical), physical)
    return None if prediction["missing_gb"] else 100 * prediction["mfu"]


def _of_microbatches(scenario: Scenario) -> Chart:
    """Figure 5."""
    points = [(each, each, scenario.loops[1]) for each in MICROBATCHES]
    return Chart(
        f"Figure 5, {scenario.title}",
        "micro-batches per pipeline rank",
        UTILIZATION,
        [_series(scenario, name, points) for name in SCHEDULES],
        logarithmic_x=True,
    )


def _of_loops(scenario: Scenario) -> Chart:
    """Figure 6; a looped schedule at one loop is one that does not loop."""
    series = []
    for looped, at_one in (("breadth-first", "gpipe"), ("depth-first", "1f1b")):
        first, *others = scenario.loops
        once = _series(scenario, at_one, [(first, LOOPED_BATCH, first)])
        rest = _series(scenario, looped, [(each, LOOPED_BATCH, each) for each in others])
        x, y = [*once.x, *rest.x], [*once.y, *rest.y]
        series.append(Series(SCHEDULES[looped], x, y))
    return Chart(
        f"Figure 6, {scenario.title}",
        "loops (stages per device)",
        UTILIZATION,
        series,
        logarithmic_x=True,
    )


def _of_batches(scenario: Scenario, network: str) -> Chart:
    """Figure 7."""
    best, series = fastest(scenario), []
    for method in METHODS:
        keys = [Key(network, method.name, batch) for batch in scenario.batches]
        values = [(key.batch, 100 * best[key].outcome.mfu) for key in keys if key in best]
        series.append(Series(method.name, [x for x, _ in values], [y for _, y in values]))
    return Chart(
        f"Figure 7, {scenario.title}, {network}",
        "samples per GPU",
        UTILIZATION,
        series,
        logarithmic_x=True,
    )


def _of_costs(scenario: Scenario, network: str) -> Chart:
    """Figure 8."""
    best, series = fastest(scenario), []
    sizes = [scenario.gpus * each for each in GROWTH]
    for method in METHODS:
        keys = [Key(network, method.name, batch) for batch in scenario.batches]
        outcomes = [best[key].outcome for key in keys if key in best]
        trainings = tradeoff(outcomes, sizes, scenario.critical_batch)
        series.append(
            Series(
                method.name,
                [each.days for each in trainings],
                [each.gpu_days / 1e3 for each in trainings],
            )
        )
    return Chart(
        f"Figure 8, {scenario.title}, {network}",
        "training time (days)",
        "cost (1,000 GPU-days)",
        series,
        logarithmic_x=True,
        logarithmic_y=True,
    )


class NextStepCase(NamedTuple):
    """Breadth-first against the fastest other method, on a network at a batch size."""

    scenario: Scenario
    network: str
    batch: float
    ours: Fastest
    rival: str
    other: Fastest

    @property
    def lead(self) -> Lead:
        """By how much breadth-first is faster."""
        return lead(self.ours, self.other)

    @property
    def record(self) -> dict[str, object]:
        """The case as JSON."""
        ahead = self.lead
        return {
            "scenario": self.scenario.title,
            "network": self.network,
            "samples_per_gpu": self.batch,
            "breadth_first": self.ours.outcome.record,
            "rival": self.rival,
            "other": self.other.outcome.record,
            "lead": ahead.share,
            "lead_low": ahead.low,
            "lead_high": ahead.high,
        }


def _cases(scenario: Scenario) -> Iterator[NextStepCase]:
    best = fastest(scenario)
    for network in NETWORKS:
        for batch in scenario.batches:
            others = rivals(best, network, batch)
            ours = best.get(Key(network, OURS, batch))
            if ours and others:
                yield NextStepCase(scenario, network, batch, ours, *others[0])


def _table(cases: Sequence[NextStepCase]) -> PaperTable:
    columns = (
        "model, network", "samples per GPU", "breadth-first, MFU", "GiB", "as", "best other", "MFU",
        "GiB", "as", "breadth-first is faster by",
    )  # fmt: skip
    rows = [
        [
            f"{case.scenario.title}, {case.network}",
            f"{case.batch:g}",
            *_cells(case.ours),
            case.rival,
            *_cells(case.other),
            f"{case.lead.share:+.1%} ({case.lead.low:+.1%} to {case.lead.high:+.1%})",
        ]
        for case in cases
    ]
    notes = [
        COLUMN_NOTE,
        INTERVAL_NOTE,
        f"Searched: {LIMITS}.",
    ]
    return PaperTable("Breadth-first against the fastest other method", columns, rows, notes)


def _cells(best: Fastest) -> tuple[str, str, str]:
    outcome = best.outcome
    configuration = outcome.configuration
    degrees = configuration.degrees
    chosen = (
        f"{degrees.pp} x {degrees.tp} x {degrees.dp}",
        str(configuration.loops),
        str(configuration.communication.sharding),
        str(configuration.recompute),
    )
    return f"{outcome.mfu:.1%}", f"{outcome.memory_reserved_gb:.0f}", ", ".join(chosen)


def _sentence(cases: Sequence[NextStepCase]) -> str:
    return " ".join(_of_network(network, cases) for network in NETWORKS)


def _of_network(network: str, cases: Sequence[NextStepCase]) -> str:
    """Wins of breadth-first on a network, by how much, and winners elsewhere."""
    here = [case for case in cases if case.network == network]
    won = [case for case in here if case.lead.share > TIE]
    lost = [case for case in here if case.lead.share < -TIE]
    sure = sum(case.lead.is_sure for case in won)
    sentence = f"On {network}, breadth-first is the fastest in {len(won)} of {len(here)} cases"
    if won:
        shares = [case.lead.share for case in won]
        sentence += f" ({sure} of them surely), by {min(shares):.1%} to {max(shares):.1%}"
    sentence += f", as fast as the best in {len(here) - len(won) - len(lost)}"
    if lost:
        shares = [-case.lead.share for case in lost]
        names = " or ".join(dict.fromkeys(case.rival.lower() for case in lost))
        sentence += (
            f", and slower than {names} in {len(lost)}, by {min(shares):.1%} to {max(shares):.1%}"
        )
    return f"{sentence}."
