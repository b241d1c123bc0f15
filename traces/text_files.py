"""Text files for other tools, compressed where their names end in `.gz`, and read either way."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from bfpp.schedules.invalid import InvalidFile

COMPRESSED = b"\x1f\x8b"
"""How gzip's files begin."""


class NotJson(InvalidFile):
    """A text that holds no JSON; the reason is one line."""


def parsed(text: str | bytes) -> Any:
    """What a JSON text holds, compressed or not; raises `NotJson`."""
    try:
        if isinstance(text, bytes) and text.startswith(COMPRESSED):
            text = gzip.decompress(text)
        return json.loads(text)
    except (OSError, EOFError, zlib.error) as error:
        raise NotJson(f"cannot be decompressed: {error}") from None
    except (ValueError, RecursionError) as error:
        raise NotJson(f"is not JSON: {error}") from None


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
