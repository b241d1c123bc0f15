"""Loops as machine code: numba, as every module of loops has it.

What numba has compiled is kept on disk: it compiles once on a machine, for up to half a minute, and
the process that compiles says so on the terminal. Python's garbage collector is off meanwhile:
scanning the compiler's objects again and again would take a tenth of the time.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from threading import Timer
from time import monotonic
from typing import Any

from numba import njit, version_info
from numba.core import config, event

PATIENCE = 2.0
"""Seconds of compiling before a line says so."""

LINE = "bfpp: compiling loops, once on this machine (up to half a minute)"

KNOWN = (0, 61), (0, 68)
"""The first and the last version of numba that `LoopCache` has been tried with."""

CLEAR = "\r\x1b[K"
"""Clears the terminal's line, where another process may have drawn a progress bar."""


def machine_code(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that compiles a function as it is first called, or loads it from disk.

    Where numba may write to no folder, each process compiles.
    """

    def decorator(function: Callable[..., Any]) -> Callable[..., Any]:
        loop: Any
        try:
            if KNOWN[0] <= version_info.short <= KNOWN[1]:
                from bfpp.sim.engines.loops.loop_cache import LoopCache

                loop = njit(**options)(function)
                loop._cache = LoopCache(function)  # type: ignore[no-untyped-call]
            else:
                loop = njit(cache=True, **options)(function)
        except RuntimeError:
            loop = njit(**options)(function)
        found: Callable[..., Any] = loop
        return found

    return decorator


class CompileListener(event.Listener):
    """Says once that this process compiles, if that takes long, and keeps the collector off."""

    def __init__(self) -> None:
        self._patience = PATIENCE
        self._depth = 0  # a function is compiled while one that calls it is
        self._begun = 0.0
        self._collects = True
        self._timer: Timer

    def on_start(self, event: object) -> None:
        """Begin to compile a function."""
        del event
        self._depth += 1
        if self._depth > 1:
            return
        self._begun, self._collects = monotonic(), gc.isenabled()
        gc.disable()
        self._timer = Timer(self._patience, say)
        if self._patience > 0:
            self._timer.start()

    def on_end(self, event: object) -> None:
        """End it."""
        del event
        self._depth -= 1
        if self._depth:
            return
        self._timer.cancel()
        if self._patience > 0:
            self._timer.join()  # a server of workers is about to fork
        self._patience -= monotonic() - self._begun
        if self._collects:
            gc.enable()


def say() -> None:
    """Print the line, if stderr is a terminal."""
    if sys.stderr.isatty():
        print(f"{CLEAR}{LINE}", file=sys.stderr, flush=True)  # noqa: T201


def _forget_working_directory() -> None:
    """Settings are those of the environment: numba would also read a file of the directory.

    That could name a folder of machine code to run.
    """
    config._config_fname = ""
    config.reload_config()  # type: ignore[no-untyped-call]


_forget_working_directory()
event.register("numba:compile", CompileListener())  # type: ignore[no-untyped-call]
