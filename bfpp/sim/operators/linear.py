"""GEMMs with weights, the collectives of a tensor-parallel group, and quantised operands."""

from __future__ import annotations

from enum import Enum, auto
from math import ceil
from typing import NamedTuple

from bfpp.sim.operators.efficiency import Product
from bfpp.sim.operators.operators import (
    NO_WORK,
    Collective,
    Execution,
    Kernel,
    Operator,
    Overlapped,
    Tensor,
    Way,
    Work,
)
from bfpp.sim.operators.quantisation import Quantisation


class Division(Enum):
    """Division of a linear layer over the tensor-parallel group.

    By `COLUMNS`, each device has a share of the output's width, and all of the input's; by `ROWS`
    a share of the input's width, and its summand of the output. `WHOLE` weights are on each device,
    for the tokens that are its own.
    """

    COLUMNS = auto()
    ROWS = auto()
    WHOLE = auto()


class Linear(NamedTuple):
    """A GEMM with weights, which eager execution splits into `parts` GEMMs.

    It is `biased` if the layers of its model have biases, that is, with LayerNorm.
    """

    name: str
    module: str
    inputs: Tensor
    outputs: Tensor
    width_in: int
    width_out: int
    division: Division
    quantised: bool = True
    parts: int = 1
    biased: bool = True

    def operators(self, execution: Execution) -> tuple[Operator, ...]:
        """Its operators, with the group's communication.

        With sequence parallelism the input of a GEMM divided by columns is gathered, in the
        backward pass once more instead of being kept, and its gradient is reduce-scattered; the
        sum of one divided by rows is reduce-scattered, and its gradient gathered. Without, the
        outputs are all-reduced (rows), and the gradients of the inputs (columns). What is gathered
        for a GEMM is quantised before.
        """
        ranks = execution.tp
        columns, depth = self.width_out, self.width_in
        rows = execution.tokens
        if self.division is Division.COLUMNS:
            columns //= ranks
        elif self.division is Division.ROWS:
            depth //= ranks
        else:
            rows = ceil(execution.own_tokens)
        quantisation = execution.quantisation if self.quantised else None
        operators = weighted(
            execution,
            self.name,
            self.module,
            Product(rows, columns, depth),
            (self.inputs, self.outputs),
            quantisation,
            collectives=self._collectives(execution, quantisation),
            kernels=self.parts if execution.eager else 1,
        )
        return (*operators, self._sums(execution)) if execution.eager else operators

    def _sums(self, execution: Execution) -> Operator:
        """Sums that eager execution adds: gradients of an input that several GEMMs read.

        It adds gradients of weights to those of earlier micro-batches too (that traffic is counted
        with the GEMM), and gradients of biases once they are summed over the tokens.
        """
        biased = self.biased and execution.model.norm == "layer"
        return Operator(
            f"{self.name} sums",
            self.module,
            NO_WORK,
            Work(bytes=3 * (self.parts - 1) * self.inputs.bytes, kernels=self.parts - 1),
            Work(
                bytes=self.outputs.bytes if biased else 0.0,
                kernels=self.parts * (3 if biased else 1),
            ),
        )

    def _collectives(
        self, execution: Execution, quantisation: Quantisation | None
    ) -> tuple[tuple[Collective, ...], tuple[Collective, ...]]:
        if execution.tp == 1 or self.division is Division.WHOLE:
            return (), ()
        columns = self.division is Division.COLUMNS
        size = execution.whole_bytes(self.width_in if columns else self.width_out)
        if not execution.sequence_parallel:
            if columns:
                return (), (Collective(Way.ALL_REDUCE, size, Overlapped.OTHER),)
            return (Collective(Way.ALL_REDUCE, size),), ()
        share, copies = 1.0, 1
        if quantisation is not None:
            share, copies = quantisation.element / execution.number, quantisation.gathered
        if columns:
            first = Collective(Way.ALL_GATHER, share * size, Overlapped.INPUT)
            again = first._replace(overlapped=Overlapped.OTHER)
            summed = Collective(Way.REDUCE_SCATTER, size, Overlapped.OTHER)
            return (first,), (again, summed)
        gathered = Collective(Way.ALL_GATHER, copies * share * size, Overlapped.INPUT)
        return (Collective(Way.REDUCE_SCATTER, size, Overlapped.OUTPUT),), (gathered,)


def weighted(
    execution: Execution,
    name: str,
    module: str,
    product: Product,
    ends: tuple[Tensor, Tensor],
    quantisation: Quantisation | None,
    *,
    collectives: tuple[tuple[Collective, ...], tuple[Collective, ...]] = ((), ()),
    kernels: int | None = None,
    casts: tuple[bool, bool] = (True, True),
) -> tuple[Operator, ...]:
    """A GEMM with weights, or one of each of a batch of experts, by default a kernel each.

    `ends` are its input, which it keeps, and its output. If they are to be, the input and the
    gradient of the output are quantised before, and the copy is kept; `casts` says which of them
    have a kernel of their own for it.
    """
    rows, columns, depth, batch = product
    kernels = batch if kernels is None else kernels
    inputs, weights, outputs = (
        batch * size for size in (rows * depth, depth * columns, rows * columns)
    )
    number = operand = float(execution.number)
    quantising: list[Operator] = []
    reads, form = ends[0], None
    if quantisation is not None:
        quantising.append(_quantising(execution, name, module, ends, quantisation, kernels, casts))
        (reads,) = quantising[0].writes
        operand, form = quantisation.element, quantisation.format

    def work(moved: float, of: Product, sent: tuple[Collective, ...] = ()) -> Work:
        return Work(Kernel.PRODUCT, moved, kernels, (of,), collectives=sent, format=form)

    forward, backward = collectives
    return (
        *quantising,
        Operator(
            name,
            module,
            work(operand * (inputs + weights) + number * outputs, product, forward),
            work(operand * (outputs + weights) + number * inputs, product.of_input, backward),
            work(
                operand * (inputs + outputs) + execution.accumulation * weights, product.of_weight
            ),
            reads=(reads,),
            writes=ends[1:],
            saves=(reads,),
            has_weights=True,
        ),
    )


def _quantising(
    execution: Execution,
    name: str,
    module: str,
    ends: tuple[Tensor, Tensor],
    quantisation: Quantisation,
    batch: int,
    casts: tuple[bool, bool],
) -> Operator:
    """The input of a GEMM is quantised, and backward the gradient of its output.

    Of a batch of experts, the rows of each by themselves.
    """
    inputs, outputs = (each.bytes / execution.number for each in ends)
    forward, backward = (
        Work(
            bytes=numbers * quantisation.traffic(execution.number),
            kernels=quantisation.kernels * batch,
        )
        if cast
        else NO_WORK
        for numbers, cast in zip((inputs, outputs), casts, strict=True)
    )
    return Operator(
        f"{name} operands",
        module,
        forward,
        backward,
        reads=ends[:1],
        writes=(Tensor(f"{name} operand", quantisation.element * inputs),),
        quantises=True,
    )
