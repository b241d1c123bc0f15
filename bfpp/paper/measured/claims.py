"""Claims of the paper on figures 5 to 7, judged by a study's measurements.

Each is judged on each network, and for what else differs between panels, by throughputs as measured
and, beside them, as predicted; what was measured decides. Panels given have all curves that a claim
speaks of, at all places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from bfpp.paper.figures.figure_5 import CLEAR
from bfpp.paper.figures.figure_7_claims import AHEAD, NEAR, OURS
from bfpp.paper.item import Claim
from bfpp.paper.measured.panels import CellPanel, Rates

ALIKE = 0.05
"""The largest relative difference of two schedules that the paper would call equal."""

BREADTH, DEPTH, GPIPE, OTHER = "breadth-first", "depth-first", "gpipe", "1f1b"

NON_LOOPED = "Non-looped"
METHODS = {BREADTH: OURS, DEPTH: "Depth-first", GPIPE: NON_LOOPED, OTHER: NON_LOOPED}
"""The paper's four schedules, and its method that each belongs to."""

OVERLAP = (
    "Transfers of all schedules overlap here; the paper's depth-first and 1F1B are Megatron-LM's, "
    "whose do not."
)
LOOPS = (
    "With more loops, each micro-batch takes more transfers one after the other, and each link "
    "carries more bytes."
)
ONE_WAY = (
    "They differ with one implementation, too: 1F1B waits for transfers both ways between its "
    "passes, GPipe sends one way at a time."
)
FULL_LINKS = "Where transfers take longer than passes, no sequence is long enough to hide them."
MEMORY = "Memory limits none of these cells. "
OTHER_CASE = "Another model on other hosts. "


LEAD = 0.01
"""The least lead over depth-first of which a share can be told from noise."""

MOSTLY = 0.5
"""The share of the lead that longer sequences recover, if they do."""


class Said(NamedTuple):
    """A result in words, whether it is as the paper says, and if not, why."""

    words: str
    holds: bool
    reason: str


Judge = Callable[[Sequence[Rates]], Said]
"""Judges panels of one case."""


def claims_of_5(panels: Sequence[CellPanel]) -> list[Claim]:
    """Claims on the four schedules by number of micro-batches."""
    judged: dict[str, Judge] = {
        "breadth-first is by far the most efficient at small batches": _few,
        "its network overhead makes depth-first slower than the non-looped schedules": _slower,
        "1F1B is the fastest at large batches, for its lower network overhead and memory": _many,
        "GPipe and 1F1B differ by their implementations alone, until memory runs out": _alike,
    }
    return _claims(judged, [[panel] for panel in panels])


def claims_of_6(panels: Sequence[CellPanel]) -> list[Claim]:
    """Claims on loops, on each case's panels of the smallest and of the largest batch."""
    judged: dict[str, Judge] = {
        "both benefit from the smaller bubble, more at the small batch": _bubble,
        "depth-first benefits from looping at the small batch only": _small_only,
    }
    cases = [[*of] for _, of in groupby(panels, key=lambda each: each.case)]
    return _claims(judged, [[of[0], of[-1]] for of in cases if len(of) > 1])


def claims_of_7(panels: Sequence[CellPanel]) -> list[Claim]:
    """Claims on the best of each method by batch size."""
    judged: dict[str, Judge] = {
        "near the least batch, breadth-first is 53 % faster than non-looped and 43 % faster than "
        "depth-first": _leads,
        "breadth-first is the fastest at all but the largest batch, over Ethernet at all": _ahead,
    }
    return _claims(judged, [[panel] for panel in panels])


def claims_of_hybrid(panels: Sequence[CellPanel]) -> list[Claim]:
    """The paper's conjecture, where depth-first in longer sequences, too, was measured."""
    judged = {
        "depth-first in longer sequences overlaps its transfers (believed, but not verified, by "
        "the paper)": _recovers,
    }
    return _claims(judged, [[panel] for panel in panels if _recovered(panel.measured)])


def _claims(judged: Mapping[str, Judge], groups: Sequence[Sequence[CellPanel]]) -> list[Claim]:
    """Each claim on each case: as measured, and as predicted where that is not the same."""
    claims = []
    for paper, judge in judged.items():
        for group in groups:
            words, holds, reason = judge([panel.measured for panel in group])
            predicted = judge([panel.predicted for panel in group]).words
            beside = "" if words == predicted else f" (predicted: {predicted})"
            if not _overlap(group):
                reason = reason.replace(OVERLAP, "").strip()
            claims.append(Claim(f"{group[0].case}: {paper}", words + beside, holds, reason))
    return claims


def _overlap(group: Sequence[CellPanel]) -> bool:
    """True if transfers of all cells overlap."""
    cells = [row for panel in group for row in panel.cells]
    return all(row.experiment.communication.pp_overlap for row in cells)


