"""Standard output and standard error for the time of a command, whatever becomes of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import Any, Literal, TextIO, cast


class Enduring:
    """A stream to which nothing more is written once that has failed.

    So one who stops reading what is printed does not keep files from being written.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.failure: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, unless that has failed before."""
        if self.failure is None:
            try:
                self._stream.write(text)
            except OSError as error:
                self.failure = error
        return len(text)

    def flush(self) -> None:
        """Flush, unless that has failed before."""
        if self.failure is None:
            try:
                self._stream.flush()
            except OSError as error:
                self.failure = error


@contextmanager
def enduring(name: Literal["stdout", "stderr"]) -> Iterator[Enduring]:
    """`sys.stdout` or `sys.stderr` so; all of it is written, or has failed, at the end."""
    stream = _there(getattr(sys, name))
    if isinstance(stream, TextIOWrapper) and stream.errors != "backslashreplace":
        stream.reconfigure(errors="replace")
    endures = Enduring(stream)
    setattr(sys, name, cast("TextIO", endures))
    try:
        yield endures
    finally:
        endures.flush()
        setattr(sys, name, stream)
        if endures.failure:  # what is left in the buffer goes nowhere: Python would try again
            with suppress(OSError), open(os.devnull, "w") as nowhere:  # noqa: PTH123
                os.dup2(nowhere.fileno(), stream.fileno())


def _there(stream: TextIO | None) -> TextIO:
    """The stream, or one that leads nowhere where Python was started with it closed."""
    return open(os.devnull, "w") if stream is None else stream  # noqa: PTH123
