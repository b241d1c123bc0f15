"""GEMMs, fused attention, and kernels that only move bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from bfpp.executor.measure.clock import Clock
from bfpp.executor.measure.designs import Design, Heads

Row = dict[str, Any]
"""A measurement: its `kind`, the case, and `seconds`."""

BF16, FP8 = "bf16", "fp8"

HAS_FP8 = (8, 9)
"""The least compute capability with FP8 tensor cores."""


def random(clock: Clock, *shape: int) -> Tensor:
    """Numbers as in training: kernels draw less power for zeros, and run faster."""
    return torch.randn(*shape, device=clock.device, dtype=torch.bfloat16)


# GEMMs


def gemms(clock: Clock, design: Design) -> Iterator[Row]:
    """Square GEMMs, linear layers with both gradients, batched GEMMs, and FP8 GEMMs."""
    for side in design.squares:
        yield _gemm(clock, "square", (side, side, side), torch.mm)
    for tokens, inputs, outputs in design.layers:
        forward = _gemm(
            clock, "forward", (tokens, outputs, inputs), functional.linear, turned=(False, True)
        )
        yield forward
        yield _gemm(clock, "gradient of inputs", (tokens, inputs, outputs), torch.mm)
        yield _gemm(
            clock,
            "gradient of weights",
            (outputs, inputs, tokens),
            lambda gradients, values: torch.mm(gradients.t(), values),
            turned=(True, False),
        )
    for batch, *shape in design.batched:
        yield _gemm(clock, "batched", tuple(shape), torch.bmm, batch=batch)
    if clock.on_gpu and torch.cuda.get_device_capability(clock.device) >= HAS_FP8:
        for side in design.squares:
            yield _in_fp8(clock, (side, side, side))
        for tokens, inputs, outputs in design.layers:
            yield _in_fp8(clock, (tokens, outputs, inputs))


def _gemm(
    clock: Clock,
    name: str,
    shape: tuple[int, ...],
    call: Callable[[Tensor, Tensor], Tensor],
    turned: tuple[bool, bool] = (False, False),
    batch: int = 1,
) -> Row:
    """A (rows, depth) times a (depth, columns) matrix; `turned` ones are stored transposed."""
    rows, columns, depth = shape
    sides = [(rows, depth), (depth, columns)]
    sizes = [side[::-1] if turn else side for side, turn in zip(sides, turned, strict=True)]
    batches = (batch,) if batch > 1 else ()

    def inputs() -> tuple[Tensor, Tensor]:
        one, other = (random(clock, *batches, *size) for size in sizes)
        return one, other

    size = 2 * batch * (rows * depth + depth * columns)
    seconds = clock.seconds(lambda pair: call(*pair), [inputs() for _ in range(clock.copies(size))])
    return _gemm_row(name, shape, batch, BF16, seconds)


def _gemm_row(name: str, shape: tuple[int, ...], batch: int, precision: str, seconds: float) -> Row:
    rows, columns, depth = shape
    return {
        "kind": "product",
        "name": name,
        "precision": precision,
        "batch": batch,
        "rows": rows,
        "columns": columns,
        "depth": depth,
        "seconds": seconds,
    }


def _in_fp8(clock: Clock, shape: tuple[int, int, int]) -> Row:
    """A GEMM of FP8 operands with one scale each."""
    rows, columns, depth = shape
    scale = torch.ones((), device=clock.device)

    def inputs() -> tuple[Tensor, Tensor]:
        one, other = random(clock, rows, depth), random(clock, columns, depth)
        # cuBLAS has FP8 kernels for a second operand in columns alone.
        return one.to(torch.float8_e4m3fn), other.to(torch.float8_e4m3fn).t()

    def call(pair: tuple[Tensor, Tensor]) -> Tensor:
        return torch._scaled_mm(*pair, scale, scale, out_dtype=torch.bfloat16, use_fast_accum=True)

    size = rows * depth + depth * columns
    seconds = clock.seconds(call, [inputs() for _ in range(clock.copies(size))])
    return _gemm_row("forward", shape, 1, FP8, seconds)


# Attention

LIBRARIES = {
    "default": None,
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
"""Libraries of attention kernels: the one that PyTorch chooses, and two by name."""


def attention(clock: Clock, design: Design) -> Iterator[Row]:
    """Forward and backward passes, by each library that has kernels for them."""
    for library, heads in product(LIBRARIES if clock.on_gpu else ["default"], design.heads):
        try:
            yield from _attention(clock, library, heads)
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            raise  # they are RuntimeErrors, too
        except RuntimeError:  # it has none for these
            continue


def _attention(clock: Clock, library: str, heads: Heads) -> Iterator[Row]:
    backend = LIBRARIES[library]
    size = 2 * heads.batch * heads.sequence * heads.width * (heads.heads + 2 * heads.kv_heads)

    def inputs() -> list[Tensor]:
        counts = (heads.heads, heads.kv_heads, heads.kv_heads)
        return [
            random(clock, heads.batch, heads.sequence, count, heads.width)
            .transpose(1, 2)
            .requires_grad_()
            for count in counts
        ]

    def forward(values: list[Tensor]) -> Tensor:
        shares = heads.kv_heads < heads.heads
        queries, keys, others = values
        return functional.scaled_dot_product_attention(
            queries, keys, others, is_causal=heads.causal, enable_gqa=shares
        )

    def backward(made: tuple[Tensor, list[Tensor], Tensor]) -> None:
        out, values, gradient = made
        torch.autograd.grad(out, values, gradient, retain_graph=True)

    with sdpa_kernel(backend) if backend else nullcontext():
        values = [inputs() for _ in range(clock.copies(size))]
        seconds = clock.seconds(forward, values)
        made = [(out := forward(each), each, torch.randn_like(out)) for each in values]
        row = {"kind": "attention", "library": library, **vars(heads)}
        yield {**row, "backward": False, "seconds": seconds}
        yield {**row, "backward": True, "seconds": clock.seconds(backward, made)}


# Bytes

WIDTH = 1024
"""Elements of a row that is normalised."""

STREAMING: dict[str, tuple[float, Callable[[Tensor], object]]] = {
    "copy": (2, torch.clone),
    "sum": (3, lambda value: value[0] + value[1]),
    "gelu": (2, functional.gelu),
    "cast": (3, lambda value: value.float()),
    "norm": (2, lambda value: functional.layer_norm(value, (value.shape[-1],))),
}
"""Kernels by name: the BF16 tensors that they read and write, and the call."""


def streaming(clock: Clock, design: Design) -> Iterator[Row]:
    """Element-wise kernels and norms, by the size of their tensors."""
    for (name, (passes, call)), numbers in product(STREAMING.items(), design.numbers):
        parts = 2 if name == "sum" else 1
        moved = passes * 2 * numbers
        values = [
            random(clock, parts, numbers // WIDTH, WIDTH).squeeze(0)
            for _ in range(clock.copies(int(moved)))
        ]
        yield {
            "kind": "streaming",
            "name": name,
            "bytes": moved,
            "seconds": clock.seconds(call, values),
        }
