"""One step whose times a person works out on paper, and texts that were read through by one.

1F1B on two ranks with two micro-batches: a forward pass takes 1 s, a backward pass 2 s, a transfer
0.5 s, an all-reduce of gradients 0.25 s and the optimizer 0.125 s.

    rank 0  F0 0-1, F1 1-2, B0 5-7, B1 8-10, reduces until 10.25, updates until 10.375
    rank 1  F0 1.5-2.5, B0 2.5-4.5, F1 4.5-5.5, B1 5.5-7.5, reduces until 7.75, updates until 7.875
    to 1    activations of 0 1-1.5, of 1 2-2.5
    to 0    gradients of 0 4.5-5, of 1 7.5-8

Nothing records the golden texts again: whoever changes what is printed edits them, and reads them.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.helpers import GOLDEN

COSTS = {"forward": 1, "backward": 2, "transfer": 0.5, "reduce": 0.25, "optimizer": 0.125}


def words(schedule: str = "1f1b", **changed: float) -> str:
    """The step on the command line, with other costs."""
    return _command(schedule, COSTS | changed)


def _command(schedule: str, costs: Mapping[str, float]) -> str:
    said = " ".join(f"--{name} {seconds}" for name, seconds in costs.items())
    return f"{schedule} --pp 2 --microbatches 2 {said}"


def require_golden(name: str, text: str) -> None:
    """True if a text is that of a file, except for spaces at the ends of lines."""
    lines = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    assert lines == (GOLDEN / name).read_text()
