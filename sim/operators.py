"""Operators of a model on one device: what each computes, moves, keeps and communicates.

All costs follow from lists of them: seconds (`sim.compute`), saved activations by
recomputation policy (`sim.checkpointing`), and operations.

- An operator runs forward, then backward in two parts that may run apart: the gradient of
  its inputs, and that of its weights. What has no weights has no second part.
- Tensors are named: two operators that read the same tensor keep it once.
- Bytes are those that a device holds, or moves through its memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from functools import cached_property
from typing import NamedTuple

from bfpp.schedules.attention import Attention, ContextExchange
from bfpp.schedules.operations import Group
from bfpp.schedules.precision import Format, Precision
from bfpp.sim.efficiency import Attended, Product
from bfpp.sim.model import Transformer
from bfpp.sim.quantisation import Quantisation


class Tensor(NamedTuple):
    """An activation, and its bytes on a device."""

    name: str
    bytes: float


class Kernel(Enum):
    """What an operator's speed depends on; attention is the fused one."""

    PRODUCT = auto()
    ATTENTION = auto()
    ELEMENTWISE = auto()


class Way(StrEnum):
    """What a collective does."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"


class Overlapped(Enum):
    """What a collective of its operator's product may overlap, if the software lets it.

    The product whose `INPUT` it gathers, or whose `OUTPUT` it reduces, chunk by chunk; or the
    `OTHER` of the two products of a backward pass, which does not wait for it.
    """

    NOTHING = auto()
    INPUT = auto()
    OUTPUT = auto()
    OTHER = auto()


class Copies(NamedTuple):
    """How often a row is among those that are sent, and to what share of all nodes at most."""

    number: int
    share_of_nodes: float = 1.0


class Collective(NamedTuple):
    """A collective over `bytes` of data in all; of an all-to-all, of what one device sends.

    The software may let it run at the same time as a product (`overlapped`). One that overlaps the
    kernels of its own operator overlaps a share of them (`beside`); one that is `interleaved`
    overlaps those of another micro-batch. Of `copies` of a row for one device one is sent, and of
    those for one node one crosses the network. Of several `calls` one moves the bytes, and the
    others small messages, such as counts of tokens.
    """

    way: Way
    bytes: float
    overlapped: Overlapped = Overlapped.NOTHING
    group: Group = Group.TP
    beside: float = 0.0
    interleaved: bool = False
    copies: Copies | None = None
    calls: int = 1


class Work(NamedTuple):
    """What an operator does in one pass.

    `products` are its matrix products, `attention` its fused attention kernels; their operands have
    a `format` if they are quantised. `bytes` go through memory, in `kernels` kernels. `seconds` is
    time in addition to all of these.
    """

    kind: Kernel = Kernel.ELEMENTWISE
    bytes: float = 0.0
    kernels: int = 0
    products: tuple[Product, ...] = ()
    attention: tuple[Attended, ...] = ()
    collectives: tuple[Collective, ...] = ()
    seconds: float = 0.0
    format: Format | None = None

    @property
    def flops(self) -> float:
        """Operations (flop); those of element-wise kernels are not counted."""
        of_attention = sum(each.flops for each in self.attention)
        return of_attention + sum(product.flops for product in self.products)


NO_WORK = Work()


@dataclass(frozen=True)
class Operator:
    """One operator: its work in each pass, and the tensors it reads, writes and keeps.

    `module` is what is recomputed together, by the names of `schedules.recomputation`. One that
    `quantises` is also run again with what makes its input, if that is. One that `has_weights`
    needs the gradient of what it writes for theirs.
    """

    name: str
    module: str
    forward: Work
    backward_input: Work
    backward_weight: Work = NO_WORK
    reads: tuple[Tensor, ...] = ()
    writes: tuple[Tensor, ...] = ()
    saves: tuple[Tensor, ...] = ()
    quantises: bool = False
    has_weights: bool = False


@dataclass(frozen=True)
class Routing:
    """How tokens get to experts.

    Each expert takes as many rows as `capacity` says, of a mean load, and is padded to them; by
    default it takes all that come, on the busiest device `imbalance` times the mean load.
    `deduplicated`: a token is sent once for all its experts on a device, and crosses the network
    once for all those on a node. `beside_shared`: rows are sent while the shared experts compute;
    `interleaved`: while another micro-batch does. Dropping rows takes `dropping_seconds` for each
    token and expert. `quantised`: rows are sent to experts, and the gradients of the experts'
    outputs too, in the format that products take. `fused`: scores, top-k and the auxiliary loss
    are a kernel each. `fused_experts`: a product is one kernel for all experts, which also does
    what follows on its output before the next product.
    """

    capacity: float | None = None
    imbalance: float = 1.0
    deduplicated: bool = False
    beside_shared: bool = False
    dropping_seconds: float = 0.0
    quantised: bool = False
    fused: bool = False
    interleaved: bool = False
    fused_experts: bool = False


@dataclass(frozen=True)
class Execution:
    """How one micro-batch goes through a model on each device that has a share of it.

    `tp` devices share the layers, `cp` the sequence, `ep` the routed experts.
    `sequence_parallel` divides norms, residuals and what they keep over the tensor-parallel group.
    `fused` kernels take a gated activation or the loss as one; otherwise each operation of them is
    a kernel that keeps its own. `accumulation` is what the gradient of the weights takes of memory
    traffic for each weight, when it is added to those of micro-batches before. `quantisation` is
    what becomes of the operands of a layer's products with weights, but for the router's; where
    they are quantised too, also of those of attention, in 8 bits, and of the output layer.
    `eager`: every operation is a kernel of PyTorch's own, so that heads are turned step by step,
    products of one input are apart, and gradients of weights are added up after they are made.
    `metric_bytes` is what metrics move for each logit. A `quantised_activation` keeps its input
    in 8 bits.
    """

    model: Transformer
    microbatch_size: int = 1
    tp: int = 1
    sequence_parallel: bool = False
    attention: Attention = Attention.FUSED
    precision: Precision = Precision.BF16
    fused: bool = True
    accumulation: float = 8.0
    cp: int = 1
    ep: int = 1
    exchange: ContextExchange = ContextExchange.RING
    routing: Routing = Routing()
    quantisation: Quantisation | None = None
    quantised_attention: bool = False
    quantised_head: bool = False
    eager: bool = False
    metric_bytes: float = 0.0
    quantised_activation: bool = False

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
        """Tokens of a micro-batch, on one context-parallel device."""
        return self.model.sequence * self.microbatch_size // self.cp

    @cached_property
    def own_tokens(self) -> float:
        """Tokens of the norms and residuals of one device."""
        return self.tokens / (self.tp if self.sequence_parallel else 1)

    @cached_property
    def hidden_bytes(self) -> float:
        """Bytes of the hidden state, not divided over the tensor-parallel group."""
        return self.whole_bytes(self.model.hidden)

    def whole_bytes(self, width: float) -> float:
        """Bytes of `width` numbers a token, not divided over the tensor-parallel group."""
        return float(self.number * self.tokens * width)

    def own(self, name: str, width: float) -> Tensor:
        """An activation of `width` numbers a token, where norms and residuals are."""
        return Tensor(name, self.number * self.own_tokens * width)

    def divided(self, name: str, width: float) -> Tensor:
        """An activation of `width` numbers a token, divided over the group by its width."""
        return Tensor(name, self.number * self.tokens * width / self.tp)
