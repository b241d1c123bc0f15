"""Operators of a model on one device: their flops, traffic, activations and communication.

All costs follow from lists of them: seconds (`sim.compute`), saved activations by
recomputation policy (`sim.checkpointing`), and operations.

- An operator runs forward, then backward in two parts that may run apart: the gradient of
  its inputs, and that of its weights. What has no weights has no second part.
- Tensors are named: two operators that read the same tensor keep it once.
- Bytes are those that a device holds, or moves through its memory.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import Enum, StrEnum, auto
from functools import cached_property
from typing import NamedTuple

from bfpp.schedules.operations.row import Group
from bfpp.schedules.settings.attention import Attention, ContextExchange
from bfpp.schedules.settings.precision import Format, Precision
from bfpp.sim.models.model import Transformer
from bfpp.sim.operators.efficiency import Attended, Product
from bfpp.sim.operators.quantisation import Quantisation


class Tensor(NamedTuple):
    """An activation, and its bytes on a device."""

    name: str
    bytes: float


class Kernel(Enum):
    """Kinds of kernels by the limit of their speed; attention is the fused one."""

    PRODUCT = auto()
    ATTENTION = auto()
    ELEMENTWISE = auto()


class Way(StrEnum):
    """Kinds of collectives."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"


class Overlapped(Enum):
    """Overlap that a collective of its operator's GEMM allows, if the software does it.

    The GEMM whose `INPUT` it gathers, or whose `OUTPUT` it reduces, chunk by chunk; or the
    `OTHER` of the two GEMMs of a backward pass, which does not wait for it.
    """

    NOTHING = auto()
    INPUT = auto()
    OUTPUT = auto()
    OTHER = auto()


class Copies(NamedTuple):
    """Copies of a row that are sent, and the share of all nodes that they go to at most."""

    number: int
    share_of_nodes: float = 1.0


class Collective(NamedTuple):
    """A collective over `bytes` of data in all; of an all-to-all, those that one device sends.

    The software may let it run at the same time as a GEMM (`overlapped`). One that overlaps the
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
    """Work of an operator in one pass.

    `products` are its GEMMs, `attention` its fused attention kernels; their operands have
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
    """Routing and dispatch of tokens to experts.

    Each expert takes as many rows as `capacity` says, of a mean load, and is padded to them; by
    default it takes all that come, on the busiest device `imbalance` times the mean load.
    `deduplicated`: a token is sent once for all its experts on a device, and crosses the network
    once for all those on a node. `beside_shared`: rows are sent while the shared experts compute;
    `interleaved`: while another micro-batch does. Dropping rows takes `dropping_seconds` for each
    token and expert. `quantised`: rows are sent to experts, and the gradients of the experts'
    outputs too, in the format that GEMMs take. `fused`: scores, top-k and the auxiliary loss
    are a kernel each. `fused_experts`: a GEMM is one kernel for all experts, which also does
    what follows on its output before the next GEMM.
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
    """Execution of one micro-batch on each device that has a share of the model.

    `tp` devices share the layers, `cp` the sequence, `ep` the routed experts.
    `sequence_parallel` divides norms, residuals and what they keep over the tensor-parallel group.
    `fused` kernels take a gated activation or the loss as one; otherwise each operation of them is
    a kernel that keeps its own. `accumulation` is what the gradient of the weights takes of memory
    traffic for each weight, when it is added to those of micro-batches before. `quantisation` is
    what becomes of the operands of a layer's GEMMs with weights, except for the router's; where
    they are quantised too, also of those of attention, in 8 bits, and of the output layer.
    `eager`: every operation is a kernel of PyTorch's own, so that heads are turned step by step,
    GEMMs of one input are apart, and gradients of weights are added up after they are made.
    `metric_bytes` is what metrics move for each logit. A `quantised_activation` keeps its input
    in 8 bits.
    """

    model: Transformer
    microbatch_size: int = 1
    _: KW_ONLY
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
