"""The summary of a search: the winner, the reasons, omissions, and next steps."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from rich.text import Text

from bfpp.api.results import NOISE
from bfpp.options import shared
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.search.decision import Decision, Rival, kind_of
from bfpp.sim.search.objectives import Jitter
from bfpp.sim.search.outcomes import Outcome
from bfpp.terminal.printing import output
from bfpp.traces.timeline.units import in_words

SHOWN = 0.005
"""Parts smaller than this share of the step are not shown."""


def record_of(decision: Decision) -> dict[str, Any]:
    """The decision as a JSON object; times in seconds."""
    return {
        "kind": kind_of(decision.winner.configuration),
        "parts": dict(decision.parts),
        "rivals": [
            {
                "kind": kind_of(rival.outcome.configuration),
                "configuration": rival.outcome.record,
                "longer": dict(rival.longer),
                "slower": rival.distance.share,
                "margin": rival.distance.margin,
                "ties": rival.distance.ties,
            }
            for rival in decision.rivals
        ],
    }


def print_decision(
    decision: Decision,
    left_out: Mapping[str, int],
    experiment: Experiment,
    costs: dict[str, float],
    jitter: Jitter,
) -> None:
    """Print the summary on standard output."""
    lines = [*_winner(decision, costs, jitter), *map(_against, decision.rivals), ""]
    if reasons := [f"{why} ({count:,})" for why, count in left_out.items() if count]:
        lines += [f"Left out: {'; '.join(reasons)}.", ""]
    lines += ["Next:", *(f"  bfpp {command}" for command in next_commands(experiment))]
    output().print(Text("\n".join(lines)), soft_wrap=True)


def _winner(decision: Decision, costs: dict[str, float], jitter: Jitter) -> Iterator[str]:
    best = decision.winner
    parts = ", ".join(
        f"{name} {seconds / best.step_time:.0%}"
        for name, seconds in decision.parts.items()
        if seconds > SHOWN * best.step_time
    )
    yield f"Best: {_named(best)}: {in_words(best.step_time)} a step, of which {parts}."
    hours, *price = costs.values()
    priced = f", at a price of {price[0]:.4g}" if price else ""
    yield f"A million tokens take {hours:.3g} GPU-hours{priced}."
    if best.robust_step_time is not None:
        robust = in_words(best.robust_step_time)
        yield f"With jitter, {jitter.quantile:.0%} of steps take at most {robust}."


def _named(outcome: Outcome) -> str:
    degrees = asdict(outcome.configuration.degrees)
    always = ("pp", "tp", "dp")
    sizes = [f"{name} {degrees[name]}" for name in always]
    sizes += [f"{name} {size}" for name, size in degrees.items() if size > 1 and name not in always]
    return ", ".join([kind_of(outcome.configuration), *sizes])


def _against(rival: Rival) -> str:
    """Differences of the winner from the best of another kind, largest first."""
    whole = sum(rival.longer.values())
    parts = sorted(rival.longer.items(), key=lambda part: -abs(part[1]))
    differences = ", ".join(
        f"{name} {'+' if seconds > 0 else '-'}{in_words(abs(seconds))}"
        for name, seconds in parts
        if abs(seconds) > SHOWN * rival.outcome.step_time
    )
    share, margin = rival.distance
    slower = f"{abs(share):.1%} {'slower' if share >= 0 else 'faster'}"
    tie = (
        f"; a tie: predictions only resolve differences of more than {margin:.0%}"
        if rival.distance.ties
        else ""
    )
    in_all = f"{'+' if whole > 0 else '-'}{in_words(abs(whole))} a step"
    parts_of_it = f": {differences}" if differences else ""
    apart = f"{slower} ({in_all}{parts_of_it})" if abs(share) > NOISE else "as fast"
    return f"Against {_named(rival.outcome)}, which is {apart}{tie}."


def next_commands(experiment: Experiment) -> list[str]:
    """Commands that simulate it, run its order here with a small model, and launch it elsewhere."""
    words = shlex.join(shared.words(experiment))
    stages = len(experiment.layers_of_stages)
    ordered = {name: getattr(experiment, name) for name in ("pp", "loops", "microbatches")}
    order = shlex.join(shared.words(Experiment(experiment.rule, **ordered)))
    return [
        f"simulate {words}",
        f"run {order} --layers {stages} --backend local --verify",
        f"experiment {words} --format megatron",
        f"experiment {words} --format torchtitan",
    ]
