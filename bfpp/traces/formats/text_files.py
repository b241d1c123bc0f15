"""Text files for other tools, compressed where their names end in `.gz`, and read either way."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from bfpp.schedules.reading import NotJson, decompressed, parsed


def parsed_trace(text: str | bytes) -> Any:
    """The JSON of a trace, compressed or not; raises `NotJson`.

    Chrome's traces may be a bare array of events, which need not be closed: a program that
    writes events as they happen cannot know the last one. It becomes an object with nothing else.
    """
    size, text = len(text), decompressed(text)
    try:
        trace = parsed(text, size)
    except NotJson:
        events = (text if isinstance(text, str) else text.decode(errors="replace")).strip()
        if not events.startswith("["):
            raise
        trace = parsed(f"{events.removesuffix(',')}]", size)
    return {"traceEvents": trace} if isinstance(trace, list) else trace


@contextmanager
def written(path: Path | str) -> Iterator[TextIO]:
    """A new file of ASCII, to write to."""
    path = Path(path)
    if path.suffix != ".gz":
        with path.open("w", encoding="ascii", newline="\n") as plain:
            yield plain
        return
    with (
        path.open("wb") as raw,
        # Without a name and a date, equal contents make equal files.
        gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="ascii", newline="\n") as compressed,
    ):
        yield compressed
