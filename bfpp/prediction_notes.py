"""What is said of a prediction beside its table: what does not fit, is most, or is left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from bfpp.predictions import Prediction
from bfpp.results import output
from bfpp.traces.time_axis import in_words

SHOWN_GB = 0.05
"""Parts of the memory smaller than this are not shown."""


def shortage(record: Mapping[str, Any]) -> str:
    """Of a record that does not fit: how much of a device it needs, and most of it for what."""
    part, size = max(record["memory_parts_gb"].items(), key=lambda each: each[1])
    needed, device = record["memory_reserved_gb"], record["device_memory_gb"]
    return f"{needed:.1f} GB reserved of {device:.4g} GB; largest is {part}, {size:.1f} GB"


def print_cautions(results: Sequence[Prediction]) -> None:
    """A line on standard output for each result that does not fit, or is far from its profile."""
    lines = [f"{result.name} {each}\n" for result in results for each in _cautions(result)]
    if lines:
        output().print(Text("".join(lines)))


def print_peak(result: Prediction) -> None:
    """Two lines on standard output: where and when most memory is taken, and of what."""
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
            f"most memory on rank {peak['rank']}, {in_words(peak['time'])} after the start, in "
            f"{during}\nin GB: {made_of}; {low:.1f} to {high:.1f} reserved\n"
        )
    )


def print_not_modelled(result: Prediction) -> None:
    """A line on standard output that says what the prediction leaves out."""
    if result.physical:
        output().print(Text(f"not modelled: {'; '.join(result.record['not_modelled'])}\n"))


def _cautions(result: Prediction) -> Iterator[str]:
    costs, ranks = result.costs, result.timeline.graph.layout.pp
    if result.record.get("missing_gb"):
        yield f"does not fit: {shortage(result.record)}"
    if result.experiment.profile is None:
        return
    from bfpp.sim.profile import ProfiledCosts

    if isinstance(costs, ProfiledCosts) and costs.ranks != ranks:
        yield (
            f"on {ranks} ranks, by a profile of {costs.ranks}: ranks that share cores or links "
            "take longer"
        )
