"""The workers of a command that searches, which begin with the first work that they are given."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from bfpp.sim.engines.loops.compiling import WORK
from bfpp.sim.search.workers import LOCAL, Executor, Future, Here, executor


class Workers:
    """An executor that lasts as long as a command: workers, or this process if little is to do.

    Local workers begin by loading the compiled loops, so they pay only where those do.
    """

    def __init__(self, where: str = LOCAL, count: int | None = None) -> None:
        self.where, self._count = where, count
        self._begun: Executor | None = None
        self._end = ExitStack()

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future:
        """Begin some work."""
        if self.where == LOCAL and not WORK.pays:
            return Here().submit(function, *arguments)
        if self._begun is None:
            self._begun = self._end.enter_context(executor(self.where, self._count))
        return self._begun.submit(function, *arguments)

    @property
    def nearest(self) -> Executor:
        """Executor of work of less than a second: these, or this process if they are elsewhere."""
        return self if self.where == LOCAL else Here()

    def end(self) -> None:
        """Finish running work, drop the rest, and end the workers; further work starts new ones."""
        self._begun = None
        self._end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.__exit__(kind, failure, trace)
