"""Peak memory of passes, by the order of each rank's compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bfpp.core.library import function

Integers = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]
Sizes = npt.NDArray[np.float64]


def find_peaks(
    tasks: tuple[Integers, Integers, Integers, Integers, Integers],
    rules: tuple[int, int],
    of_operations: Flags,
    bytes_of_units: tuple[Sizes, Sizes, Sizes, Sizes, Sizes, Sizes],
    most_saved: Sizes,
    most_transient: Sizes,
) -> None:
    """Fill, for each rank, the saved and transient bytes at the peak of their sum.

    `tasks` are columns of a graph: operation, rank, unit, micro-batch and block. `of_operations`
    says of each operation whether it is a compute step, and whether it begins or ends what is
    saved, what halves keep, and what is offloaded. `bytes_of_units` are what passes of each save,
    keep between halves, restore by a layer, need for a while, need in addition while they run
    backward, and offload: rows over units, columns over costs. `rules` are the slices of a
    micro-batch, and how many more offloads have begun when one has surely ended.
    """
    operation, *_ = tasks
    saved, *_ = bytes_of_units
    slices, ahead = rules
    ranks, costs = most_saved.shape
    function("find_peaks")(
        len(operation), ranks, len(saved), costs, of_operations.shape[1],
        slices, min(ahead, len(operation) + 1),
        *tasks, of_operations, *bytes_of_units, most_saved, most_transient,
    )  # fmt: skip
