"""The table of a search: the best configurations and their choices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bfpp.reports.prediction_notes import shortage
from bfpp.reports.search.costs import cost
from bfpp.schedules import Communication, Configuration, Sharding
from bfpp.schedules.families.depth_first import DepthFirst
from bfpp.schedules.families.registry import referred_parameters
from bfpp.schedules.settings.recomputation import NO_RECOMPUTATION
from bfpp.schedules.settings.sharding import FULLY_SHARDED
from bfpp.schedules.settings.tensor_overlap import TensorOverlap
from bfpp.sim.cluster.software_profiles import find_implementation
from bfpp.sim.experiment.uncertainty import Interval
from bfpp.sim.search.decision import Decision
from bfpp.sim.search.outcomes import Outcome, Outcomes
from bfpp.sim.search.problem import Problem
from bfpp.sim.search.ranking import nearest, pareto, ranked
from bfpp.terminal.printing import print_table
from bfpp.traces.timeline.units import in_words

SHOWN = 15
"""Most of the best that are shown, before others of the Pareto front."""

APART = 0.05
"""The share of a device's memory that a point of the front saves at least: others lose speed for
next to nothing."""

OVERLAPS = {
    TensorOverlap.NONE: "no TP overlap",
    TensorOverlap.BULK: "bulk TP overlap",
    TensorOverlap.CHUNKED: "TP overlap",
}

COLUMNS = ("schedule", "pp x tp x dp", "loops", "micro-batches x size")
SPEED = ("step", "MFU", "GiB", "")


def rows_of(best_first: Outcomes, top: int) -> list[Outcome]:
    """The rows of a ranking that are shown: the `top` best and the Pareto front."""
    best = list(best_first[: min(top, SHOWN)])
    return best + [each for each in pareto(ranked(best_first), APART) if each not in best]


def print_outcomes(
    title: str,
    outcomes: Outcomes,
    shown: Sequence[Outcome],
    decision: Decision | None,
    problem: Problem,
) -> None:
    """The rows that are shown; where nothing fits, the closest."""
    front = list(pareto(ranked(Outcomes.of(shown)), APART))
    ties, intervals = (decision.ties, decision.intervals) if decision else ({}, {})
    if len(outcomes) and not shown:
        closest = nearest(outcomes)
        shown = [closest]
        is_limited = closest.memory_reserved_gb - closest.missing_gb < closest.device_memory_gb
        limit = "--max-memory allows" if is_limited else "a device has"
        title += (
            f". Nothing fits; the closest needs {closest.missing_gb:.1f} GiB more than "
            f"{limit}: {shortage(closest.record)}"
        )
    title += (
        ". Steps with the ends of their 80 % intervals; GiB reserved, max over ranks, to the upper "
        f"end; * on the Pareto front of these, in steps of at least {APART:.0%} of the device's "
        "memory"
    )
    if any(ties.values()):
        title += "; = ties with the best: predictions cannot tell them apart"
    at_risk = [each for each in shown if each.fits_probability < 1 - problem.risk]
    if at_risk:
        title += f"; ! runs out of memory with a probability of more than {problem.risk:.0%}"
    chosen = [choices_of(each) for each in shown]
    common = [each for each in (chosen or [[]])[0] if all(each in others for others in chosen)]
    title += f". All with {', '.join(common)}" if common else ""
    own = [", ".join(each for each in choices if each not in common) for choices in chosen]
    robust = [each.robust_step_time for each in shown]
    several, quantile = len(problem.batches) > 1, f"p{100 * problem.jitter.quantile:g} step"
    further = {
        "batch": [str(each.configuration.batch) if several else "" for each in shown],
        "choices": own,
        quantile: [in_words(each) if each else "" for each in robust],
    }
    kept = {name: cells for name, cells in further.items() if any(cells)}
    rows = [
        (
            *_sizes(outcome),
            *cells,
            *_speed(outcome, intervals.get(outcome.configuration)),
            _marks(outcome, front, ties) + ("!" if outcome in at_risk else ""),
        )
        for outcome, *cells in zip(shown, *kept.values(), strict=True)
    ]
    print_table(title, (*COLUMNS, *kept, *SPEED), rows)


def print_cases(best: Sequence[Outcome], price: float | None) -> None:
    """The best for each number of GPUs and batch size."""
    priced = [] if price is None else ["price"]
    columns = (
        "GPUs", "batch", "schedule", "pp x tp x dp", "loops", "micro-batches x size", "step",
        "samples/s", "MFU", "GiB", "GPU-hours", *priced,
    )  # fmt: skip
    rows = []
    for each in best:
        schedule, *sizes = _sizes(each)
        step, mfu, reserved = _speed(each, None)
        costs = [f"{number:.3g}" for number in cost(each, price).values()]
        speed = step, f"{each.samples_per_second:.4g}", mfu, reserved
        gpus, batch = f"{each.configuration.degrees.devices:,}", str(each.configuration.batch)
        rows.append((gpus, batch, schedule, *sizes, *speed, *costs))
    title = (
        "The best for each number of GPUs and batch size; GiB reserved, max over ranks; GPU-hours"
        f"{' and their price' if priced else ''} for a million tokens"
    )
    print_table(title, columns, rows)


def groups(outcome: Outcome) -> str:
    """The sizes of its groups: `8 x 2 x (4 x 2), EP 8`, with replicas of HSDP in brackets."""
    degrees = outcome.configuration.degrees
    further = [("CP", degrees.cp), ("EP", degrees.ep)]
    sizes = "".join(f", {name} {size}" for name, size in further if size > 1)
    replicas = f"({degrees.dp_replicate} x {degrees.dp_shard})" if degrees.is_hybrid else degrees.dp
    return f"{degrees.pp} x {degrees.tp} x {replicas}{sizes}"


def _sizes(outcome: Outcome) -> Iterator[str]:
    configuration = outcome.configuration
    schedule = configuration.schedule
    sequence = schedule.sequence if isinstance(schedule, DepthFirst) else None
    longer = f" ({sequence})" if sequence and sequence > configuration.degrees.pp else ""
    yield schedule.reference + longer
    yield groups(outcome)
    yield str(configuration.loops)
    yield f"{configuration.microbatches} x {configuration.microbatch_size}"


def _marks(outcome: Outcome, front: Sequence[Outcome], ties: Mapping[Configuration, bool]) -> str:
    tied = ties.get(outcome.configuration)
    return ("*" if outcome in front else "") + ("=" if tied else "")


def _speed(outcome: Outcome, interval: Interval | None) -> tuple[str, ...]:
    step, seconds = in_words(outcome.step_time), outcome.step_time
    if interval:
        step += f" {interval.low / seconds - 1:+.0%} {interval.high / seconds - 1:+.0%}"
    return (
        step,
        f"{outcome.mfu:.1%}",
        f"{outcome.memory_reserved_gb:.1f} to {outcome.memory_reserved_high_gb:.1f}",
    )


def choices_of(outcome: Outcome) -> list[str]:
    """The sharding, and its choices other than the software's or the schedule's default.

    Of uneven stages the fewest and most layers.
    """
    configuration, row = outcome.configuration, outcome.record
    sharding, default = configuration.communication.sharding, Communication()
    cut = configuration.cut or ()
    named = [sharding.usual_name] if sharding is not Sharding.NONE else []
    named += [row["precision"]] if row["precision"] else []
    keeps = find_implementation(outcome.implementation).recompute == NO_RECOMPUTATION
    usual = (None, "none") if keeps else (None,)
    named += [f"recompute {row['recompute']}"] if row["recompute"] not in usual else []
    named += [f"offload {row['offload']}"] if row["offload"] else []
    named += [OVERLAPS[row["tp_overlap"]]] if row["tp_overlap"] else []
    named += [f"{min(cut)} to {max(cut)} layers"] if len(set(cut)) > 1 else []
    named += [
        f"{name.replace('_', ' ')} {row[name]}"
        for name in FULLY_SHARDED
        if row[name] != getattr(default, name)
    ]
    schedule, given = configuration.schedule, referred_parameters(configuration.schedule)
    in_its_column = {"sequence"} if isinstance(schedule, DepthFirst) else set()
    named += [
        f"{name.replace('_', ' ')} {value}"
        for name, value in schedule.parameters.items()
        if name not in in_its_column and value != given[name]
    ]
    return named
