"""Synthesised orders against the best schedule within the same memory limit, and the lower bound.

- Even stages, one a rank: ranks, micro-batches, three published profiles of passes, and limits of
  half, one and two 1F1Bs' activations; with hundreds of micro-batches, too.
- Six of these against a long run of CP-SAT.
- Drawn stages that are not even, and drawn limits.
- On a V, within what ZB-V, V-Half and V-Min keep.
"""

from __future__ import annotations

import os
import time
from itertools import product
from statistics import median

import numpy as np

from benchmarks.helpers.measure import Results
from bfpp.schedules import InvalidConfiguration, Layout, registered_schedules
from bfpp.schedules.columns import Seconds
from bfpp.sim.synthesis.bounds import lower_bound
from bfpp.sim.synthesis.cp_sat.exact import is_available, proven_at_once, refined
from bfpp.sim.synthesis.cp_sat.window import Window
from bfpp.sim.synthesis.deadline import Deadline
from bfpp.sim.synthesis.ordering import SHARE_OF_FIRST_PROOF, SHARE_OF_PROOF
from bfpp.sim.synthesis.problem.problem import HALVES, OrderingProblem, Words
from bfpp.sim.synthesis.search.annealing import TimedWords, replayed, search
from bfpp.sim.synthesis.search.building_blocks import repeated_blocks

SECONDS = float(os.environ.get("BFPP_SYNTHESIS_SECONDS", "30"))
"""Of each case: the search, and where it is installed what CP-SAT proves and improves."""

CP_SAT_SECONDS = float(os.environ.get("BFPP_SYNTHESIS_CP_SAT_SECONDS", "600"))
"""Of each run of CP-SAT that an order is compared with."""

PROFILES = {"F = I = W": (1, 1, 1, 0), "18, 18, 9": (18, 18, 9, 1), "10, 12, 8": (10, 12, 8, 1)}
"""Seconds of passes and of a transfer, from zero-bubble papers and their code."""

SHARES = (0.5, 1.0, 2.0)
"""Of 1F1B's activations."""

DRAWN = 10
COMPARED = 6
MANY = 256
TOLERANCE = 1e-9


def problem(
    pp: int, microbatches: int, placement: tuple[int, ...], seconds: Seconds, transfer: float,
    limit: float,
) -> OrderingProblem:  # fmt: skip
    layout = Layout(pp, microbatches, placement=placement)
    rank = layout.rank_of_stage
    transfers = np.zeros((2, layout.stages))
    transfers[0, :-1] = transfers[1, 1:] = transfer * (rank[1:] != rank[:-1])
    sizes = np.full(layout.stages, pp / layout.stages)
    return OrderingProblem(
        layout, HALVES, seconds, transfers, np.zeros(pp), sizes, np.full(pp, float(limit))
    )


def rules(given: OrderingProblem) -> dict[str, Words]:
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


def searched(given: OrderingProblem, seconds: float) -> tuple[TimedWords, float]:
    """Best orders from all rules that keep to the limit and from blocks, and the bound."""
    starts = [words for words in rules(given).values() if given.within(words)]
    starts += repeated_blocks(given)
    deadline, of_proof = Deadline(seconds), 0.0
    if is_available():
        bound, proven = proven_at_once(given, starts, 0.0, seconds * SHARE_OF_FIRST_PROOF)
        starts += proven
        of_proof = deadline.left * SHARE_OF_PROOF
    else:
        bound = lower_bound(given)
    found = search(given, starts, deadline.left - of_proof, bound.seconds)[0]
    if of_proof and found.seconds > bound.seconds * (1 + TOLERANCE):
        found, least = refined(given, given, found, of_proof)
        bound = max(bound, least)
    return found, bound.seconds


def case(given: OrderingProblem, seconds: float = SECONDS) -> dict[str, float]:
    """Synthesised order over the bound, and best rule over each of them."""
    begun = time.process_time()
    found, bound = searched(given, seconds)
    known = (words for words in rules(given).values() if given.within(words))
    best_rule = min((replayed(given, words) for words in known), default=np.inf)
    assert found.seconds <= best_rule * (1 + TOLERANCE)
    return {
        "gap": found.seconds / bound - 1,
        "gain": best_rule / found.seconds - 1,
        "possible": best_rule / bound - 1,
        "cpu": time.process_time() - begun,
    }


def row(name: str, cases: list[dict[str, float]]) -> dict[str, object]:
    gaps = [each["gap"] for each in cases]
    gains = [each["gain"] for each in cases if each["gain"] < np.inf]
    possible = [each["possible"] for each in cases if each["gain"] < np.inf]
    return {
        "stages": name,
        "cases": len(cases),
        "median gap (%)": f"{100 * median(gaps):.2f}",
        "largest gap (%)": f"{100 * max(gaps):.2f}",
        "a rule fits": len(gains),
        "median gain (%)": f"{100 * median(gains):.1f}" if gains else "-",
        "largest gain (%)": f"{100 * max(gains):.1f}" if gains else "-",
        "median possible (%)": f"{100 * median(possible):.1f}" if possible else "-",
        "median CPU time (s)": f"{median(each['cpu'] for each in cases):.1f}",
    }


