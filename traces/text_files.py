"""Text files for other tools, compressed where their names end in `.gz`."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


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
