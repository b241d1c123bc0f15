"""The data that tasks leave for one another: activations, weights, gradients.

Data are of a cell (a micro-batch at a unit), of a unit or of a rank, as the operations are
that write them. A cell's data are needed at the same unit or at a neighbour; where that is on
another rank, a transfer carries them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Datum:
    """A kind of data that tasks leave for other tasks.

    `buffer` is the column with the number of its buffer on the rank, if several share
    them; with `of_all_ranks`, a task that needs it needs every rank's.
    """

    name: str
    buffer: str | None = None
    of_all_ranks: bool = False


OUTPUT = Datum("output")
INPUT_GRADIENT = Datum("gradient of the input")
SAVED = Datum("saved activations")
OFFLOADED = Datum("offloaded activations")
RELOADED = Datum("reloaded activations")
HALVED = Datum("what is kept between the halves of a backward pass")
WEIGHTS = Datum("weights", buffer="weight_buffer")
GRADIENTS = Datum("gradients", buffer="gradient_buffer")
REDUCED = Datum("reduced gradients")
REPLICATED = Datum("gradients reduced across replicas")
TIED_GRADIENTS = Datum("gradients of tied parameters")
ORTHOGONAL = Datum("orthogonal momentum of matrices")
NORM_OF_RANK = Datum("norm of a rank's gradients", of_all_ranks=True)


class Needed(NamedTuple):
    """A datum, of the unit that is `units_on` after the task's own."""

    datum: Datum
    units_on: int = 0
