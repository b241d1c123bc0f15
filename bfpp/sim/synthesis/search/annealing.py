"""The search: list scheduling with varied keys first, then simulated annealing of the orders.

Theory of operation. List scheduling lets each rank take the next pass by keys: one for each kind of
pass of each stage, and a few of ranks. They decide the order of all passes, and are varied with few
micro-batches, however many there are. That finds the shape of a good order, but only orders that a
rule of this kind has. Annealing then moves single passes, which no key can. Both are given time,
not steps: how many fit into a turn is measured in the turn before.

Rejected: annealing alone. From a registered schedule's order it has to undo the shape by moves of
single passes, most of which make the step longer.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from math import inf

import numpy as np

from bfpp.core.synthesis.annealing import Lengths, anneal, replay_words
from bfpp.core.synthesis.dispatching import PACES, dispatch
from bfpp.core.synthesis.ordering_problem import Codes
from bfpp.schedules.columns import Seconds
from bfpp.sim.synthesis.bounds import lower_bound
from bfpp.sim.synthesis.deadline import Deadline
from bfpp.sim.synthesis.problem.problem import TOLERANCE, OrderingProblem, Words

SHARE_OF_KEYS = 0.5
"""Of the time, for varying keys; the rest is for moving passes."""

TURN = 0.3
"""Seconds between looks at the clock, at most."""

TURNS = 8
"""Looks at the clock, at least."""

THREADS = 2

Pass = tuple[int, int]
"""Its code, and its micro-batch."""

Progress = Callable[[float, float], None]
"""Called with the share of the time that is over, and the shortest time so far."""


@dataclass(frozen=True)
class TimedWords:
    """Words, and how long they take."""

    seconds: float
    words: Words

    @classmethod
    def of(cls, problem: OrderingProblem, words: Words) -> TimedWords:
        """Replays the words."""
        return cls(replayed(problem, words), words)


def replayed(problem: OrderingProblem, words: Words) -> float:
    """Step time of these words; infinite if they cannot run."""
    return _replayed(problem, words)[0]


def starts_of(problem: OrderingProblem, words: Words) -> tuple[dict[Pass, float], list[list[Pass]]]:
    """Start of each pass of these words, and the passes of each rank in order."""
    start = _replayed(problem, words)[1]
    rows = []
    for word in words:
        done = Counter[int]()
        row = []
        for code in word:
            row.append((code, done[code]))
            done[code] += 1
        rows.append(row)
    pairs = (zip(*each, strict=False) for each in zip(rows, start.tolist(), strict=True))
    return dict(chain.from_iterable(pairs)), rows


def _replayed(problem: OrderingProblem, words: Words) -> tuple[float, Seconds]:
    """Step time of these words, and the start of each pass, by rank."""
    table, lengths = table_of(problem, words)
    start = np.zeros(table.shape)
    return replay_words(problem.arrays, table, lengths, start), start


def search(
    problem: OrderingProblem,
    starts: Iterable[Words],
    seconds: float,
    enough: float = 0.0,
    progress: Progress | None = None,
    seed: int = 0,
) -> list[TimedWords]:
    """The best words of a search of that time, starting from these and from nothing; best first.

    It ends early at the lower bound, or once words take no longer than `enough`.
    """
    deadline = Deadline(seconds)
    bound = max(lower_bound(problem).seconds, enough) * (1 + TOLERANCE)

    def over() -> float:
        return 1.0 if best() <= bound else deadline.passed

    candidates = [TimedWords.of(problem, words) for words in starts]
    turn = min(TURN, seconds / TURNS)
    seekers = [_Seeker(problem, seed + each, turn) for each in range(THREADS)]

    def best() -> float:
        return min((each.seconds for each in candidates), default=inf)

    with ThreadPoolExecutor(THREADS) as threads:
        while True:
            candidates.extend(threads.map(lambda seeker: seeker.turn(), seekers))
            candidates = _distinct(candidates)
            if progress:
                progress(over(), best())
            if over() >= SHARE_OF_KEYS:
                break
        movers = [
            _Mover(problem, start, seed + each, turn)
            for each, start in enumerate((candidates * THREADS)[:THREADS])
        ]
        while movers and over() < 1:
            heat = (over() - SHARE_OF_KEYS) / (1 - SHARE_OF_KEYS)
            candidates.extend(threads.map(lambda mover, at=heat: mover.turn(at), movers))
            candidates = _distinct(candidates)
            if progress:
                progress(over(), best())
    return candidates


def _distinct(candidates: Sequence[TimedWords]) -> list[TimedWords]:
    """The best few."""
    kept: list[TimedWords] = []
    for each in sorted(candidates, key=lambda each: each.seconds):
        if each.seconds < inf and all(each.words != other.words for other in kept):
            kept.append(each)
    return kept[:8]


class _Seeker:
    """Varies the keys of a dispatch; restarts when nothing improves."""

    def __init__(self, problem: OrderingProblem, seed: int, seconds: float) -> None:
        self.problem, self.random = problem, np.random.default_rng(seed)
        self.seconds = seconds
        self.scale = float(problem.seconds.mean())
        self.tries, self.stale = 1, 0
        self.begin()

    def begin(self) -> None:
        kinds, stages = self.problem.seconds.shape
        weights = np.array([1.0, 2.0, 0.0])[:kinds] * self.random.uniform(0.2, 1.5, kinds)
        keys = np.repeat(weights * self.scale, stages)
        patience = np.full(self.problem.layout.pp, self.random.uniform(0.5, 2.0))
        room = [self._later(stage) for stage in range(stages)]
        self.rule = np.concatenate([keys, patience, room, np.zeros(PACES)])
        self.table, _ = table_of(self.problem.brief, None)
        self.best = inf

    def _later(self, stage: int) -> float:
        """The room to leave for the rank's later stages: without it, earlier ones block them."""
        here = self.problem.layout.rank_of_stage[stage]
        later = np.flatnonzero(self.problem.held[here])
        return float(self.problem.sizes[later[later > stage]].sum())

    def turn(self) -> TimedWords:
        begun = time.monotonic()
        seed = int(self.random.integers(2**31))
        step_time = dispatch(
            self.problem.brief.arrays, self.rule, self.table, self.tries, self.scale, seed
        )
        spent = time.monotonic() - begun
        self.tries = int(np.clip(self.tries * self.seconds / max(spent, 1e-3), 1, 100_000))
        dispatched = self._dispatched(step_time)
        self.stale = 0 if step_time < self.best else self.stale + 1
        self.best = step_time
        if self.stale > 6:
            self.stale = 0
            self.begin()
        return dispatched

    def _dispatched(self, step_time: float) -> TimedWords:
        """The words of all micro-batches, which `step_time` is of if the search had all."""
        table = self.table
        if self.problem.brief is not self.problem:
            table, _ = table_of(self.problem, None)
            step_time = dispatch(self.problem.arrays, self.rule, table, 0, self.scale, 0)
        return TimedWords(step_time, _words(self.problem, table) if step_time < inf else [])


