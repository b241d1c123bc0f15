"""Attention: its kernels, and the exchange of context parallelism."""

from __future__ import annotations

from enum import StrEnum

from bfpp.schedules.errors import chosen


class Attention(StrEnum):
    """Attention in one kernel that never writes the scores (FlashAttention), or one by operator."""

    FUSED = "fused"
    UNFUSED = "unfused"


class ContextExchange(StrEnum):
    """Context parallelism's way to attend to the keys and values of other devices.

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
