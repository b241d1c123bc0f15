"""GPU-hours of training, and money."""

from __future__ import annotations

from bfpp.sim.search.outcomes import Outcome

TOKENS = 1e6
"""Costs are given for this number of tokens."""


def cost(outcome: Outcome, price: float | None) -> dict[str, float]:
    """GPU-hours for a million tokens and, where an hour has a price, their cost."""
    hours = TOKENS / outcome.tokens_per_second_per_gpu / 3600
    priced = {} if price is None else {"price_per_million_tokens": hours * price}
    return {"gpu_hours_per_million_tokens": hours, **priced}
