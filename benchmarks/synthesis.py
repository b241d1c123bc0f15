"""Synthesised orders against the best schedule within the same memory limit, and the lower bound.

- Even stages, one a rank: ranks, micro-batches, three published profiles of passes, and limits of
  half, one and two 1F1Bs' activations.
- Drawn stages that are not even, and drawn limits.
- On a V, within what ZB-V, V-Half and V-Min keep.
"""

from __future__ import annotations

import os
import time
from itertools import product
from statistics import median

import numpy as np

from benchmarks.measure import Results
from bfpp.schedules import InvalidConfiguration, Layout, registered_schedules
from bfpp.schedules.columns import Seconds
from bfpp.sim.synthesis.blocks import repeated_blocks
from bfpp.sim.synthesis.bounds import lower_bound
from bfpp.sim.synthesis.exact import is_available, solve
from bfpp.sim.synthesis.problem import HALVES, Problem, Words
from bfpp.sim.synthesis.search import replayed, search

SECONDS = float(os.environ.get("BFPP_SYNTHESIS_SECONDS", "10"))
"""Of each search, and of each proof by CP-SAT where it is installed."""

PROFILES = {"F = I = W": (1, 1, 1, 0), "18, 18, 9": (18, 18, 9, 1), "10, 12, 8": (10, 12, 8, 1)}
"""Seconds of passes and of a transfer, from zero-bubble papers and their code."""

DRAWN = 10
TOLERANCE = 1e-9


def problem(
    pp: int, microbatches: int, placement: tuple[int, ...], seconds: Seconds, transfer: float,
    limit: float,
) -> Problem:  # fmt: skip
    layout = Layout(pp, microbatches, placement=placement)
    rank = layout.rank_of_stage
    transfers = np.zeros((2, layout.stages))
    transfers[0, :-1] = transfers[1, 1:] = transfer * (rank[1:] != rank[:-1])
    sizes = np.full(layout.stages, pp / layout.stages)
    return Problem(
        layout, HALVES, seconds, transfers, np.zeros(pp), sizes, np.full(pp, float(limit))
    )


def rules(given: Problem) -> dict[str, Words]:
    """The orders of all registered schedules on these stages."""
    found = {}
    for name, rule in registered_schedules().items():
        try:
            orders = rule.orders(given.layout)
        except InvalidConfiguration:
            continue
        if words := given.words(orders):
            found[name] = words
    return found


def case(given: Problem) -> dict[str, float]:
    """What is found from all rules that keep to the limit, over the bound and the best of them."""
    begun = time.process_time()
    known = [words for words in rules(given).values() if given.within(words)]
    best_rule = min((replayed(given, words) for words in known), default=np.inf)
    found = search(given, [*known, *repeated_blocks(given)], SECONDS)[0]
    assert found.seconds <= best_rule * (1 + TOLERANCE)
    bound = lower_bound(given)
    if is_available() and found.seconds > bound.seconds * (1 + TOLERANCE):
        bound = max(bound, solve(given, found, SECONDS)[0])
    return {
        "gap": found.seconds / bound.seconds - 1,
        "gain": best_rule / found.seconds - 1,
        "cpu": time.process_time() - begun,
    }


def row(name: str, cases: list[dict[str, float]]) -> dict[str, object]:
    gaps = [each["gap"] for each in cases]
    gains = [each["gain"] for each in cases if each["gain"] < np.inf]
    return {
        "stages": name,
        "cases": len(cases),
        "median gap (%)": f"{100 * median(gaps):.2f}",
        "largest gap (%)": f"{100 * max(gaps):.2f}",
        "a rule fits": len(gains),
        "median gain (%)": f"{100 * median(gains):.1f}" if gains else "-",
        "largest gain (%)": f"{100 * max(gains):.1f}" if gains else "-",
        "median CPU time (s)": f"{median(each['cpu'] for each in cases):.1f}",
    }


def even(share: float) -> list[dict[str, float]]:
    cases = []
    for pp, times, (*passes, transfer) in product((4, 8, 16), (2, 4), PROFILES.values()):
        seconds = np.repeat(np.array(passes, dtype=float)[:, None], pp, axis=1)
        down = tuple(range(pp))
        cases.append(case(problem(pp, times * pp, down, seconds, transfer, share * pp)))
    return cases


def uneven() -> list[dict[str, float]]:
    """Stages that take up to twice as long as others, with limits from under 1F1B's to twice it."""
    chance = np.random.default_rng(1)
    cases = []
    for _ in range(DRAWN):
        pp = int(chance.choice([4, 8]))
        seconds = chance.integers([[7], [8], [5]], [[15], [17], [13]], (3, pp)).astype(float)
        limit = chance.integers(pp, 2 * pp + 1)
        down = tuple(range(pp))
        cases.append(case(problem(pp, 3 * pp, down, seconds, 2.0, float(limit))))
    return cases


def on_a_v(name: str) -> list[dict[str, float]]:
    cases = []
    for pp, (*passes, transfer) in product((4, 8), PROFILES.values()):
        seconds = np.repeat(np.array(passes, dtype=float)[:, None], 2 * pp, axis=1)
        down = tuple(range(pp))
        given = problem(pp, 3 * pp, down + down[::-1], seconds, transfer, np.inf)
        kept = given.kept(rules(given)[name]).max()
        cases.append(case(given.limited(np.full(pp, kept))))
    return cases


def run() -> Results:
    of_shares = {share: even(share) for share in (0.5, 1.0, 2.0)}
    rows = [row(f"even, {share:g} of 1F1B's activations", of) for share, of in of_shares.items()]
    rows.append(row("even, all of these", [each for of in of_shares.values() for each in of]))
    rows.append(row("drawn", uneven()))
    rows += [row(f"a V, within {name}", on_a_v(name)) for name in ("zb-v", "v-half", "v-min")]
    return Results(
        f"Synthesised orders, {SECONDS:g} s each on two cores",
        "never worse than the best rule that fits; a median gap of 3 %; 5 % better, drawn",
        rows,
        [
            "Gap: over the lower bound, which may be less than any order takes.",
            "Gain: how much longer the best rule takes that keeps to the limit.",
        ],
    )
