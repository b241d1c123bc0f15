"""Islands of float32: parts of a model that compute with more precision than the rest.

A norm or a router whose sums would be too coarse in 16 bits. An island's
parameters keep float32; what comes in is widened, what goes out is narrowed to
the precision around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map


def islands_of(module: nn.Module, patterns: Sequence[str]) -> list[nn.Module]:
    """The outermost modules whose name, whole or its last part, or class is one of the patterns."""
    islands: dict[str, nn.Module] = {}
    for name, each in module.named_modules():
        inside = any(not other or name.startswith(f"{other}.") for other in islands)
        names = (name, name.rpartition(".")[2], type(each).__name__)
        if not inside and any(fnmatchcase(own, pattern) for own in names for pattern in patterns):
            islands[name] = each
    return list(islands.values())


def surround(island: nn.Module, dtype: torch.dtype) -> None:
    """Cast the inputs and outputs of a float32 module; around it is this precision."""
    if dtype.itemsize < torch.float32.itemsize:
        island.register_forward_pre_hook(partial(_widen, dtype), with_kwargs=True)
        island.register_forward_hook(partial(_narrow, dtype))


def _widen(dtype: torch.dtype, module: nn.Module, args: Any, kwargs: Any) -> Any:
    del module
    return tree_map(partial(_converted, dtype, torch.float32), (args, kwargs))


def _narrow(dtype: torch.dtype, module: nn.Module, args: Any, result: Any) -> Any:
    del module, args
    return tree_map(partial(_converted, torch.float32, dtype), result)


def _converted(given: torch.dtype, wanted: torch.dtype, value: object) -> object:
    is_given = isinstance(value, Tensor) and value.dtype is given
    return value.to(wanted) if is_given else value  # type: ignore[attr-defined]
