"""Orders as lists of steps and as rows of actions."""

from __future__ import annotations

from typing import Any

import numpy as np

from bfpp.schedules import Layout, Order, find_schedule
from bfpp.schedules.formats.torch_csv import write_orders
from bfpp.schedules.orders.steps import STEP


def as_lists(orders: list[Order]) -> list[list[Any]]:
    return [order.tolist() for order in orders]


def as_orders(ranks: list[list[Any]]) -> list[Order]:
    return [np.array(steps, dtype=STEP) for steps in ranks]


def action_rows(schedule: str, layout: Layout, **parameters: int) -> list[list[str]]:
    """The actions of each rank: `0F0`, `0F1`, ..."""
    orders = find_schedule(schedule, **parameters).orders(layout)
    return [line.split(",") for line in write_orders(orders).splitlines()]
