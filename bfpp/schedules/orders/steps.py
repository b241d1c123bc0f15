"""Compute steps, orders of ranks, and the base class of schedules.

A schedule is a function of a layout and a rank that yields steps in the order
in which that rank runs them. Everything else a task graph holds (transfers,
gathers, reductions, buffers) follows from these orders.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from itertools import chain, islice, product, repeat, starmap, zip_longest
from typing import Any, ClassVar, NamedTuple, Self, dataclass_transform

import numpy as np
import numpy.typing as npt

from bfpp.core.orders import Orders
from bfpp.schedules.errors import InvalidConfiguration
from bfpp.schedules.layout.layout import Layout
from bfpp.schedules.orders.posts import Post

Step = tuple[int, int, int, bool]
"""(operation, stage, micro-batch, whether it is one block with the step after it)"""

STEP = np.dtype(
    [
        ("operation", np.int8),
        ("stage", np.int32),
        ("microbatch", np.int32),
        ("fused", np.bool_),
    ]
)
FIELDS = ("operation", "stage", "microbatch", "fused")
Order = npt.NDArray[np.void]
"""The compute steps of one rank, in its order: an array of `STEP`."""

PACKED = struct.Struct("=bii?")
"""A step as an element of an array of `STEP`."""


def forward(stage: int, microbatch: int) -> Step:
    """The forward pass of one micro-batch through one stage.

    >>> forward(stage=0, microbatch=3)
    (0, 0, 3, False)
    """
    return (0, stage, microbatch, False)


def backward(stage: int, microbatch: int) -> Step:
    """The whole backward pass: gradients of the input and of the weights.

    >>> backward(stage=0, microbatch=3)
    (1, 0, 3, False)
    """
    return (1, stage, microbatch, False)


def backward_input(stage: int, microbatch: int) -> Step:
    """The input half of a backward pass: the stage before waits for it.

    >>> backward_input(stage=0, microbatch=3)
    (2, 0, 3, False)
    """
    return (2, stage, microbatch, False)


def backward_weight(stage: int, microbatch: int) -> Step:
    """The weight half of a backward pass: only the reduction of gradients waits for it.

    >>> backward_weight(stage=0, microbatch=3)
    (3, 0, 3, False)
    """
    return (3, stage, microbatch, False)


def fused(first: Step, second: Step) -> Iterator[Step]:
    """A forward and a backward pass as one block: both begin with it, and both end with it."""
    yield (*first[:3], True)
    yield second


def wrong_block(steps: Sequence[Step]) -> str | None:
    """The reason why these steps, a block or part of one, cannot be a block; None if they can."""
    if {step[0] for step in steps} != {0, 1}:
        return "a block is a forward and a whole backward pass"
    first, second = steps
    if second[3]:
        return "a block is of two steps"
    if first[1:3] == second[1:3]:
        return f"the passes of stage {first[1]}, micro-batch {first[2]} cannot be one block"
    return None


def in_sequences(
    step: Callable[[int, int], Step],
    stages: Sequence[int],
    microbatches: int,
    sequence: int | None = None,
) -> Iterator[Step]:
    """Micro-batches in sequences, by default one, each of them through all of the stages."""
    sequence = microbatches if sequence is None else sequence
    begins = range(0, microbatches, sequence)
    each = (range(begin, min(begin + sequence, microbatches)) for begin in begins)
    return chain.from_iterable(
        map(step, repeat(stage), some) for some, stage in product(each, stages)
    )


def in_turn(times: int, *passes: Iterator[Step]) -> Iterator[Step]:
    """One step of each, `times` times; passes that have run out are skipped."""
    rounds = islice(zip_longest(*passes), times)
    return filter(None, chain.from_iterable(rounds))


def order_of(steps: Iterable[Step]) -> Order:
    """The order of these steps; raises `InvalidConfiguration` for anything else."""
    # As bytes: numpy assigns the fields of each element one by one.
    try:
        return np.frombuffer(bytearray().join(starmap(PACKED.pack, steps)), STEP)
    except (struct.error, TypeError) as error:
        if error.__traceback__ and error.__traceback__.tb_next:  # of the schedule's own code
            raise
        raise InvalidConfiguration("schedule", f"yields what is not a step: {error}") from error


def joined(orders: Sequence[Order]) -> Orders:
    """The columns of the orders of all ranks, one after the other."""
    # As bytes: numpy copies the fields of each order one by one.
    steps = np.frombuffer(
        bytearray().join(each.astype(STEP, copy=False).tobytes() for each in orders), STEP
    )
    operation, stage, microbatch, is_fused = map(
        np.ascontiguousarray, map(steps.__getitem__, FIELDS)
    )
    return Orders(operation, stage, microbatch, is_fused, np.cumsum([0, *map(len, orders)]))


def apart(orders: Orders) -> list[Order]:
    """The order of each rank, of orders in columns."""
    steps = np.empty(len(orders.operation), STEP)
    for name, column in zip(FIELDS, orders[:-1], strict=True):
        steps[name] = column
    return np.split(steps, orders.bounds[1:-1])


def in_units(order: Order, layout: Layout) -> Order:
    """The order with a step for each unit, as if each were a stage of its own.

    Units run in turn, backward in reverse. Those of a block are paired one by one, as many as
    both of its stages have: each pair is a block, and those left over run alone.
    """
    count = layout.units_of_stages[order["stage"]]
    step = np.repeat(np.arange(len(order)), count)
    turn = np.arange(len(step)) - np.repeat(np.cumsum(count) - count, count)
    if order["fused"].any():
        block = np.arange(len(order)) - np.append(False, order["fused"][:-1])
        by_pair = np.lexsort((step, turn, block[step]))
        step, turn = step[by_pair], turn[by_pair]
    expanded = order[step]
    expanded["fused"] &= turn < np.append(count[1:], 0)[step]
    is_forward = expanded["operation"] == 0
    expanded["stage"] = layout.first_unit_of_stages[order["stage"][step]]
    expanded["stage"] += np.where(is_forward, turn, count[step] - 1 - turn)
    return expanded


def forward_only(order: Order) -> Order:
    """The forward passes of an order, which a rank runs to evaluate a model."""
    forwards: Order = order[order["operation"] == 0]
    forwards["fused"] = False
    return forwards


class Repetition(NamedTuple):
    """The steady state of orders: ranks repeat their passes, except the first and last ones.

    They do so every `period` micro-batches, of which at most `alive` are under way on a rank.
    """

    period: int
    alive: int


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
@dataclass(frozen=True)
class Schedule:
    """A rule that gives each rank the order of its compute steps.

    A schedule is a class with a `name` and `steps`; its annotated fields, if any, are parameters of
    its own (it is a frozen dataclass, decorated or not), except `source`: the reference to it, if
    it is in a Python file. A rank holds `loops` stages or, if it is `looped`, any number of them;
    `placement` has the rank of each, and `copies` those of second copies, if there are any:
    `copy_of` is the one that a micro-batch takes. A micro-batch runs in `slices`.

    >>> class InTurn(Schedule):
    ...     name = "in-turn"
    ...
    ...     def steps(self, layout, rank):
    ...         for microbatch in range(layout.microbatches):
    ...             yield forward(rank, microbatch)
    ...             yield backward(rank, microbatch)
    >>> len(InTurn().orders(Layout(2, 4)))
    2
    """

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    source: str = field(default="", kw_only=True, repr=False, compare=False)
    looped: ClassVar[bool] = False
    loops: ClassVar[int] = 1

    def __init_subclass__(cls) -> None:
        """A class with its own order does not inherit the steady state of another one."""
        super().__init_subclass__()
        own = vars(cls)
        if ("steps" in own or "orders" in own) and "repetition" not in own:
            setattr(cls, "repetition", Schedule.repetition)  # noqa: B010

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Make dataclasses of the class and its bases first, where no decorator has."""
        for each in reversed(cls.__mro__):
            if issubclass(each, Schedule) and "__dataclass_fields__" not in vars(each):
                dataclass(frozen=True)(each)
        return super().__new__(cls)

    def steps(self, layout: Layout, rank: int) -> Iterable[Step]:
        """The steps of a rank, in the order in which it runs them."""
        del layout, rank
        raise InvalidConfiguration("schedule", f"{self.reference} has no method steps")

    def validate(self, layout: Layout) -> None:
        """Raise `InvalidConfiguration` for a layout that cannot be run, with the reason."""

    def placement(self, pp: int, loops: int) -> tuple[int, ...]:
        """The rank of each stage."""
        return tuple(range(pp)) * loops

    def copies(self, pp: int, loops: int) -> tuple[tuple[int, ...], ...]:
        """The rank of each stage's second copy, where there are two."""
        del pp, loops
        return ()

    def repetition(self, layout: Layout) -> Repetition | None:
        """The steady state, if ranks repeat their orders for any larger number of micro-batches.

        A search then predicts steps of many micro-batches from steps of fewer.
        """
        del layout
        return None

    @property
    def slices(self) -> int:
        """Parts of a micro-batch, each of which runs as one."""
        return 1

    @property
    def posts(self) -> Sequence[Sequence[Post]]:
        """Posts of each rank's sends and receives, if the schedule itself gives them."""
        return ()

    def copy_of(self, layout: Layout, microbatch: int) -> int:
        """The copy of all stages that a micro-batch goes through."""
        del layout, microbatch
        return 0

    def layout(
        self,
        pp: int,
        microbatches: int,
        loops: int | None = None,
        units_per_stage: int | Sequence[int] = 1,
    ) -> Layout:
        """The layout, with stages placed as this schedule requires."""
        loops = self.loops if loops is None else loops
        self._require_loops(loops)
        return Layout(
            pp,
            microbatches * self.slices,
            units_per_stage=units_per_stage,
            placement=self.placement(pp, loops),
            copies=self.copies(pp, loops),
            slices=self.slices,
        )

    def division(self, parts: int) -> tuple[int, int]:
        """Loops, and units of a stage, for ranks of that many parts each.

        Parts are stages of a looped schedule, else units of its stages.
        """
        if self.looped:
            return parts, 1
        if parts % self.loops:
            raise InvalidConfiguration(
                "loops", f"{parts} parts of a rank are not a multiple of {self.name}'s {self.loops}"
            )
        return self.loops, parts // self.loops

    def divided(self, pp: int, microbatches: int, parts: int) -> Layout:
        """Ranks of that many parts each: stages of a looped schedule, else units of its stages."""
        return self.layout(pp, microbatches, *self.division(parts))

    def _require_loops(self, loops: int) -> None:
        if not self.looped and loops != self.loops:
            held = "one stage" if self.loops == 1 else f"{self.loops} stages"
            raise InvalidConfiguration("loops", f"{self.name} is not looped: {held} a rank")

    @property
    def reference(self) -> str:
        """The name that `find_schedule` takes."""
        return self.source or self.name

    @property
    def values(self) -> Mapping[str, object]:
        """Values of an experiment that the schedule fixes, by name."""
        return {}

    @property
    def parameters(self) -> dict[str, Any]:
        """The schedule's own parameters."""
        names = (each.name for each in fields(self) if each.init and each.name != "source")
        return {name: getattr(self, name) for name in names}

    def require(self, layout: Layout) -> None:
        """Raises `InvalidConfiguration` for a layout that the schedule cannot run."""
        self._require_loops(layout.loops)
        if layout.placement != self.placement(layout.pp, layout.loops):
            raise InvalidConfiguration("placement", f"{self.name} places stages otherwise")
        if layout.copies != self.copies(layout.pp, layout.loops):
            raise InvalidConfiguration("copies", f"{self.name} places copies of stages otherwise")
        if layout.slices != self.slices or layout.microbatches % self.slices:
            raise InvalidConfiguration(
                "slices",
                f"{self.name} runs micro-batches in {self.slices}, and {layout.microbatches} in "
                f"{layout.slices} are not so",
            )
        self.validate(layout)

    def can_run(self, layout: Layout) -> bool:
        """True if the schedule can run on the layout."""
        try:
            self.require(layout)
        except InvalidConfiguration:
            return False
        return True

    def orders(self, layout: Layout) -> list[Order]:
        """The order of each rank, as arrays of `STEP`; raises like `require`."""
        self.require(layout)
        return [order_of(self.steps(layout, rank)) for rank in range(layout.pp)]

    def joined_orders(self, layout: Layout) -> Orders:
        """Columns of the orders of all ranks; raises like `require`."""
        return joined(self.orders(layout))


class WithBlocks(Schedule):
    """A schedule some of whose forward and backward passes are blocks, unless that is refused."""

    _: KW_ONLY
    fused_blocks: bool = field(
        default=True,
        metadata={"help": "run the two passes of a fused block one after the other"},
    )

    def orders(self, layout: Layout) -> list[Order]:
        """The order of each rank, with blocks or with their passes in turn."""
        orders = super().orders(layout)
        for order in orders:
            order["fused"] &= self.fused_blocks
        return orders


class InBothDirections(Schedule):
    """A schedule of two copies of each stage, in opposite directions."""

    def copies(self, pp: int, loops: int) -> tuple[tuple[int, ...], ...]:
        """The second copies are in reverse, so that no rank holds a stage twice."""
        if pp % 2:
            raise InvalidConfiguration("pp", f"{self.name} needs an even number of ranks, not {pp}")
        return (self.placement(pp, loops)[::-1],)


class OnVee(Schedule):
    """A schedule whose stages go down the ranks and up again: two a rank, on a V."""

    loops = 2

    def placement(self, pp: int, loops: int) -> tuple[int, ...]:  # noqa: ARG002
        """The last stage is on the rank of the first."""
        return (*range(pp), *reversed(range(pp)))
