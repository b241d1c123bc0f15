"""Notes under a prediction: out of memory, peak memory, effects not modelled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from bfpp.api.predictions import Prediction
from bfpp.sim.cluster.provenance import UNSURE
from bfpp.terminal.printing import output
from bfpp.traces.timeline.units import in_words

SHOWN_CONSTANTS = 3
"""Unsure constants that are named, at most."""

SHOWN_GB = 0.05
"""Parts of the memory smaller than this are not shown."""


def shortage(record: Mapping[str, Any]) -> str:
    """Of a record that does not fit: its need of a device's memory, and the largest part."""
    part, size = max(record["memory_parts_gb"].items(), key=lambda each: each[1])
    needed, device = record["memory_reserved_gb"], record["device_memory_gb"]
    return f"{needed:.1f} GiB reserved of {device:.4g} GiB; largest is {part}, {size:.1f} GiB"


def print_cautions(results: Sequence[Prediction]) -> None:
    """A line on standard output for each result that may be misread.

    It does not fit, is far from its profile, or was given a value that has no effect.
    """
    lines = [f"{result.name} {each}\n" for result in results for each in _cautions(result)]
    if lines:
        output().print(Text("".join(lines)))


def print_peak(result: Prediction) -> None:
    """Two lines on standard output: the place, time and parts of the peak memory."""
    if not result.physical:
        return
    record = result.record
    peak, parts = record["memory_peak"], record["memory_parts_gb"]
    largest_first = sorted(parts.items(), key=lambda part: -part[1])
    made_of = ", ".join(f"{name} {size:.1f}" for name, size in largest_first if size >= SHOWN_GB)
    during = peak["operation"]
    if peak["stage"] is not None:
        during += f" of micro-batch {peak['microbatch']} through stage {peak['stage']}"
    low, high = record["memory_reserved_low_gb"], record["memory_reserved_high_gb"]
    output().print(
        Text(
            f"peak memory on rank {peak['rank']}, {in_words(peak['time'])} after the start, in "
            f"{during}\nin GiB: {made_of}; {low:.1f} to {high:.1f} reserved\n"
        )
    )


def print_not_modelled(result: Prediction) -> None:
    """A line on standard output on the effects that the prediction leaves out."""
    if result.physical:
        output().print(Text(f"not modelled: {'; '.join(result.record['not_modelled'])}\n"))


def print_interval(result: Prediction) -> None:
    """A line on standard output on the sources of the step time's interval."""
    parts = result.record.get("interval_parts")
    if not parts:
        return
    from bfpp.sim.experiment.uncertainty import COMPONENTS

    others = [each for each in parts if each["name"] in COMPONENTS]
    unsure = [each for each in parts if each["origin"] in UNSURE]
    of_these = ", ".join(_share(each) for each in others)
    named = ", ".join(f"{_share(each)} {each['origin']}" for each in unsure[:SHOWN_CONSTANTS])
    total = sum(each["share"] for each in unsure)
    by_them = f"; constants nobody measured there {total:.0%}: {named}" if named else ""
    output().print(Text(f"the interval's variance: {of_these}{by_them}\n"))


def _share(part: Mapping[str, Any]) -> str:
    return f"{part['name']} {part['share']:.0%}"


def _cautions(result: Prediction) -> Iterator[str]:
    costs, ranks = result.costs, result.timeline.graph.layout.pp
    for name, need in result.record.get("without_effect", {}).items():
        yield f"does not depend on --{name.replace('_', '-')}, which needs {need}"
    if result.shortage:
        yield f"does not fit: {shortage(result.record)}"
    for warning in result.record.get("warnings", ()):
        yield f"may not be what you want: {warning}"
    if result.experiment.profile is None:
        return
    from bfpp.sim.costs.measured.profile import ProfiledCosts

    if isinstance(costs, ProfiledCosts) and costs.ranks != ranks:
        yield (
            f"on {ranks} ranks, by a profile of {costs.ranks}: ranks that share cores or links "
            "take longer"
        )
