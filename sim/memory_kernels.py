"""The peak of activations, as a loop over tasks; it keeps to what `bfpp.sim.kernels` keeps to."""

from __future__ import annotations

import numpy as np


def find_peaks(tasks, of_operations, bytes_of_units, most_saved, most_transient):
    """Fill, for each rank, what is saved and what is transient when both need most.

    `tasks` are columns of a graph; `of_operations` says of each operation whether it is a compute
    step, and whether it begins or ends what is saved, and what halves keep. `bytes_of_units` are
    the columns of `UnitActivations`: saved, restored, restored by a layer, transient.
    """
    operation, rank, unit, block = tasks
    computes, saves, ends_saved, halves, ends_halved = of_operations
    saved, restored, restored_layer, transient = bytes_of_units
    alive, pending, needed, most = np.zeros((4, len(most_saved)))
    most[:] = -1.0
    for task in range(len(operation)):
        code, here, own = operation[task], rank[task], unit[task]
        if not computes[code]:
            continue
        if saves[code]:
            alive[here] += saved[own]
        if halves[code]:
            pending[here] += restored[own]
        # What ends may leave a rest of rounding behind.
        needs = transient[own] + max(pending[here] - restored_layer[own], 0.0)
        beside = needed[here] if block[task] >= 0 and block[task] != task else 0.0
        needed[here] = needs
        if alive[here] + needs + beside > most[here]:
            most[here] = alive[here] + needs + beside
            most_saved[here], most_transient[here] = alive[here], needs + beside
        if ends_saved[code]:
            alive[here] -= saved[own]
        if ends_halved[code]:
            pending[here] -= restored[own]
