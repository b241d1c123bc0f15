"""Orders as a schedule: from a file, or those of another schedule on one layout.

A file of orders gives its ranks, its micro-batches and the placement of its stages. Lines that
begin with `#` are no orders; those of the form `# key = value` give values of the experiment, such
as costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from reprlib import repr as brief
from typing import Any

from bfpp.schedules.errors import InvalidConfiguration
from bfpp.schedules.formats.torch_csv import (
    MalformedOrders,
    layout_of,
    read_orders,
    read_posts,
    read_values,
)
from bfpp.schedules.layout.layout import Layout
from bfpp.schedules.orders.posts import Post
from bfpp.schedules.orders.steps import Order, Schedule, Step, WithBlocks
from bfpp.schedules.orders.validity import order_violations
from bfpp.schedules.reading import read_file

DIGITS = 10
"""More of them are no number of slices."""


class GivenOrders(WithBlocks):
    """The orders of `ranks`, on the layout that they are of; `stated` are the values in their file.

    `ends` are the sends and receives among each rank's steps, if there are any.
    """

    title: str
    ranks: tuple[tuple[Step, ...], ...]
    home: Layout
    stated: tuple[tuple[str, str], ...] = ()
    ends: tuple[tuple[Post, ...], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.title)
        object.__setattr__(self, "loops", self.home.loops)

    @property
    def parameters(self) -> dict[str, Any]:
        """Orders are as they are, except for blocks."""
        return {"fused_blocks": self.fused_blocks}

    @property
    def values(self) -> Mapping[str, object]:
        """Values of an experiment that the orders fix, and those stated in their file."""
        microbatches = self.home.whole_microbatches
        return {**dict(self.stated), "pp": self.home.pp, "microbatches": microbatches}

    @property
    def posts(self) -> Sequence[Sequence[Post]]:
        """Those in the file, if there are any."""
        return self.ends

    @property
    def slices(self) -> int:
        """The number that the file gives, by default one."""
        return self.home.slices

    def placement(self, pp: int, loops: int) -> tuple[int, ...]:
        """The rank that runs each stage."""
        return self.home.placement if pp == self.home.pp else super().placement(pp, loops)

    def copies(self, pp: int, loops: int) -> tuple[tuple[int, ...], ...]:
        """The rank that runs each stage's second copy, where there are two."""
        return self.home.copies if pp == self.home.pp else super().copies(pp, loops)

    def steps(self, layout: Layout, rank: int) -> Sequence[Step]:  # noqa: ARG002
        """The order of the rank."""
        return self.ranks[rank]

    def require(self, layout: Layout) -> None:
        """Raises `InvalidConfiguration` for another layout than the orders'."""
        for name in ("pp", "microbatches"):
            if (asked := getattr(layout, name)) != (own := getattr(self.home, name)):
                raise InvalidConfiguration(name, f"{self.title} has {own}, not {asked}")
        super().require(layout)


def as_given(schedule: Schedule, layout: Layout) -> GivenOrders:
    """The orders of a schedule on a layout, in a form that can be sent to other processes."""
    return _given(schedule.name, schedule.orders(layout), layout, posts=schedule.posts)


def read_schedule(path: str) -> GivenOrders:
    """The orders of a file; raises `InvalidConfiguration`, in one line, for any that cannot run."""
    try:
        text = read_file(Path(path))
    except OSError as error:
        raise InvalidConfiguration("schedule", f"{path}: {error.strerror or error}") from None
    return orders_of_text(path, text)


def orders_of_text(path: str, text: bytes) -> GivenOrders:
    """The orders in the text of a file; raises `InvalidConfiguration`, which names its `path`."""
    try:
        orders, posts, stated = read_orders(text), read_posts(text), read_values(text)
    except MalformedOrders as error:
        raise InvalidConfiguration("schedule", f"{path}: {error.reason}") from None
    if broken := order_violations(orders):
        more = f" (and {len(broken) - 1} more: bfpp check {path})" if len(broken) > 1 else ""
        reason = f"{path}: {broken[0].rule}: {broken[0].message}{more}"
        raise InvalidConfiguration("schedule", reason)
    layout = _sliced(path, layout_of(orders), stated)
    return _given(path, orders, layout, stated, posts if any(posts) else ())


def _sliced(path: str, layout: Layout, stated: dict[str, str]) -> Layout:
    """The layout with the slices that the file gives, which are no value of the experiment."""
    slices = stated.pop("slices", "1")
    number = int(slices) if slices.isdecimal() and len(slices) < DIGITS else 0
    if not number or layout.microbatches % number:
        asked = number or brief(slices)
        reason = f"{path}: {layout.microbatches} micro-batches are not in slices of {asked}"
        raise InvalidConfiguration("schedule", reason)
    return replace(layout, slices=number)


def _given(
    title: str,
    orders: Sequence[Order],
    layout: Layout,
    stated: Mapping[str, str] | None = None,
    posts: Sequence[Sequence[Post]] = (),
) -> GivenOrders:
    ranks = tuple(tuple(order.tolist()) for order in orders)
    ends = tuple(map(tuple, posts))
    return GivenOrders(title, ranks, layout, tuple((stated or {}).items()), ends)
