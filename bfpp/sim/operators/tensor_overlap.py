"""Exposed time of tensor-parallel collectives that overlap a GEMM.

As Transformer Engine's userbuffers do it by default (`initialize_ub`, version 2):

- The input of a GEMM is gathered around a ring, a chunk from each device: the GEMM begins with the
  chunk that is there, and each later one arrives while the chunk before is multiplied. What sends
  takes one multiprocessor.
- The output of a GEMM is reduce-scattered in four chunks, each while the next is computed, so that
  the last one is exposed. Reducing takes 16 multiprocessors while it lasts.
- What one GEMM of the backward pass neither feeds nor waits for runs at the same time as all of it,
  on 16 multiprocessors too.

Each chunk of a GEMM is a kernel that reads all of its weights. Communication that takes longer than
the GEMM is exposed.
"""

from __future__ import annotations

from typing import NamedTuple

from bfpp.schedules.settings.tensor_overlap import TensorOverlap
from bfpp.sim.operators.operators import Collective, Overlapped

CHUNKS = 4
"""Chunks in which the output of a GEMM is reduced."""

SENDING, REDUCING = 1, 16
"""Multiprocessors that communication takes: on the ring of inputs, and otherwise."""


class Gemm(NamedTuple):
    """The GEMM that a collective may overlap: its seconds, on how many multiprocessors.

    In chunks, each but the first takes `again` in addition to its share of them.
    """

    seconds: float
    multiprocessors: int
    again: float = 0.0

    def chunked(self, chunks: int) -> float:
        """Its seconds when split into chunks."""
        return self.seconds + (chunks - 1) * self.again


def exposed_seconds(
    overlap: TensorOverlap, collective: Collective, seconds: float, members: int, gemm: Gemm
) -> float:
    """Exposed time of a collective that takes `seconds` beside that GEMM.

    Of the two GEMMs of a backward pass, which take as many operations, each hides its own.
    """
    if overlap is TensorOverlap.BULK:
        # Section Tensor-parallel of the paper counts all of it as hidden.
        return 0.0 if collective.overlapped is Overlapped.OTHER else seconds
    if overlap is TensorOverlap.NONE or collective.overlapped is Overlapped.NOTHING:
        return seconds
    first = last = 0.0  # chunks, computed before all communication and sent after all compute
    computing, taken = gemm.seconds, REDUCING
    if collective.overlapped is Overlapped.INPUT:
        computing, taken = gemm.chunked(members), SENDING
        first = computing / members
    elif collective.overlapped is Overlapped.OUTPUT:
        computing = gemm.chunked(CHUNKS)
        first, last = computing / CHUNKS, seconds / CHUNKS
    slowed = computing + min(taken / gemm.multiprocessors, 1.0) * seconds
    together = max(slowed + last, seconds + first)
    return min(together - gemm.seconds, seconds)
