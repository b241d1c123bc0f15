"""How attention is computed: its core, and what context-parallel devices exchange for it."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from bfpp.schedules.invalid import InvalidConfiguration, did_you_mean


class Attention(StrEnum):
    """In one kernel that never writes the scores (FlashAttention), or in one for each operator."""

    FUSED = "fused"
    UNFUSED = "unfused"


class ContextExchange(StrEnum):
    """How a context-parallel device attends to the keys and values that others have.

    - `ring`: blocks of keys and values go around, beside the attention to the block before.
    - `all-to-all`: each device gets the whole sequence, for a share of the heads (Ulysses).
    - `all-gather`: each device gathers all keys and values first.
    """

    RING = "ring"
    ALL_TO_ALL = "all-to-all"
    ALL_GATHER = "all-gather"


Kind = TypeVar("Kind", bound=StrEnum)


def parse_attention(text: str) -> Attention:
    """The kind of that name; raises `InvalidConfiguration` for another."""
    return _parse(Attention, "attention", text)


def parse_exchange(text: str) -> ContextExchange:
    """The kind of that name; raises `InvalidConfiguration` for another."""
    return _parse(ContextExchange, "cp_comm", text)


def _parse(kinds: type[Kind], field: str, text: str) -> Kind:
    if text not in list(kinds):
        known = ", ".join(kinds)
        raise InvalidConfiguration(
            field, f"{text!r} is not one of {known}{did_you_mean(text, kinds)}"
        )
    return kinds(text)
