"""The best of some outcomes, the front of speed against memory, and the nearest to fitting."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from bfpp.schedules.columns import Offsets, Seconds
from bfpp.sim.search.objectives import Objective
from bfpp.sim.search.outcomes import Outcome, Outcomes
from bfpp.sim.search.space import Space


def ranked(
    outcomes: Outcomes, objective: Objective = Objective.THROUGHPUT, risk: float = 1.0
) -> Outcomes:
    """Those that fit, the best first: of highest throughput, or by another objective.

    By samples: what is recomputed is no throughput, and the peak depends on the precision. Those
    that run out of memory with a higher probability than `risk` come after all others.
    """
    fitting = outcomes.take(outcomes.fits)
    best_first = fitting.take(by_merit(fitting, objective))
    return best_first.take(np.argsort(best_first.at_risk(risk), kind="stable"))


def by_merit(outcomes: Outcomes, objective: Objective = Objective.THROUGHPUT) -> Offsets:
    """The places of outcomes, the best first, whether or not they fit."""
    first, second = KEYS[objective](outcomes)
    return np.lexsort((second, first))


def _robust_seconds_of_sample(outcomes: Outcomes) -> Seconds:
    robust, usual = outcomes.robust_step_time, outcomes.step_time
    seconds: Seconds = np.where(np.isnan(robust), usual, robust) / outcomes.space.batch
    return seconds


KEYS: dict[Objective, Callable[[Outcomes], tuple[Seconds, Seconds]]] = {
    Objective.THROUGHPUT: lambda each: (-each.samples_per_second, each.memory_largest_gb),
    Objective.MEMORY: lambda each: (each.memory_largest_gb, -each.samples_per_second),
    Objective.COST: lambda each: (-each.tokens_per_second_per_gpu, each.memory_largest_gb),
    Objective.ROBUSTNESS: lambda each: (_robust_seconds_of_sample(each), each.memory_largest_gb),
}
"""Sort keys by objective: least for the best, then between equal ones."""


def nearest(outcomes: Outcomes) -> Outcome:
    """The one that needs least memory: of those that do not fit, the nearest."""
    return outcomes[int(outcomes.memory_largest_gb.argmin())]


ROOM = 0.05
"""Share of a device's memory that what is safer leaves free in addition."""


def safer_than(winner: Outcome, best_first: Outcomes) -> Outcome | None:
    """The first of a ranking that reserves clearly less than its winner."""
    least = winner.memory_reserved_gb - ROOM * winner.device_memory_gb
    safer = np.flatnonzero(best_first.memory_reserved_gb <= least)
    return best_first[int(safer[0])] if len(safer) else None


def faster_than(winner: Outcome, best_first: Outcomes) -> Outcome | None:
    """The fastest of a ranking, if it is faster than its winner and needs more memory."""
    faster = best_first.samples_per_second > winner.samples_per_second
    places = np.flatnonzero(faster & (best_first.fits_probability < winner.fits_probability))
    if not len(places):
        return None
    return best_first[int(places[best_first.samples_per_second[places].argmax()])]


def pareto(best_first: Outcomes, apart: float = 0.0) -> Outcomes:
    """Of a ranking by throughput, those that none undercuts which is as fast and as cheap.

    Each needs less memory than these by `apart`, a share of the device's. On one number of devices,
    the faster is the cheaper.
    """
    return best_first.take(front(best_first, apart))


def front(best_first: Outcomes, apart: float = 0.0) -> Offsets:
    """The places of those on the front of throughput, memory, and cost."""
    devices, needed = best_first.space.devices, best_first.memory_largest_gb
    cheap, saved = best_first.tokens_per_second_per_gpu, apart * best_first.device_memory_gb
    undercut = [_undercut(needed, np.flatnonzero(devices == each)) for each in np.unique(devices)]
    on_front = np.zeros(0, dtype=np.int64)
    for place in np.sort(np.concatenate([on_front, *undercut])).tolist():
        as_cheap = on_front[cheap[on_front] >= cheap[place]]
        if (needed[place] < needed[as_cheap] - saved[place]).all():
            on_front = np.append(on_front, place)
    return on_front


