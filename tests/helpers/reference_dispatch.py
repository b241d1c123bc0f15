"""Orders by a rule in numbers, in plain Python: the reference of the core's dispatches."""

from __future__ import annotations

from collections import Counter
from math import exp, exp2, inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bfpp.core.synthesis.ordering_problem import ProblemArrays
from tests.helpers.reference_annealing import Place, Words, busy, kept_by, needed_by

Numbers = npt.NDArray[np.float64]


class Rule(NamedTuple):
    """The parts of a rule: views of its numbers."""

    keys: Numbers
    patience: Numbers
    room: Numbers
    pace: Numbers

    @classmethod
    def of(cls, problem: ProblemArrays, numbers: Numbers) -> Rule:
        lengths = problem.kinds * problem.stages, problem.ranks, problem.stages
        return cls(*np.split(numbers, np.cumsum(lengths)))


class Dispatch:
    """Passes that have run, and what their ranks could run next."""

    def __init__(self, problem: ProblemArrays, numbers: Numbers) -> None:
        self.problem, self.rule, self.paced = problem, Rule.of(problem, numbers), 0.0
        self.words: Words = [[] for _ in range(problem.ranks)]
        self.start: dict[Place, float] = {}
        self.free = [0.0] * problem.ranks
        self.arrival: dict[tuple[int, int], float] = {}
        self.sent = Counter[int]()

    def finished(self) -> tuple[float, Words]:
        """The step time of the words, and the words."""
        for _ in range(len(self.problem.seconds) * self.problem.microbatches):
            start, rank, code = min(map(self.offer, range(self.problem.ranks)))
            if start == inf:
                return inf, self.words
            self.run(start, rank, code)
        ranks = enumerate(zip(self.words, self.free, strict=True))
        taken = [busy(self.problem, word, self.start, rank, end) for rank, (word, end) in ranks]
        return max(taken), self.words

    def offer(self, rank: int) -> tuple[float, int, int]:
        """The pass that a rank prefers to run: its start, the rank, and the pass."""
        offers = []
        for stage in self.problem.stage[slice(*self.problem.first[rank : rank + 2])].tolist():
            for code in range(stage, len(self.problem.seconds), self.problem.stages):
                start = max(self.free[rank], self.ready(rank, code))
                if start < inf:
                    value = start * self.rule.patience[rank] - self.rule.keys[code]
                    offers.append((value, start, code))
        _, start, code = min(offers, key=lambda each: each[0], default=(inf, inf, -1))
        return start, rank, code

    def ready(self, rank: int, code: int) -> float:
        """The earliest start of the next micro-batch of a pass."""
        problem, word = self.problem, self.words[rank]
        microbatch, before = word.count(code), code - problem.stages
        if microbatch == problem.microbatches:
            return inf
        if before >= 0 and word.count(before) <= microbatch:
            return inf
        if before < 0:
            kept = kept_by(problem, word)[-1] + (problem.size[code] + self.rule.room[code])
            if kept > problem.limit[rank]:
                return inf
        if code == 0:
            return self.paced
        needed = needed_by(problem, code)
        return 0.0 if needed is None else self.arrival.get((needed, microbatch), inf)

    def run(self, start: float, rank: int, code: int) -> None:
        """Run the next micro-batch of a pass."""
        problem, word = self.problem, self.words[rank]
        end = self.free[rank] = start + problem.seconds[code]
        self.start[rank, len(word)] = start
        if code == 0:
            self.paced = max(self.paced, start + self.rule.pace[0])
        elif code >= (problem.kinds - 1) * problem.stages and rank == problem.rank[0]:
            self.paced = max(self.paced, end + self.rule.pace[1])
        channel = problem.channel[code] if code < 2 * problem.stages else -1
        arrival = end
        if channel >= 0:
            arrival = self.sent[channel] = max(self.sent[channel], end) + problem.transfer[code]
        self.arrival[code, word.count(code)] = arrival
        word.append(code)


def vary(
    problem: ProblemArrays, numbers: Numbers, scale: float, random: np.random.RandomState
) -> None:
    """Change a few numbers of a rule."""
    rule = Rule.of(problem, numbers)
    for _ in range(1 + random.randint(3)):
        what = random.random_sample()
        step = random.normal() * scale
        step *= exp2(2.0 * random.random_sample() - 2.0)
        if what < 0.35:
            rule.keys[random.randint(len(rule.keys))] += step
        elif what < 0.6:
            kind = rule.keys.reshape(problem.kinds, -1)[random.randint(problem.kinds)]
            slope = step * random.randint(2) / problem.stages
            kind += step - slope * np.arange(problem.stages)
        elif what < 0.75:
            factor = exp(0.5 * random.normal())
            one = random.randint(2 * problem.ranks)
            rule.patience[slice(one, one + 1) if one < problem.ranks else slice(None)] *= factor
        elif what < 0.9:
            stage = random.randint(problem.stages)
            change = problem.size[stage] * (random.randint(3) - 1)
            other = stage
            if random.random_sample() < 0.5:
                other = random.randint(problem.stages)
            room = rule.room[min(stage, other) : max(stage, other) + 1]
            room[:] = np.maximum(0.0, room + change)
        else:
            each = random.randint(2)
            rule.pace[each] = max(0.0, rule.pace[each] + step)


def best_dispatch(
    problem: ProblemArrays, numbers: Numbers, tries: int, scale: float, seed: int
) -> tuple[float, Words, Numbers]:
    """Of the rule and its variations, the best: how long it takes, its words, its numbers."""
    random = np.random.RandomState(seed)
    seconds, words = Dispatch(problem, numbers).finished()
    for _ in range(tries):
        varied = numbers.copy()
        vary(problem, varied, scale, random)
        found, by_them = Dispatch(problem, varied).finished()
        if found < seconds:
            words = by_them
        if found <= seconds:
            seconds, numbers = found, varied
    return seconds, words, numbers
