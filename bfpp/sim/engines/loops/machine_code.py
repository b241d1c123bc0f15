"""Loops as machine code: numba, as every module of loops has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def machine_code(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that compiles a function as it is first called, or loads it from disk.

    Where numba may write to no folder, each process compiles.
    """

    def decorator(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            loop: Callable[..., Any] = njit(cache=True, **options)(function)
        except RuntimeError:
            loop = njit(**options)(function)
        return loop

    return decorator
