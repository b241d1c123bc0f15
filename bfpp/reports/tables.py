"""Tables that commands share: a result and its ranks, and the causes of their waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bfpp.api.results import Result
from bfpp.terminal.printing import RANKS_SHOWN, print_table
from bfpp.traces.explain.looks import Cause, Share
from bfpp.traces.timeline.timeline import Replicas
from bfpp.traces.timeline.units import in_words, unit_of

RANK_COLUMNS = (
    "rank", "compute", "start", "end", "busy", "exposed P2P", "exposed DP",
    "peak in-flight micro-batches",
)  # fmt: skip


def print_result(result: Result) -> None:
    """The numbers that a person reads first, and a row for each rank."""
    print_table(result.title, ("", ""), result.highlights())
    rows = [
        (
            str(rank.rank),
            in_words(rank.compute_time),
            in_words(rank.start),
            in_words(rank.end),
            f"{rank.utilisation:.1%}",
            result.in_words(rank.exposed_transfer),
            result.in_words(rank.exposed_data),
            f"{rank.peak_microbatches:.4g}",
        )
        for rank in result.ranks[:RANKS_SHOWN]
    ]
    left_out = len(result.ranks) - len(rows)
    title = "Ranks" + (f" (the first {len(rows)}; --json has all)" if left_out else "")
    print_table(title, RANK_COLUMNS, rows)


def print_shares(shares: Mapping[Share, float]) -> None:
    """Print the mean rank's step by cause."""
    step_time = sum(shares.values())
    rows = [
        (share, in_words(seconds), f"{seconds / step_time:.1%}")
        for share, seconds in shares.items()
    ]
    print_table("Where the mean rank's time goes", ("", "seconds", "of the step"), rows)


def print_idle(idle: Sequence[Mapping[Cause, float]]) -> None:
    """For each rank, its idle time by cause."""
    causes = [cause for cause in Cause if any(rank[cause] for rank in idle)]
    longest = max(sum(rank.values()) for rank in idle)
    seconds_in_unit, unit = unit_of(longest)
    rows = [
        (str(rank), *(f"{seconds / seconds_in_unit:.2f}" for seconds in columns))
        for rank, by_cause in enumerate(idle[:RANKS_SHOWN])
        for columns in [(sum(by_cause.values()), *(by_cause[cause] for cause in causes))]
    ]
    print_table(f"Idle time of each rank by cause, in {unit}", ("rank", "idle", *causes), rows)


def print_replicas(replicas: Replicas | None) -> None:
    """Print each replica that differs: its compute, and its waits for the others."""
    if replicas is None:
        return
    from bfpp.traces.explain.causes import mean_replica  # start-up time

    rows = [
        (", ".join(map(str, replicas.alike(place))), *map(in_words, mean_replica(each)))
        for place, each in enumerate(replicas.timelines)
    ]
    left_out = len(rows) > RANKS_SHOWN
    title = "Replicas, their mean rank" + (f" (the first {RANKS_SHOWN})" if left_out else "")
    print_table(title, ("replica", "compute", "waits for others"), rows[:RANKS_SHOWN])
