"""Layers compiled by torch: one by one, each kind once for all stages.

Torch keeps what it has compiled by the code of a layer's forward pass, and takes weights as
arguments. So layers of the same shapes share it, whichever stage they are in and whichever buffer
their weights are read from. The first pass of each kind waits for the compiler.

Random numbers are those of uncompiled layers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import nn

from bfpp.executor.devices.uncompiled import COMPILER
from bfpp.schedules import InvalidConfiguration, Operation, TaskGraph

FIELD = "compile"

OPTIONS: Mapping[str, Any] = {"backend": "inductor", "options": {"fallback_random": True}}
"""Options of `torch.compile`."""


def load_compiler() -> None:
    """Load torch's compiler before its stand-in (`.uncompiled`) is asked for it.

    Torch remembers the answer. It also silences a warning, but not from several threads at a time.
    """
    import_module(COMPILER)
    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")


def compile_layers(layers: Iterable[nn.Module], varies: bool) -> None:
    """Compile layers, in place, as they are called; `varies`: for sequences of any length."""
    for layer in layers:
        layer.compile(dynamic=varies, **OPTIONS)


def compiled_loss(loss: Callable[..., Any], varies: bool) -> Callable[..., Any]:
    """A loss that is compiled as it is called."""
    compiled: Callable[..., Any] = torch.compile(loss, dynamic=varies, **OPTIONS)
    return compiled


def require_compilable(graph: TaskGraph, *, waits: bool) -> None:
    """Raise `InvalidConfiguration` for passes that cannot be compiled.

    If one `waits` for another in its process, both are under way at a time.
    """
    if (graph.operation == Operation.BACKWARD_INPUT).any():
        raise InvalidConfiguration(
            FIELD,
            "compiled layers compute both gradients at once, but the schedule splits backward "
            "passes",
        )
    if waits:
        raise InvalidConfiguration(
            FIELD,
            "tensor-parallel ranks of one process wait for each other, but layers are compiled in "
            "one thread: use --backend cpu or cuda",
        )


def require_compiler(for_gpu: bool) -> None:
    """Raise `InvalidConfiguration` where this machine cannot compile."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler
    from torch.utils._triton import has_triton

    if for_gpu and not has_triton():
        raise InvalidConfiguration(FIELD, "needs Triton for this GPU, which is not installed")
    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise InvalidConfiguration(FIELD, "needs a C++ compiler: g++, or CXX names one") from error