def _undercut(needed: Seconds, places: Offsets) -> Offsets:
    """Of some places, those that need less memory than all before them."""
    least = np.minimum.accumulate(needed[places])
    first: Offsets = places[np.append(True, needed[places][1:] < least[:-1])]
    return first


def cases(space: Space) -> Iterator[tuple[tuple[int, int], Offsets]]:
    """Each number of devices and batch size, and the places of its configurations."""
    every = np.stack([space.devices, space.batch])
    kinds, case = np.unique(every, axis=1, return_inverse=True)
    for number, (devices, batch) in enumerate(kinds.T.tolist()):
        yield (devices, batch), np.flatnonzero(case.ravel() == number)


def best_of_cases(best_first: Outcomes) -> Outcomes:
    """The first of a ranking for each number of devices and batch size, the fewest first."""
    first = [places[0] for _, places in cases(best_first.space)]
    return best_first.take(np.array(first, dtype=np.int64))


def in_first_case(best_first: Outcomes) -> npt.NDArray[np.bool_]:
    """For each of a ranking, if it has as many devices and as large a batch as the first."""
    space = best_first.space
    same: npt.NDArray[np.bool_] = np.logical_and(
        space.devices == space.devices[:1], space.batch == space.batch[:1]
    )
    return same


def of_first_case(best_first: Outcomes) -> Outcomes:
    """Those of a ranking with which its first is compared."""
    return best_first.take(np.flatnonzero(in_first_case(best_first)))


def foremost(
    known: Outcomes, top: int, objective: Objective = Objective.THROUGHPUT, risk: float = 1.0
) -> Outcomes:
    """The best of each case of some outcomes, and those on its front, each once."""
    fitting = known.take(known.fits)
    kept = [np.zeros(0, dtype=np.int64)]
    for _, places in cases(fitting.space):
        some = fitting.take(places)
        merit = by_merit(some, objective)
        best = merit[np.argsort(some.at_risk(risk)[merit], kind="stable")][:top]
        by_speed = by_merit(some)
        kept.append(places[np.union1d(best, by_speed[front(some.take(by_speed))])])
    return fitting.take(np.concatenate(kept))


def without_duplicates(best_first: Outcomes) -> Outcomes:
    """A ranking with each method once.

    What is the same except for its name is one, and so is, without a pipeline, what differs only in
    the order of micro-batches.
    """
    _, first = np.unique(_methods(best_first), axis=0, return_index=True)
    return best_first.take(np.sort(first))


def _methods(outcomes: Outcomes) -> Offsets:
    """For each outcome, numbers that only those of one method share."""
    space = outcomes.space
    tables, communications = space.tables, space.tables.communications
    ranks, microbatches = tables.ranks[space.pipeline], tables.microbatches[space.pipeline]
    sharded = {
        kind: number
        for number, kind in enumerate(
            dict.fromkeys((each.sharding, each.offload) for each in communications)
        )
    }
    of_sharding = np.array([sharded[each.sharding, each.offload] for each in communications])
    of_pipeline: list[npt.NDArray[np.integer]] = [
        space.communication + 1,
        *map(_digits, (outcomes.step_time, outcomes.memory_largest_gb)),
    ]
    return np.stack(
        [
            space.setting, ranks, microbatches, of_sharding[space.communication],
            *(np.where(ranks > 1, each, 0) for each in of_pipeline),
        ],
        axis=1,
    ).astype(np.int64)  # fmt: skip


def _digits(numbers: Seconds) -> Offsets:
    """Each number to eleven digits, as one whole number."""
    scale = np.floor(np.log10(np.maximum(numbers, 1e-300)))
    digits = np.rint(numbers / 10.0**scale * 1e10)
    return (digits * 1000 + scale).astype(np.int64)
