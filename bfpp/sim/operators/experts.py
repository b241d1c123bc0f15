"""The operators of a mixture of experts: router, dispatch, experts, combine, shared experts.

Theory of operation. A token has a row for each of its experts, and seconds and bytes are those of
the device with the most rows. By default none is dropped, and the busiest device has `imbalance`
times the mean rows; with a capacity, each expert's rows are padded to it.

Counted as in today's Megatron-LM:

- Each device routes its own tokens only: with tensor parallelism, experts need sequence
  parallelism. Routed experts are not divided by their width; `ep` devices share them.
- Dispatch copies a row for each of a token's experts, sends it, and sorts received rows by expert;
  combine is the way back. Received rows are kept, and so are the activation's input and output.
  Probabilities are applied inside the activation, so that combine keeps nothing; their gradient
  is a kernel of its own.
- The GEMMs of experts are a kernel for each of them, which reads its own weights. Fused, they
  are one for all, which writes the activation's output too, or the gradient of its input, as the
  next GEMM takes it.
- Quantised rows are padded, expert by expert, before the GEMMs, unless they come so.
- Not fused, clamping the activation's input is a chain of kernels of a single operation each,
  and so is adding the last GEMM's bias, times the probabilities, in full precision.
- A shared expert is an MLP for all tokens, divided over the tensor-parallel group.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import NamedTuple

from bfpp.schedules.operations.row import Group
from bfpp.schedules.settings.recomputation import EXPERT_ACTIVATION, EXPERTS, SHARED
from bfpp.sim.models.matrices import Experts
from bfpp.sim.operators.efficiency import Product
from bfpp.sim.operators.elementwise import activation, elementwise, kept_input
from bfpp.sim.operators.linear import Division, Linear, weighted
from bfpp.sim.operators.operators import Collective, Copies, Execution, Operator, Tensor, Way, Work


class RouterCounts(NamedTuple):
    """Passes of each score through memory, and the kernels of routing, in each direction."""

    passes: int
    kernels: int


ROUTER = RouterCounts(passes=20, kernels=60)
"""Counted in Megatron-LM's router: softmax, top-k, masks, the auxiliary loss, maps of rows."""

FUSED_ROUTER = RouterCounts(passes=6, kernels=8)
"""Counted with Transformer Engine's kernels (--moe-router-fusion): top-k with its scores, those for
the auxiliary loss, that loss, and five for the maps of rows."""


class Chain(NamedTuple):
    """Kernels of a single operation each: passes through memory, and kernels, in each direction.

    Some run once for all experts of a device, others once for each.
    """

    passes: tuple[int, int]
    kernels: tuple[int, int]
    each: tuple[int, int] = (0, 0)


CLAMPING = Chain(passes=(4, 5), kernels=(3, 5))
"""Counted in Megatron-LM, of the experts' expanded rows: two halves are clamped and put together
again; backward each gradient is masked (three times half of them), and they are put together."""

BIAS = Chain(passes=(14, 20), kernels=(2, 3), each=(2, 7))
"""Counted there, of the rows that experts make: for each expert a bias times the probabilities in
full precision and the sum, then all sums put together, and in half precision; backward full
precision again and the gradients of rows and probabilities put together, and for each expert half
precision, a product and a sum each for the gradients of bias and probabilities, and that of the
bias in half precision and added to those before."""

ROUTING_MAPS = 6
"""Numbers that routing keeps for each token and expert: probabilities, masks and maps of rows."""


