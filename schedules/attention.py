"""How attention is computed: its core, and what context-parallel devices exchange for it."""

from __future__ import annotations

from enum import StrEnum

from bfpp.schedules.invalid import chosen


class Attention(StrEnum):
    """In one kernel that never writes the scores (FlashAttention), or in one for each operator."""

    FUSED = "fused"
    UNFUSED = "unfused"


class ContextExchange(StrEnum):
    """How a context-parallel device attends to the keys and values that others have.

    - `ring`: blocks of keys and values go around, during the attention to the block before.
    - `all-to-all`: each device gets the whole sequence, for a share of the heads (Ulysses).
    - `all-gather`: each device gathers all keys and values first.
    """

    RING = "ring"
    ALL_TO_ALL = "all-to-all"
    ALL_GATHER = "all-gather"


def parse_attention(text: str) -> Attention:
    """The kind of that name; raises `InvalidConfiguration` for another."""
    return chosen(Attention, "attention", text)


def parse_exchange(text: str) -> ContextExchange:
    """The kind of that name; raises `InvalidConfiguration` for another."""
    return chosen(ContextExchange, "cp_comm", text)
