"""Operators of a model on one device: what each computes, moves, keeps and communicates.

All costs follow from lists of them: seconds (`sim.compute`), saved activations by
recomputation policy (`sim.checkpointing`), and operations.

- An operator runs forward, then backward in two parts that may run apart: the gradient of
  its inputs, and that of its weights. What has no weights has no second part.
- Tensors are named: two operators that read the same tensor keep it once.
- Bytes are those that a device holds, or moves through its memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from typing import NamedTuple

from bfpp.schedules.attention import Attention
from bfpp.schedules.precision import Precision
from bfpp.sim.efficiency import Product
from bfpp.sim.model import Transformer


class Tensor(NamedTuple):
    """An activation, and its bytes on a device."""

    name: str
    bytes: float


class Kernel(Enum):
    """What an operator's speed goes by; attention is the fused one."""

    PRODUCT = auto()
    ATTENTION = auto()
    ELEMENTWISE = auto()


class Way(Enum):
    """A collective of a tensor-parallel group."""

    ALL_REDUCE = auto()
    ALL_GATHER = auto()
    REDUCE_SCATTER = auto()


class Collective(NamedTuple):
    """A collective over `bytes` of data in all; `hideable` where compute may go on beside it."""

    way: Way
    bytes: float
    hideable: bool = False


class Work(NamedTuple):
    """What an operator does in one pass.

    `products` are its matrix products, `attention` the operations (flop) of a fused kernel;
    `bytes` go through memory, in so many kernels.
    """

    kind: Kernel = Kernel.ELEMENTWISE
    bytes: float = 0.0
    kernels: int = 0
    products: tuple[Product, ...] = ()
    attention: float = 0.0
    collectives: tuple[Collective, ...] = ()

    @property
    def flops(self) -> float:
        """Operations (flop); those of element-wise kernels are not counted."""
        return self.attention + sum(product.flops for product in self.products)


NO_WORK = Work()


@dataclass(frozen=True)
class Operator:
    """One operator: its work in each pass, and the tensors it reads, writes and keeps.

    `module` is what is recomputed together, by the names of `schedules.recomputation`.
    """

    name: str
    module: str
    forward: Work
    backward_input: Work
    backward_weight: Work = NO_WORK
    reads: tuple[Tensor, ...] = ()
    writes: tuple[Tensor, ...] = ()
    saves: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Execution:
    """How one micro-batch goes through a model on each device of a tensor-parallel group.

    `sequence_parallel` divides norms, residuals and what they keep over the group. `fused`
    kernels take a gated activation or the loss as one; otherwise each operation of them is a
    kernel that keeps its own. `accumulation` is what the gradient of the weights takes of memory
    traffic for each weight, when it is added to those of micro-batches before.
    """

    model: Transformer
    microbatch_size: int = 1
    tp: int = 1
    sequence_parallel: bool = False
    attention: Attention = Attention.FUSED
    precision: Precision = Precision.BF16
    fused: bool = True
    accumulation: float = 8.0

    @cached_property
    def number(self) -> int:
        """Bytes of a number."""
        return self.precision.bytes

    @cached_property
    def statistic(self) -> int:
        """Bytes of a number of a norm's or a softmax's statistics, in full precision at least."""
        return max(self.number, Precision.FP32.bytes)

    @cached_property
    def tokens(self) -> int:
        """Tokens of a micro-batch."""
        return self.model.sequence * self.microbatch_size

    @cached_property
    def own_tokens(self) -> float:
        """Tokens of the norms and residuals of one device."""
        return self.tokens / (self.tp if self.sequence_parallel else 1)

    @cached_property
    def hidden_bytes(self) -> float:
        """Bytes of the hidden state, not divided."""
        return float(self.number * self.tokens * self.model.hidden)

    def own(self, name: str, width: float) -> Tensor:
        """An activation of so many numbers a token, where norms and residuals are."""
        return Tensor(name, self.number * self.own_tokens * width)

    def divided(self, name: str, width: float) -> Tensor:
        """An activation of so many numbers a token, divided over the group by its width."""
        return Tensor(name, self.number * self.tokens * width / self.tp)


class Linear(NamedTuple):
    """A product with weights, and how it is divided over the tensor-parallel group.

    `columns`: each device has a share of the output's width, and all of the input's; else a
    share of the input's width, and its summand of the output.
    """

    name: str
    module: str
    inputs: Tensor
    outputs: Tensor
    width_in: int
    width_out: int
    columns: bool

    def operator(self, execution: Execution) -> Operator:
        """Its operator, with the group's communication.

        With sequence parallelism the input of a product divided by columns is gathered, in the
        backward pass once more instead of being kept, and its gradient is reduce-scattered; the
        sum of one divided by rows is reduce-scattered, and its gradient gathered. Without, the
        outputs are all-reduced (rows), and the gradients of the inputs (columns). Communication
        is hideable where one of the two products of the backward pass does not wait for it.
        """
        ranks, number = execution.tp, execution.number
        shares = (1, ranks) if self.columns else (ranks, 1)
        product = Product(execution.tokens, self.width_out // shares[1], self.width_in // shares[0])
        forward, backward = self._collectives(execution)
        weights = product.columns * product.depth
        moved = number * product.numbers
        operands = number * (product.numbers - weights)
        return Operator(
            self.name,
            self.module,
            Work(Kernel.PRODUCT, moved, 1, (product,), collectives=forward),
            Work(Kernel.PRODUCT, moved, 1, (product.of_input,), collectives=backward),
            Work(
                Kernel.PRODUCT,
                operands + execution.accumulation * weights,
                1,
                (product.of_weight,),
            ),
            reads=(self.inputs,),
            writes=(self.outputs,),
            saves=(self.inputs,),
        )

    def _collectives(
        self, execution: Execution
    ) -> tuple[tuple[Collective, ...], tuple[Collective, ...]]:
        if execution.tp == 1:
            return (), ()
        size = execution.hidden_bytes
        if not execution.sequence_parallel:
            summed = Collective(Way.ALL_REDUCE, size, hideable=self.columns)
            return ((), (summed,)) if self.columns else ((summed,), ())
        if self.columns:
            again = Collective(Way.ALL_GATHER, size, hideable=True)
            summed = Collective(Way.REDUCE_SCATTER, size, hideable=True)
            return (Collective(Way.ALL_GATHER, size),), (again, summed)
        return (Collective(Way.REDUCE_SCATTER, size),), (Collective(Way.ALL_GATHER, size),)


def elementwise(
    name: str,
    module: str,
    moved: tuple[float, float],
    kernels: tuple[int, int],
    reads: Iterable[Tensor],
    writes: Tensor,
    saves: Iterable[Tensor] = (),
) -> Operator:
    """An operator that moves so many bytes forward and backward, in so many kernels."""
    forward, backward = (
        Work(bytes=size, kernels=count) for size, count in zip(moved, kernels, strict=True)
    )
    return Operator(
        name,
        module,
        forward,
        backward,
        reads=tuple(reads),
        writes=(writes,),
        saves=tuple(saves),
    )
