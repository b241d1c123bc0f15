"""The summary of a search: the winner, the reasons, omissions, and next steps."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple
from typing import Any, NamedTuple

from rich.text import Text

from bfpp.api.results import NOISE
from bfpp.options import shared
from bfpp.reports.search.gains import Gain
from bfpp.reports.search.table import choices_of
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.search.decision import Decision, Rival, kind_of
from bfpp.sim.search.objectives import Jitter
from bfpp.sim.search.outcomes import Outcome
from bfpp.terminal.printing import output
from bfpp.traces.timeline.units import in_words

HARDWARE = 4
"""Clusters on which the same is faster that are named: the fastest."""

SURE = 0.995
"""Probability from which on one is sure."""

SHOWN = 0.005
"""Parts smaller than this share of the step are not shown."""


def record_of(decision: Decision) -> dict[str, Any]:
    """The decision as a JSON object; times in seconds."""
    return {
        "kind": kind_of(decision.winner.configuration),
        "parts": dict(decision.parts),
        "rivals": [*map(record_of_rival, decision.rivals)],
    }


def record_of_rival(rival: Rival) -> dict[str, Any]:
    """A comparison with the winner as a JSON object; times in seconds."""
    return {
        "kind": kind_of(rival.outcome.configuration),
        "configuration": rival.outcome.record,
        "longer": dict(rival.longer),
        "slower": rival.distance.share,
        "margin": rival.distance.margin,
        "ties": rival.distance.ties,
    }


def print_given(source: str, given: Rival) -> None:
    """Print what the winner saves of the step of the experiment that the search is of."""
    outcome, name = given.outcome, "The command" if " " in source else source
    missing = f", {outcome.missing_gb:.1f} more than may be reserved" if outcome.missing_gb else ""
    itself = (
        f"{name} as it is: {_named(outcome)}: {in_words(outcome.step_time)} a step, "
        f"{outcome.memory_reserved_gb:.1f} GiB reserved{missing}."
    )
    share, whole = given.distance.share, sum(given.longer.values())
    if share > NOISE:
        saved = f"saves {in_words(whole)} a step, {share / (1 + share):.1%}"
        found = f"The best {saved}{_parts(given, -1)}{_tie(given)}."
    else:
        found = f"Nothing that was tried is faster{_tie(given) if share < -NOISE else ''}."
    output().print(Text(f"{itself} {found}\n"), soft_wrap=True)


class Answer(NamedTuple):
    """Answer of a search: the decision for the best, and what lies near it.

    `safer` is the fastest that leaves more room, `faster` one that is faster at a higher risk of
    running out of memory than the search takes. A job may reserve `usable_gb` of a device.
    """

    decision: Decision
    usable_gb: float
    experiment: Experiment
    safer: Outcome | None
    faster: Outcome | None
    gains: Sequence[Gain]
    launches: Mapping[str, str | None]


def record_of_answer(answer: Answer) -> dict[str, Any]:
    """The answer as a JSON object."""
    return {
        **record_of(answer.decision),
        "safer": answer.safer and answer.safer.record,
        "faster": answer.faster and answer.faster.record,
        "gains": [each._asdict() for each in answer.gains],
        "launches": dict(answer.launches),
    }


def print_answer(
    answer: Answer, left_out: Mapping[str, int], costs: dict[str, float], jitter: Jitter
) -> None:
    """Print the summary on standard output."""
    decision = answer.decision
    lines = [*_winner(decision, costs, jitter), *_room(answer), *_gains(answer.gains)]
    lines += [*map(_against, decision.rivals), ""]
    if reasons := [f"{why} ({count:,})" for why, count in left_out.items() if count]:
        lines += [f"Left out: {'; '.join(reasons)}.", ""]
    lines += ["Next:", *(f"  bfpp {command}" for command in next_commands(answer))]
    lines += [f"Not launched with {reason}." for reason in answer.launches.values() if reason]
    output().print(Text("\n".join(lines)), soft_wrap=True)


def _winner(decision: Decision, costs: dict[str, float], jitter: Jitter) -> Iterator[str]:
    best = decision.winner
    parts = ", ".join(
        f"{name} {seconds / best.step_time:.0%}"
        for name, seconds in decision.parts.items()
        if seconds > SHOWN * best.step_time
    )
    low, high = map(in_words, astuple(decision.intervals[best.configuration]))
    step = f"{in_words(best.step_time)} a step ({low} to {high} in 80 % of cases)"
    yield f"Best: {_named(best)}, {_choices(best)}."
    yield f"Speed: {step}, {best.mfu:.1%} MFU; of the step, {parts}."
    hours, *price = costs.values()
    priced = f", at a price of {price[0]:.4g}" if price else ""
    yield f"A million tokens take {hours:.3g} GPU-hours{priced}."
    if best.robust_step_time is not None:
        robust = in_words(best.robust_step_time)
        yield f"With jitter, {jitter.quantile:.0%} of steps take at most {robust}."


def _room(answer: Answer) -> Iterator[str]:
    """Room that the best leaves; others, if it does not fit, or for more speed at a risk."""
    best, usable = answer.decision.winner, answer.usable_gb
    yield f"Memory: {_memory(best, usable)}."
    if answer.safer:
        yield f"If it runs out of memory: {_beside(answer.safer, best, usable)}."
    if answer.faster:
        yield f"At a higher risk: {_beside(answer.faster, best, usable)}."


def _memory(outcome: Outcome, usable_gb: float) -> str:
    sure = outcome.fits_probability
    fits = "is sure to fit" if sure > SURE else f"fits with a probability of {sure:.0%}"
    return (
        f"{outcome.memory_reserved_gb:.1f} of {usable_gb:.0f} GiB reserved, up to "
        f"{outcome.memory_reserved_high_gb:.1f}; it {fits}"
    )


def _beside(other: Outcome, best: Outcome, usable_gb: float) -> str:
    """Another outcome, by its differences from the best, and what it needs."""
    share = best.samples_per_second / other.samples_per_second - 1
    slower = f"{abs(share):.1%} {'slower' if share >= 0 else 'faster'}"
    return f"{_named(other)}, {_choices(other)}, which is {slower}: {_memory(other, usable_gb)}"


def _choices(outcome: Outcome) -> str:
    configuration = outcome.configuration
    size = f"micro-batches {configuration.microbatches} x {configuration.microbatch_size}"
    return ", ".join([size, *choices_of(outcome)])


def _gains(gains: Sequence[Gain]) -> Iterator[str]:
    """The same configuration with a larger batch, and on other hardware."""
    for each in gains:
        if each.name == "batch":
            yield f"With a batch of {each.value:,}: {each.speedup - 1:+.1%} tokens a second."
    others = [each for each in gains if each.name == "cluster" and each.speedup > 1]
    others.sort(key=lambda gain: -gain.speedup)
    if others:
        factors = ", ".join(f"{each.speedup:.2f} on {each.value}" for each in others[:HARDWARE])
        yield f"The same on other hardware, times the tokens a second: {factors}."


def _named(outcome: Outcome) -> str:
    degrees = asdict(outcome.configuration.degrees)
    always = ("pp", "tp", "dp")
    sizes = [f"{name} {degrees[name]}" for name in always]
    sizes += [f"{name} {size}" for name, size in degrees.items() if size > 1 and name not in always]
    return ", ".join([kind_of(outcome.configuration), *sizes])


def _against(rival: Rival) -> str:
    """Comparison of the best of another kind with the winner."""
    share = rival.distance.share
    slower = f"{abs(share):.1%} {'slower' if share >= 0 else 'faster'}"
    whole = sum(rival.longer.values())
    in_all = f"{'+' if whole > 0 else '-'}{in_words(abs(whole))} a step"
    apart = f"{slower} ({in_all}{_parts(rival, +1)})" if abs(share) > NOISE else "as fast"
    return f"Against {_named(rival.outcome)}, which is {apart}{_tie(rival)}."


def _parts(rival: Rival, sign: int) -> str:
    """Differences between it and the winner by part, the largest first."""
    parts = sorted(rival.longer.items(), key=lambda part: -abs(part[1]))
    differences = ", ".join(
        f"{name} {'+' if sign * seconds > 0 else '-'}{in_words(abs(seconds))}"
        for name, seconds in parts
        if abs(seconds) > SHOWN * rival.outcome.step_time
    )
    return f": {differences}" if differences else ""


def _tie(rival: Rival) -> str:
    """Remark that predictions cannot tell which of the two is faster, if so."""
    if not rival.distance.ties:
        return ""
    return f"; a tie: predictions only resolve differences of more than {rival.distance.margin:.1%}"


def next_commands(answer: Answer) -> list[str]:
    """Commands that simulate it, run its order here with a small model, and launch it elsewhere."""
    experiment = answer.experiment
    words = shlex.join(shared.words(experiment))
    stages = len(experiment.layers_of_stages)
    ordered = {name: getattr(experiment, name) for name in ("pp", "loops", "microbatches")}
    order = shlex.join(shared.words(Experiment(experiment.rule, **ordered)))
    launched = [name for name, reason in answer.launches.items() if reason is None]
    return [
        f"simulate {words}",
        f"run {order} --layers {stages} --backend local --verify",
        *(f"experiment {words} --format {name}" for name in launched),
    ]
