"""Standard output for the time of a command, whatever becomes of it meanwhile."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import Any, TextIO, cast


class StandardOutput:
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
def standard_output() -> Iterator[StandardOutput]:
    """`sys.stdout` as such a stream; all of it is written, or has failed, at the end."""
    sys.stdout, sys.stderr = _there(sys.stdout), _there(sys.stderr)
    stream = sys.stdout
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="replace")
    out = StandardOutput(stream)
    sys.stdout = cast("TextIO", out)
    try:
        yield out
    finally:
        out.flush()
        sys.stdout = stream
        if out.failure:  # what is left in the buffer goes nowhere: Python would try again
            with suppress(OSError), open(os.devnull, "w") as nowhere:  # noqa: PTH123
                os.dup2(nowhere.fileno(), stream.fileno())


def _there(stream: TextIO | None) -> TextIO:
    """The stream, or one that leads nowhere where Python was started with it closed."""
    return open(os.devnull, "w") if stream is None else stream  # noqa: PTH123