class _Mover:
    """Moves passes of the critical path within their ranks' orders."""

    def __init__(
        self, problem: OrderingProblem, start: TimedWords, seed: int, seconds: float
    ) -> None:
        self.problem, self.random = problem, np.random.default_rng(seed)
        self.seconds = seconds
        self.table, self.lengths = table_of(problem, start.words)
        self.scale = float(problem.seconds.mean())
        self.steps = 20

    def turn(self, cooled: float) -> TimedWords:
        # In seconds: at first, moves that cost a third of a pass are often kept; never quite zero.
        hot = self.scale * 0.3 * (1 - cooled) + 1e-3 * self.scale
        begun = time.monotonic()
        seed = int(self.random.integers(2**31))
        step_time = anneal(
            self.problem.arrays, self.table, self.lengths, self.steps, hot, hot / 20, seed
        )
        spent = time.monotonic() - begun
        self.steps = int(np.clip(self.steps * self.seconds / max(spent, 1e-3), 10, 1_000_000))
        return TimedWords(step_time, _words(self.problem, self.table))


def table_of(problem: OrderingProblem, words: Words | None) -> tuple[Codes, Lengths]:
    """Words as an array, each from the left, and their lengths."""
    lengths = problem.passes.astype(np.int64)
    table = np.zeros((len(lengths), int(lengths.max())), dtype=np.int32)
    for rank, word in enumerate(words or []):
        table[rank, : len(word)] = word
    return table, lengths


def _words(problem: OrderingProblem, table: Codes) -> Words:
    return [table[rank, :length].tolist() for rank, length in enumerate(problem.passes.tolist())]
