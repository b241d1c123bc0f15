"""Steps of replicas that differ, as they are reported: a JSON object, and rows in words."""

from __future__ import annotations

from typing import Any

import numpy as np

from bfpp.sim.unevenness.uneven_steps import UnevenSteps
from bfpp.traces.timeline.units import in_words


def uneven_record(uneven: UnevenSteps) -> dict[str, Any]:
    """Times of sampled steps and of even ones, in seconds, and the part of each source."""
    return {
        "steps": len(uneven.seconds),
        "step_time_mean": uneven.mean,
        "step_time_quantiles": {f"{each:g}": it for each, it in uneven.quantiles.items()},
        "even_step_time": float(uneven.even.mean()),
        "slowdown": uneven.slowdown,
        "sources": [
            {"source": part.name, "slowdown": part.slowdown, "share": part.share}
            for part in uneven.parts
        ],
        "replicas": len(uneven.of_replica),
        "distinct_replicas": len(uneven.typical.graph.replicas),
        "drawn_replica": drawn_replica(uneven),
        "waits_for_replicas": waits_for_replicas(uneven),
    }


def drawn_replica(uneven: UnevenSteps) -> int:
    """The first replica that is like the one that others wait for, in the median step."""
    return int(np.argmax(uneven.of_replica == uneven.slowest))


def waits_for_replicas(uneven: UnevenSteps) -> float:
    """Mean seconds, over workers and in the median step, of waiting for other replicas."""
    typical = uneven.typical
    graph, waited = typical.graph, typical.start - typical.ready
    by_replica = np.add.reduceat(waited, graph.begins[:-1])
    ranks = graph.replicas[0].layout.pp
    return float(by_replica[uneven.of_replica].mean()) / ranks


def uneven_highlights(uneven: UnevenSteps) -> list[tuple[str, str]]:
    """The numbers that a person reads first, with their units."""
    low, _, high = uneven.quantiles.values()
    steps = len(uneven.seconds)
    rows = [("replicas, and those that differ", _replicas(uneven))]
    if steps > 1:
        between = f"{in_words(low)} to {in_words(high)}"
        rows.append((f"mean of {steps} steps; 90 % of them", f"{in_words(uneven.mean)}; {between}"))
    rows += [
        ("even step, as much work", in_words(float(uneven.even.mean()))),
        ("slowdown, mean step / even step", f"{uneven.slowdown:.3f}"),
    ]
    for part in uneven.parts:
        share = "" if part.share is None else f"; {part.share:.0%} goes away without it"
        rows.append(
            (f"slowdown by {part.name.replace('_', ' ')} alone", f"{part.slowdown:.3f}{share}")
        )
    return rows


def _replicas(uneven: UnevenSteps) -> str:
    replicas, distinct = len(uneven.of_replica), len(uneven.typical.graph.replicas)
    return f"{replicas} replica{'s' if replicas > 1 else ''}, {distinct}"
