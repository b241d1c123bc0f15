"""Notes of commands on clusters' files: numbers that are likely in another unit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bfpp.sim.experiment.experiment import Experiment
from bfpp.terminal.printing import note

PREDICTING = ("simulate", "compare", "explain")
"""Commands that show the warnings of an experiment beside its prediction."""


def note_doubts(command: str | None, doubts: Iterable[str]) -> None:
    """Note on standard error, once each, numbers of clusters' files likely in another unit.

    Predictions show those of their cluster beside their other warnings.
    """
    for doubt in dict.fromkeys(doubts) if command and command not in PREDICTING else ():
        note(f"bfpp {command}: {doubt}")


def doubts_of(experiments: Iterable[Experiment]) -> Iterator[str]:
    """Numbers likely in another unit in the files of the clusters of experiments."""
    for experiment in {each.cluster: each for each in experiments}.values():
        yield from experiment.cluster_doubts
