"""How the core of attention is computed."""

from __future__ import annotations

from enum import StrEnum

from bfpp.schedules.invalid import InvalidConfiguration, did_you_mean


class Attention(StrEnum):
    """In one kernel that never writes the scores (FlashAttention), or in one for each operator."""

    FUSED = "fused"
    UNFUSED = "unfused"


def parse_attention(text: str) -> Attention:
    """The kind of that name; raises `InvalidConfiguration` for another."""
    if text not in list(Attention):
        known = ", ".join(Attention)
        raise InvalidConfiguration(
            "attention", f"{text!r} is not one of {known}{did_you_mean(text, Attention)}"
        )
    return Attention(text)
