"""Orders as a schedule: from a file, or those of another schedule on one layout.

A file of orders says its ranks, its micro-batches and where its stages are. Lines that begin with
`#` are no orders; those of the form `# key = value` say values of the experiment, such as costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bfpp.schedules.invalid import InvalidConfiguration
from bfpp.schedules.layout import Layout
from bfpp.schedules.order_validity import order_violations
from bfpp.schedules.reading import read_file
from bfpp.schedules.steps import Order, Schedule, Step, WithBlocks
from bfpp.schedules.torch_format import MalformedOrders, layout_of, read_orders, read_values


@dataclass(frozen=True)
class GivenOrders(WithBlocks):
    """The orders of `ranks`, on the layout that they are of; `said` are values said with them."""

    title: str
    ranks: tuple[tuple[Step, ...], ...]
    home: Layout
    said: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.title)
        object.__setattr__(self, "loops", self.home.loops)

    @property
    def parameters(self) -> dict[str, Any]:
        """Orders are as they are, but for blocks."""
        return {"fused_blocks": self.fused_blocks}

    @property
    def values(self) -> Mapping[str, object]:
        """What the orders decide of an experiment, and what is said with them."""
        microbatches = self.home.whole_microbatches
        return {**dict(self.said), "pp": self.home.pp, "microbatches": microbatches}

    @property
    def slices(self) -> int:
        """As many as is said with the orders."""
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
    """The orders of a schedule on a layout: what can be sent to other processes."""
    return _given(schedule.name, schedule.orders(layout), layout)


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
        orders, said = read_orders(text), read_values(text)
    except MalformedOrders as error:
        raise InvalidConfiguration("schedule", f"{path}: {error.reason}") from None
    if broken := order_violations(orders):
        more = f" (and {len(broken) - 1} more: bfpp check {path})" if len(broken) > 1 else ""
        reason = f"{path}: {broken[0].rule}: {broken[0].message}{more}"
        raise InvalidConfiguration("schedule", reason)
    return _given(path, orders, _sliced(path, layout_of(orders), said), said)


def _sliced(path: str, layout: Layout, said: dict[str, str]) -> Layout:
    """The layout with the slices that are said, which are no value of the experiment."""
    slices = said.pop("slices", "1")
    if not slices.isdecimal() or not int(slices) or layout.microbatches % int(slices):
        reason = f"{path}: {layout.microbatches} micro-batches are not in slices of {slices}"
        raise InvalidConfiguration("schedule", reason)
    return replace(layout, slices=int(slices))


def _given(
    title: str, orders: Sequence[Order], layout: Layout, said: Mapping[str, str] | None = None
) -> GivenOrders:
    ranks = tuple(tuple(order.tolist()) for order in orders)
    return GivenOrders(title, ranks, layout, tuple((said or {}).items()))
