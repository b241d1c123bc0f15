"""Overlap of tensor-parallel collectives with GEMMs."""

from __future__ import annotations

from enum import StrEnum

from bfpp.schedules.errors import chosen


class TensorOverlap(StrEnum):
    """GEMMs that hide the collectives of a tensor-parallel group.

    - `none`: nothing, they block the compute.
    - `bulk`: in the backward pass, the one of two GEMMs that does not wait for them.
    - `chunked`: that one, and the GEMM that they feed or follow, chunk by chunk (Megatron-LM's
      `--tp-comm-overlap`, torchtitan's asynchronous tensor parallelism).
    """

    NONE = "none"
    BULK = "bulk"
    CHUNKED = "chunked"


def parse_tensor_overlap(text: str) -> TensorOverlap:
    """The kind of that name; raises `InvalidConfiguration` for another."""
    return chosen(TensorOverlap, "tp_overlap", text)
