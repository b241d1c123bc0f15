"""Shapes and sizes to measure: on a GPU in full or quickly, and on a CPU."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product


@dataclass(frozen=True)
class Heads:
    """The shape of an attention kernel."""

    batch: int
    heads: int
    kv_heads: int
    sequence: int
    width: int
    causal: bool = True


@dataclass(frozen=True)
class Design:
    """Shapes of each kind of kernel.

    `squares` are sides of square matrices; `layers` (tokens, inputs, outputs) of a linear layer,
    measured forward and for both gradients; `batched` (batch, rows, columns, depth) of batched
    GEMMs; `numbers` the elements of tensors of element-wise kernels; `copied` and `sent` bytes
    of copies and collectives. `launches` is how often a small block runs to time the host, `steps`
    how many training steps run to time its dispatch, and `sustained` for how many seconds GEMMs
    run to reach the power limit.
    """

    squares: tuple[int, ...]
    layers: tuple[tuple[int, int, int], ...]
    batched: tuple[tuple[int, int, int, int], ...]
    heads: tuple[Heads, ...]
    numbers: tuple[int, ...]
    copied: tuple[int, ...]
    sent: tuple[int, ...]
    launches: int
    steps: int
    sustained: float
    repetitions: int = 5


def _layers(tokens: tuple[int, ...], widths: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
    """For each width a square projection and the first GEMM of an MLP."""
    return tuple(
        (rows, width, many * width) for rows, width, many in product(tokens, widths, (1, 4))
    )


def _heads(hidden: int, tokens: int, sequences: tuple[int, ...]) -> tuple[Heads, ...]:
    """Heads of 64 and 128, with as many KV heads or a quarter, over this many tokens."""
    return tuple(
        Heads(
            max(tokens // sequence, 1), hidden // width, hidden // width // share, sequence, width
        )
        for width, share, sequence in product((64, 128), (1, 4), sequences)
    )


FULL = Design(
    squares=(1024, 2048, 4096, 8192, 16384),
    layers=(
        *_layers((2048, 8192), (1024, 2048, 4096, 8192, 16384)),
        *_layers((64, 256, 512), (4096,)),
    ),
    batched=(
        (8, 1024, 4096, 4096),
        (32, 512, 2048, 2048),
        (64, 1024, 1024, 128),
        (64, 2048, 128, 2048),
    ),
    heads=(
        *_heads(2048, 16384, (512, 1024, 2048, 4096, 8192, 16384)),
        Heads(4, 16, 16, 2048, 128, causal=False),
    ),
    numbers=tuple(2**power for power in range(12, 30, 2)),
    copied=(2**24, 2**26, 2**28),
    sent=tuple(2**power for power in range(12, 31, 2)),
    launches=300,
    steps=20,
    sustained=5.0,
)

QUICK = Design(
    squares=(2048, 8192),
    layers=(*_layers((4096,), (1024, 4096)), *_layers((256,), (4096,))),
    batched=FULL.batched[:2],
    heads=_heads(2048, 8192, (1024, 8192)),
    numbers=(2**12, 2**18, 2**22, 2**26),
    copied=(2**24, 2**27),
    sent=(2**12, 2**18, 2**22, 2**26, 2**28),
    launches=100,
    steps=8,
    sustained=2.0,
)

ON_CPU = Design(
    squares=(64, 128, 256),
    layers=_layers((64,), (64, 128)),
    batched=((4, 32, 64, 64),),
    heads=_heads(512, 64, (32, 64)),
    numbers=(2**10, 2**14, 2**18),
    copied=(),
    sent=(2**10, 2**16, 2**20),
    launches=10,
    steps=2,
    sustained=0.02,
    repetitions=3,
)
"""Small enough to take seconds on a CPU."""
