"""Calls of the compiled core, recorded as they are made: what is given, and what comes of it.

As a plugin of pytest (`-p tests.helpers.core_calls`), records what tests call into the file that
BFPP_CORE_CALLS names.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from bfpp.core.library import MALFORMED, Parameter, _declarations, function
from bfpp.core.sources import SOURCE

LARGEST = 2**20
"""Bytes of all arrays of a call that is kept."""

KEPT = 60
"""Calls of each function that are kept, of all that are made."""


@dataclass(frozen=True)
class Call:
    """A call: its arguments before and after, since arrays are written, and what it returned."""

    name: str
    before: tuple[Any, ...]
    after: tuple[Any, ...]
    result: int


@dataclass
class Calls:
    """Of each function some calls, evenly of all that are made."""

    of: dict[str, list[Call]] = field(default_factory=dict)
    made: dict[str, int] = field(default_factory=dict)
    random: Random = field(default_factory=lambda: Random(0))

    def __iter__(self) -> Iterator[Call]:
        for each in self.of.values():
            yield from each

    def function(self, name: str) -> Any:
        """The function of the core, which records its calls."""
        call = function(name)

        def recorded(*arguments: Any) -> int:
            size = sum(each.nbytes for each in arguments if isinstance(each, np.ndarray))
            if size > LARGEST or not self._is_wanted(name):
                return call(*arguments)
            before = copied(arguments)
            try:
                result = call(*arguments)
            except ValueError as error:
                if "malformed" in str(error):
                    self._keep(Call(name, before, copied(arguments), MALFORMED))
                raise
            self._keep(Call(name, before, copied(arguments), result))
            return result

        return recorded

    def _is_wanted(self, name: str) -> bool:
        self.made[name] = self.made.get(name, 0) + 1
        return self.random.randrange(self.made[name]) < KEPT

    def _keep(self, call: Call) -> None:
        kept = self.of.setdefault(call.name, [])
        if len(kept) == KEPT:
            kept.pop(self.random.randrange(KEPT))
        kept.append(call)


def copied(arguments: Iterable[Any]) -> tuple[Any, ...]:
    """Arguments, whose arrays nobody else changes."""
    return tuple(each.copy() if isinstance(each, np.ndarray) else each for each in arguments)


@contextmanager
def recording() -> Iterator[Calls]:
    """Records all calls that the core's modules make."""
    calls = Calls()
    folder = SOURCE.parent
    with pytest.MonkeyPatch.context() as patch:
        for path in folder.rglob("[a-z]*.py"):
            name = ".".join(path.relative_to(folder).with_suffix("").parts)
            module = import_module(f"bfpp.core.{name}")
            if path.stem != "library" and hasattr(module, "function"):
                patch.setattr(module, "function", calls.function)
        yield calls


def declared() -> dict[str, tuple[str, list[Parameter]]]:
    """Symbol and parameters of each function of the headers, by its name."""
    return _declarations()


def pytest_configure(config: pytest.Config) -> None:
    """Begin to record."""
    record = recording()
    calls = record.__enter__()

    def end() -> None:
        record.__exit__(None, None, None)
        Path(os.environ["BFPP_CORE_CALLS"]).write_bytes(pickle.dumps(calls.of))

    config.add_cleanup(end)
