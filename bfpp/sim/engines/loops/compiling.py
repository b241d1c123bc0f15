"""Modules of loops over arrays, compiled once that pays.

A module of loops runs as it stands, and as machine code once numba has compiled it. The
compiler is loaded when a process has spent about as long in the loops as that takes: one small
graph never waits for it, and many small ones soon run compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.machinery import SourceFileLoader
from types import FunctionType, ModuleType
from typing import Any, Literal

COMPILE_FROM = 300_000
"""Tasks of an uncompiled sweep that take as long as loading numba: about 0.3 s."""


class CompileBudget:
    """How much a process has asked of its loops, in tasks of an uncompiled sweep."""

    def __init__(self) -> None:
        self._asked = 0

    @property
    def pays(self) -> bool:
        """Whether enough has been asked of the loops to compile them."""
        return self.pays_for(0)

    def pays_for(self, tasks: int) -> bool:
        """Whether it will be, with this many more tasks of a sweep."""
        return self._asked + tasks >= COMPILE_FROM

    def expect(self, tasks: int) -> None:
        """Record that the loops will be asked for this many more tasks."""
        self._asked += tasks

    def loop(self, module: ModuleType, name: str, tasks: int) -> Callable[..., Any]:
        """A loop of a module, compiled if that pays for this many more `tasks` of a sweep."""
        self._asked += tasks
        loops = compiled(module) if self.pays else module
        loop: Callable[..., Any] = getattr(loops, name)
        return loop


WORK = CompileBudget()
"""That of this process."""


@cache
def compiled(loops: ModuleType) -> ModuleType:
    """A second copy of a module, with its functions compiled (and kept on disk)."""
    from bfpp.sim.engines.loops.machine_code import machine_code

    loader = SourceFileLoader(loops.__name__, str(loops.__file__))
    module = ModuleType(loops.__name__)
    module.__file__ = loops.__file__
    loader.exec_module(module)
    for name, function in list(vars(module).items()):
        if isinstance(function, FunctionType) and function.__module__ == module.__name__:
            # Helpers become part of the loops: a call would count each array that it is given.
            inline: Literal["always", "never"] = "always" if name.startswith("_") else "never"
            setattr(module, name, machine_code(inline=inline)(function))
    return module
