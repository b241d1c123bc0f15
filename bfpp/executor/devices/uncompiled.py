"""Torch without its compiler, where nothing is compiled.

Torch's optimizers, and its operators on the meta device, load its compiler only to say that they
are not to be compiled. That takes each process as long as loading torch itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from threading import Lock
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"


class _StandIn(ModuleType):
    """A stand-in for torch's compiler while nothing is compiled; loads the real one on demand."""

    @staticmethod
    def disable(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        return function

    @staticmethod
    def graph_break() -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(COMPILER) is self:
            del sys.modules[COMPILER]
        return getattr(import_module(COMPILER), name)


_turn = Lock()
_uses: set[object] = set()


@contextmanager
def uncompiled() -> Iterator[None]:
    """Torch's compiler is not loaded here, unless somebody compiles.

    Lanes update at the same time: the stand-in stays until the last of them is done.
    """
    use = object()
    with _turn:
        _uses.add(use)
        sys.modules.setdefault(COMPILER, _StandIn(COMPILER))
    try:
        yield
    finally:
        with _turn:
            _uses.remove(use)
            if not _uses and isinstance(sys.modules.get(COMPILER), _StandIn):
                del sys.modules[COMPILER]
