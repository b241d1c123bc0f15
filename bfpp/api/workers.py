"""The workers of a command that searches, which begin with the first work that they are given."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from bfpp.sim.search.workers import LOCAL, Executor, Future, Here, executor

WORTH = 5_000
"""Step times from which on workers pay: to predict them takes longer than workers to begin."""

PASSES = 2_000
"""Passes that take as long, in a graph, as all else for a step time does."""


class Workers:
    """An executor that lasts as long as a command: workers, or this process if little is to do."""

    def __init__(self, where: str = LOCAL, count: int | None = None) -> None:
        self.where, self._count = where, count
        self._expected = 0
        self._begun: Executor | None = None
        self._end = ExitStack()

    def expect(self, step_times: int, passes: int) -> None:
        """Say how much is to be predicted, before it is submitted."""
        self._expected += step_times + passes // PASSES

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future:
        """Begin some work."""
        if self.where == LOCAL and self._expected < WORTH:
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
