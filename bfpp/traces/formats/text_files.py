"""Text files for other tools, compressed where their names end in `.gz`, and read either way."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from bfpp.schedules.reading import COMPRESSED, NotJson, decompressed, parsed

BEGINNING = 2**16
"""Bytes by which a trace is recognised."""

KEYS = (
    b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"',
    b'"baseTimeNanoseconds"', b'"displayTimeUnit"',
)  # fmt: skip
"""Keys of traces, one of which is near the beginning."""

GZIP = 16 + zlib.MAX_WBITS
"""The window bits of a gzip file, for zlib."""


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


def begins_with_events(path: Path) -> bool:
    """True for a file that begins as a Chrome trace does, of any profiler, compressed or not."""
    with path.open("rb") as raw:
        beginning = raw.read(BEGINNING)
    if beginning.startswith(COMPRESSED):
        # As far as it goes: what is damaged is refused by who reads it all.
        with suppress(zlib.error):
            beginning = zlib.decompressobj(GZIP).decompress(beginning, BEGINNING)
    beginning = beginning.lstrip()
    return beginning.startswith(b"[") or any(key in beginning for key in KEYS)


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