def _share(value: float) -> str:
    """A signed share, without the sign of a zero."""
    return f"{round(value, 2) + 0.0:+.0%}"


def _at(rates: Rates, place: int) -> dict[str, float]:
    """By curve, the throughput at the first place (0) or at the last (-1)."""
    return {name: sorted(curve.items())[place][1] for name, curve in rates.items()}


def _lead(values: Mapping[str, float]) -> tuple[str, float]:
    """The fastest, and by which share it is ahead of the next."""
    (name, most), (_, next_best), *_ = sorted(values.items(), key=lambda each: -each[1])
    return name, most / next_best - 1


def _few(panels: Sequence[Rates]) -> Said:
    name, lead = _lead(_at(panels[0], 0))
    reason = LOOPS if name in (GPIPE, OTHER) else OVERLAP
    return Said(f"{name} by {lead:.0%}", name == BREADTH and lead > CLEAR - 1, reason)


def _slower(panels: Sequence[Rates]) -> Said:
    (rates,) = panels
    slower = [rate < min(rates[GPIPE][at], rates[OTHER][at]) for at, rate in rates[DEPTH].items()]
    words = f"slower than both at {sum(slower)} of {len(slower)}"
    return Said(words, sum(slower) > len(slower) / 2, OVERLAP)


def _many(panels: Sequence[Rates]) -> Said:
    name, lead = _lead(_at(panels[0], -1))
    reason = MEMORY + (ONE_WAY if name == GPIPE else OVERLAP)
    return Said(f"{name} by {lead:.0%}", name == OTHER, reason)


def _alike(panels: Sequence[Rates]) -> Said:
    (rates,) = panels
    leads = [rate / rates[OTHER][at] - 1 for at, rate in rates[GPIPE].items()]
    words = f"GPipe is faster by {_share(min(leads))} to {_share(max(leads))}"
    return Said(words, max(map(abs, leads)) < ALIKE, ONE_WAY)


def _gains(rates: Rates) -> dict[str, float]:
    """By schedule, the gain of its best number of loops over one."""
    return {
        name: max(rate for loops, rate in curve.items() if loops > 1) / curve[1] - 1
        for name, curve in rates.items()
    }


def _bubble(panels: Sequence[Rates]) -> Said:
    small, large = map(_gains, panels)
    words = ", ".join(f"{each} {_share(small[each])} and {_share(large[each])}" for each in small)
    return Said(words, all(small[each] > max(large[each], 0) for each in small), LOOPS)


def _small_only(panels: Sequence[Rates]) -> Said:
    small, large = (_gains(rates)[DEPTH] for rates in panels)
    reason = OVERLAP if small > 0 else LOOPS
    return Said(f"{_share(small)} and {_share(large)}", small > 0 >= large, reason)


def _recovers(panels: Sequence[Rates]) -> Said:
    (rates,) = panels
    shares = _recovered(rates)
    words = " and ".join(f"{share:.0%} with {at}" for at, share in shares.items())
    return Said(
        f"of breadth-first's lead over depth-first, {words} micro-batches",
        all(share > MOSTLY for share in shares.values()),
        FULL_LINKS,
    )


def _recovered(rates: Rates) -> dict[int, float]:
    """By place, the share of breadth-first's lead that the best of longer sequences has."""
    hybrids = [curve for name, curve in rates.items() if name.startswith(f"{DEPTH}, sequence")]
    own, leader = rates.get(DEPTH, {}), rates.get(BREADTH, {})
    shares = {}
    for at in sorted({*own} & {*leader}):
        best = max((curve[at] for curve in hybrids if at in curve), default=0.0)
        if best and leader[at] > own[at] * (1 + LEAD):
            shares[at] = (best - own[at]) / (leader[at] - own[at])
    return shares


def _leads(panels: Sequence[Rates]) -> Said:
    least = _at(panels[0], 0)
    leads = {name: least[OURS] / least[name] - 1 for name in AHEAD}
    holds = all(abs(lead - AHEAD[name]) < NEAR for name, lead in leads.items())
    reason = OTHER_CASE + (LOOPS if leads[NON_LOOPED] < 0 else OVERLAP)
    return Said(" and ".join(map(_share, leads.values())), holds, reason)


def _ahead(panels: Sequence[Rates]) -> Said:
    (rates,) = panels
    places = sorted(rates[OURS])
    best = {at: max(rates, key=lambda name: rates[name].get(at, 0.0)) for at in places}
    behind = {at: name for at, name in best.items() if name != OURS}
    where = ", ".join(f"{at} ({name})" for at, name in behind.items())
    reason = LOOPS if NON_LOOPED in behind.values() else OVERLAP
    return Said(f"at all but {where}" if behind else "at all", not {*behind} - {places[-1]}, reason)
