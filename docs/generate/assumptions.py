"""The page of what is assumed unless it is said, from the table that the command prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bfpp.reports.assumptions import TABLE, assumed_values, by_implementation
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.cluster.software_profiles import IMPLEMENTATIONS
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.presets.files import preset_names

PAGE = "reference/assumptions.md"
EXAMPLE = Experiment(
    "1f1b", pp=4, tp=4, dp=8, microbatches=64, model="llama3-70b", cluster="dgx-h100"
)

_INTRODUCTION = """\
# Assumptions

`bfpp simulate --assumptions` prints this table for the case at hand, with `--json` as
`assumptions`. A value comes, in this order, from an option, from the experiment file that is given
for SCHEDULE, and from what the last column names. Files of experiments and tables of measurements
that name no implementation mean `paper`, as they did when it was the default.
"""


def pages() -> dict[str, str]:
    """The page by its path in the docs."""
    example = assumed_values(EXAMPLE)
    meanings = {each.name: each.meaning for each in TABLE}
    values = [[f"`{name}`", meanings[name], value, source] for name, value, source in example]
    names = [*IMPLEMENTATIONS]
    rows = by_implementation(EXAMPLE, names)
    clusters = [
        [f"`{name}`", load_cluster(name).implementation] for name in preset_names("cluster")
    ]
    parts = [
        _INTRODUCTION,
        "## Llama-3 70B on DGX H100\n",
        *_table(["value", "what it is", "assumed", "from"], values),
        "\n## What implementations differ in\n",
        "On that cluster, with tensor parallelism of 4.\n",
        *_table(["value", "what it is", *names], [*rows]),
        "\n## The implementation of each cluster\n",
        "A cluster's file says it (`implementation`); without it, `current` is assumed.\n",
        *_table(["cluster", "implementation"], clusters),
    ]
    return {PAGE: "\n".join(parts) + "\n"}


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for row in (columns, ["---"] * len(columns), *rows):
        yield f"| {' | '.join(row)} |"
