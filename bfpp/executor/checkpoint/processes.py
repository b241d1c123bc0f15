"""The processes that save or load together: all succeed, or all raise the same error.

A process that failed alone would leave the others waiting for it in their next
collective, so every piece of work ends with an exchange of how it went.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

T = TypeVar("T")


class CheckpointError(Exception):
    """Why a checkpoint could not be written or read: one line, with the file or the tensor."""


@dataclass(frozen=True)
class Processes:
    """The processes of a group, or with none this one alone, at work on `path`."""

    group: dist.ProcessGroup | None
    path: Path

    @property
    def rank(self) -> int:
        """The number of this process."""
        return 0 if self.group is None else dist.get_rank(self.group)

    @property
    def size(self) -> int:
        """The number of processes."""
        return 1 if self.group is None else dist.get_world_size(self.group)

    def together(self, work: Callable[[], T]) -> list[T]:
        """Run `work` in every process and gather the results; an error in one is raised in all."""
        outcome: T | CheckpointError
        try:
            with self.one_line_errors():
                outcome = work()
        except CheckpointError as error:
            outcome = error
        results = []
        for each in self._exchange(outcome):
            if isinstance(each, CheckpointError):
                raise each
            results.append(each)
        return results

    def first(self, work: Callable[[], T]) -> T:
        """Run `work` in process 0 alone; its result in every process."""
        return self.together(lambda: work() if self.rank == 0 else None)[0]  # type: ignore[return-value]

    def _exchange(self, value: T) -> list[T]:
        if self.group is None:
            return [value]
        values: list[Any] = [None] * self.size
        with self.one_line_errors():
            dist.all_gather_object(values, value, group=self.group)
        return values

    @contextmanager
    def one_line_errors(self) -> Iterator[None]:
        """Turns whatever torch, or the system, raises into a `CheckpointError`."""
        try:
            with warnings.catch_warnings():
                # Being alone is what the caller asked for.
                warnings.filterwarnings("ignore", "torch.distributed is disabled")
                yield
        except Exception as error:
            raise one_line(error, self.path) from error


def one_line(error: BaseException, path: Path) -> CheckpointError:
    """A system error as an error of `path`."""
    earlier: BaseException | None = error
    while earlier is not None:
        match earlier:
            case CheckpointError():
                return CheckpointError(*earlier.args)
            case OSError(strerror=str(reason)):
                return CheckpointError(f"{earlier.filename or path}: {reason}")
        earlier = earlier.__context__
    reason, *_ = str(error).splitlines() or [""]
    return CheckpointError(f"{path}: {type(error).__name__}: {reason}")