def expert_operators(
    execution: Execution, experts: Experts, normed: Tensor
) -> tuple[tuple[Operator, ...], Tensor]:
    """Operators between the norm and the residual, and their output."""
    model = execution.model
    rows = expert_rows(execution, experts)

    def of_rows(name: str, width: float) -> Tensor:
        return Tensor(name, execution.number * rows * width)

    def product(
        name: str, reads: Tensor, writes: Tensor, depth: int, columns: int
    ) -> tuple[Operator, ...]:
        each = ceil(rows * execution.ep / experts.routed)
        sizes = Product(each, columns, depth, experts.routed // execution.ep)
        fused = execution.routing.fused_experts
        return weighted(
            execution,
            name,
            EXPERTS,
            sizes,
            (reads, writes),
            execution.quantisation,
            kernels=1 if fused else sizes.batch,
            casts=(not fused or reads is received, not fused or writes is made),
        )

    scores = execution.own("router scores", experts.routed)
    widths = (model.hidden, experts.routed)
    router = Linear("router", EXPERTS, normed, scores, *widths, Division.WHOLE, quantised=False)
    sent, received = of_rows("rows sent", model.hidden), of_rows("rows received", model.hidden)
    wide = model.expanded(experts.width)
    expanded, active = of_rows("experts expanded", wide), of_rows("experts active", experts.width)
    made, back = of_rows("rows made", model.hidden), of_rows("rows back", model.hidden)
    routed, out = execution.own("routed out", model.hidden), execution.own("mlp out", model.hidden)
    cast, kept = kept_input(execution, EXPERTS, expanded)
    exchanges = _exchanges(execution, experts, received)
    alone, beside = (
        (exchanges, NOTHING) if not execution.routing.beside_shared else (NOTHING, exchanges)
    )
    permuted = (out.bytes + sent.bytes,) * 2
    return (
        *router.operators(execution),
        _routing(execution, scores),
        elementwise("permute", EXPERTS, permuted, (2, 2), [normed], sent),
        _sent("dispatch", sent, received, alone.dispatch),
        *_padding(execution, "pad", received),
        *product("experts up", received, expanded, model.hidden, wide),
        *cast,
        *_activation(execution, experts, expanded, active, kept),
        *product("experts down", active, made, experts.width, model.hidden),
        *_bias(execution, experts, made),
        *_padding(execution, "unpad", made),
        _sent("combine", made, back, alone.combine),
        elementwise("unpermute", EXPERTS, permuted, (2, 2), [back], routed),
        *_shared(execution, experts, normed, beside),
        _branches(execution, experts, routed, out),
    ), out


def expert_rows(execution: Execution, experts: Experts) -> float:
    """Rows that the experts of a device take: of the busiest one, or padded to their capacity."""
    routing = execution.routing
    routed = execution.own_tokens * experts.chosen
    if routing.capacity is None:
        return routed * routing.imbalance
    return experts.routed * ceil(routed * routing.capacity / experts.routed)


Exchange = tuple[tuple[Collective, ...], tuple[Collective, ...]]
"""Exchanges of the forward and the backward pass."""


class BothWays(NamedTuple):
    """Exchanges of dispatch and of combine."""

    dispatch: Exchange = ((), ())
    combine: Exchange = ((), ())


NOTHING = BothWays()

GATHERS_COUNTS, WITH_PROBABILITIES = 1, 2
"""Calls of an all-to-all's dispatch, counted in Megatron-LM: unless rows are dropped, how many come
is gathered first; probabilities are sent after the rows, as backward their gradients are."""


def _exchanges(execution: Execution, experts: Experts, rows: Tensor) -> BothWays:
    routing = execution.routing
    sending = _exchange(execution, experts, rows, quantised=routing.quantised)
    back = _exchange(execution, experts, rows, quantised=False)
    if routing.deduplicated:
        return BothWays((sending, back), (back, sending))
    counting = GATHERS_COUNTS if routing.capacity is None else 0
    dispatch = _called(sending, WITH_PROBABILITIES + counting), _called(back, WITH_PROBABILITIES)
    return BothWays(dispatch, (back, sending))


def _called(exchange: tuple[Collective, ...], calls: int) -> tuple[Collective, ...]:
    return tuple(each._replace(calls=calls) for each in exchange)


def _exchange(
    execution: Execution, experts: Experts, rows: Tensor, *, quantised: bool
) -> tuple[Collective, ...]:
    """The all-to-all of dispatch or combine, one way; copies for a node may cross once."""
    if execution.ep == 1:
        return ()
    routing, copies = execution.routing, None
    if routing.deduplicated:
        copies = Copies(experts.chosen, experts.share_of_nodes)
    beside = 1.0 if routing.beside_shared else 0.0
    size = rows.bytes
    if quantised and execution.quantisation is not None:
        size *= execution.quantisation.element / execution.number
    return (
        Collective(
            Way.ALL_TO_ALL,
            size,
            group=Group.EP,
            beside=beside,
            interleaved=routing.interleaved,
            copies=copies,
        ),
    )


def _activation(
    execution: Execution, experts: Experts, expanded: Tensor, active: Tensor, kept: Tensor
) -> tuple[Operator, ...]:
    """The activation between the experts' GEMMs; fused with them, no kernel of its own."""
    if not execution.routing.fused_experts:
        alone = activation(execution, "experts ", EXPERT_ACTIVATION, expanded, active, kept)
        # Compiled, the sum over the width is no part of the kernel that writes both halves.
        moved = (0.0, expanded.bytes + active.bytes)
        weighing = elementwise(
            "experts probabilities", EXPERT_ACTIVATION, moved, (0, 1), [kept], (), [kept]
        )
        clamp = _chained(execution, experts, "clamp", EXPERT_ACTIVATION, CLAMPING, expanded)
        return (clamp, *alone, weighing) if experts.clamped else (*alone, weighing)
    written = 1.0
    if (quantisation := execution.quantisation) is not None:
        written = quantisation.copies * quantisation.element / execution.number
    moved = (written * active.bytes, (1 + written) * expanded.bytes)
    return (
        elementwise(
            "experts activation", EXPERT_ACTIVATION, moved, (0, 0), [expanded], active, [expanded]
        ),
    )


def _bias(execution: Execution, experts: Experts, made: Tensor) -> tuple[Operator, ...]:
    if execution.routing.fused_experts or not experts.biased:
        return ()
    return (_chained(execution, experts, "experts bias", EXPERTS, BIAS, made),)


def _chained(
    execution: Execution, experts: Experts, name: str, module: str, chain: Chain, rows: Tensor
) -> Operator:
    """A chain of kernels that leaves rows as large as they were."""
    own = experts.routed // execution.ep
    forward, backward = chain.passes
    moved = forward * rows.bytes, backward * rows.bytes
    kernels = (chain.kernels[0] + own * chain.each[0], chain.kernels[1] + own * chain.each[1])
    return elementwise(name, module, moved, kernels, [rows], rows)


def _padding(execution: Execution, name: str, rows: Tensor) -> tuple[Operator, ...]:
    """A copy of rows, where quantised GEMMs need as many of each expert as they take at once.

    What sends a token once per device pads as it sorts; a capacity is taken to be such a number.
    """
    routing = execution.routing
    if execution.quantisation is None or routing.deduplicated or routing.capacity is not None:
        return ()
    return (elementwise(name, EXPERTS, (2 * rows.bytes,) * 2, (1, 1), [rows], rows),)


def _routing(execution: Execution, scores: Tensor) -> Operator:
    """Routing of tokens to experts, with probabilities; in full precision."""
    full = execution.statistic * scores.bytes / execution.number
    counts = FUSED_ROUTER if execution.routing.fused else ROUTER
    maps, moved = Tensor("routing maps", ROUTING_MAPS * full), counts.passes * full
    dropping = 0.0
    if execution.routing.capacity is not None:
        dropping = execution.routing.dropping_seconds * scores.bytes / execution.number
    work = Work(bytes=moved, kernels=counts.kernels)
    return Operator(
        "routing",
        EXPERTS,
        work._replace(seconds=dropping),
        work,
        reads=(scores,),
        writes=(maps,),
        saves=(maps,),
    )


def _sent(name: str, reads: Tensor, writes: Tensor, exchange: Exchange) -> Operator:
    """Rows that are sent, and sorted by expert where they come or before they go back."""
    forward, backward = (
        Work(bytes=2 * reads.bytes, kernels=2, collectives=each) for each in exchange
    )
    return Operator(name, EXPERTS, forward, backward, reads=(reads,), writes=(writes,))


def _shared(
    execution: Execution, experts: Experts, normed: Tensor, beside: BothWays
) -> tuple[Operator, ...]:
    """The shared experts: dispatch overlaps their first GEMM, and combine the last."""
    model, divided = execution.model, execution.divided
    if (width := experts.shared) is None:
        return ()
    wide = model.expanded(width)
    expanded, active = divided("shared expanded", wide), divided("shared active", width)
    out = execution.own("shared out", model.hidden)
    up = Linear("shared up", SHARED, normed, expanded, model.hidden, wide, Division.COLUMNS)
    down = Linear("shared down", SHARED, active, out, width, model.hidden, Division.ROWS)
    cast, kept = kept_input(execution, SHARED, expanded)
    return (
        *_with(up.operators(execution), beside.dispatch),
        *cast,
        *activation(execution, "shared ", SHARED, expanded, active, kept),
        *_with(down.operators(execution), beside.combine),
    )


def _with(operators: tuple[Operator, ...], beside: Exchange) -> tuple[Operator, ...]:
    """The operators, of which the last also sends `beside`, in both directions."""
    *before, last = operators
    forward, backward = (
        work._replace(collectives=(*work.collectives, *sent))
        for work, sent in zip((last.forward, last.backward_input), beside, strict=True)
    )
    return *before, replace(last, forward=forward, backward_input=backward)


def _branches(execution: Execution, experts: Experts, routed: Tensor, out: Tensor) -> Operator:
    """The sum of routed and shared experts, and that of their and the router's gradients."""
    model = execution.model
    shared = 0 if experts.shared is None else 1
    reads = [routed, execution.own("shared out", model.hidden)][: 1 + shared]
    size = 3 * out.bytes
    kernels = (shared, 1 + shared)
    return elementwise("branches", EXPERTS, (shared * size, kernels[1] * size), kernels, reads, out)