def on_even_stages(
    pp: int, microbatches: int, profile: tuple[float, ...], share: float
) -> OrderingProblem:
    *passes, transfer = profile
    seconds = np.repeat(np.array(passes, dtype=float)[:, None], pp, axis=1)
    return problem(pp, microbatches, tuple(range(pp)), seconds, transfer, share * pp)


def even(share: float) -> list[OrderingProblem]:
    return [
        on_even_stages(pp, times * pp, profile, share)
        for pp, times, profile in product((4, 8, 16), (2, 4), PROFILES.values())
    ]


def many(share: float) -> list[OrderingProblem]:
    return [
        on_even_stages(pp, MANY, profile, share)
        for pp, profile in product((4, 8, 16), PROFILES.values())
    ]


def compared() -> Results:
    """Some of the cases against the best that CP-SAT finds, from the same order, in far longer."""
    chance = np.random.default_rng(2)
    cases = [each for share in SHARES for each in even(share)]
    rows = []
    for at in np.sort(chance.choice(len(cases), COMPARED, replace=False)):
        given = cases[at]
        found, bound = searched(given, SECONDS)
        begin = search(given, repeated_blocks(given), 0.0)[0]
        every = range(given.layout.pp)
        proven, words = Window(given, begin, 0.0, np.inf, every).solved(CP_SAT_SECONDS)
        best = min(begin.seconds, replayed(given, words) if words else np.inf)
        rows.append(
            {
                "ranks": given.layout.pp,
                "micro-batches": given.microbatches,
                "passes": ", ".join(f"{each:g}" for each in given.seconds[:, 0]),
                "limit": f"{given.limits[0]:g}",
                "found": f"{found.seconds:g}",
                "CP-SAT": f"{best:g}",
                "over CP-SAT (%)": f"{100 * (found.seconds / best - 1):.2f}",
                "bound": f"{max(bound, proven):g}",
            }
        )
    return Results(
        f"{SECONDS:g} s of search against {CP_SAT_SECONDS:g} s of CP-SAT alone",
        "no more than 3 % longer",
        rows,
        ["CP-SAT begins with what a dispatch or a block finds at once."],
    )


def uneven() -> list[OrderingProblem]:
    """Stages that take up to twice as long as others, with limits from under 1F1B's to twice it."""
    chance = np.random.default_rng(1)
    cases = []
    for _ in range(DRAWN):
        pp = int(chance.choice([4, 8]))
        seconds = chance.integers([[7], [8], [5]], [[15], [17], [13]], (3, pp)).astype(float)
        limit = chance.integers(pp, 2 * pp + 1)
        down = tuple(range(pp))
        cases.append(problem(pp, 3 * pp, down, seconds, 2.0, float(limit)))
    return cases


def on_a_v(name: str) -> list[OrderingProblem]:
    cases = []
    for pp, (*passes, transfer) in product((4, 8), PROFILES.values()):
        seconds = np.repeat(np.array(passes, dtype=float)[:, None], 2 * pp, axis=1)
        down = tuple(range(pp))
        given = problem(pp, 3 * pp, down + down[::-1], seconds, transfer, np.inf)
        kept = given.kept(rules(given)[name]).max()
        cases.append(given.limited(np.full(pp, kept)))
    return cases


def run() -> list[Results]:
    of_shares = {share: [case(each) for each in even(share)] for share in SHARES}
    rows = [row(f"even, {share:g} of 1F1B's activations", of) for share, of in of_shares.items()]
    rows.append(row("even, all of these", [each for of in of_shares.values() for each in of]))
    short = [on_even_stages(8, 32, profile, 1.0) for profile in PROFILES.values()]
    rows.append(row("even, 8 ranks, 32 micro-batches, 10 s", [case(each, 10.0) for each in short]))
    rows += [
        row(
            f"even, {share:g} of 1F1B's, {MANY} micro-batches", [case(each) for each in many(share)]
        )
        for share in SHARES
    ]
    rows.append(row("drawn", [case(each) for each in uneven()]))
    for name in ("zb-v", "v-half", "v-min"):
        rows.append(row(f"a V, within {name}", [case(each) for each in on_a_v(name)]))
    results = Results(
        f"Synthesised orders, at most {SECONDS:g} s each on two cores",
        "never worse than the best rule that fits; a median gap of 3 %; 5 % better, drawn",
        rows,
        [
            "Gap: over the lower bound, which may be less than any order takes.",
            "Gain: how much longer the best rule takes that keeps to the limit.",
            "Possible: how much longer it takes than the lower bound: no order gains more.",
        ],
    )
    return [results, compared()] if is_available() else [results]
