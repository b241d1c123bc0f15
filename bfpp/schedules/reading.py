"""Bounded reading of untrusted files and pipes.

The size of a file is bounded, decompressed too, and so is the memory of a JSON text's values,
which is estimated before it is parsed. `BFPP_LARGEST_FILE`, in bytes, raises both bounds for your
own larger files.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from errno import EFBIG, EINVAL
from pathlib import Path
from stat import S_ISFIFO, S_ISREG
from typing import IO, Any

from bfpp.schedules.errors import InvalidFile, InvalidInput

MOST_BYTES = 2**31
"""Larger than the file of any graph that can be simulated."""

AT_ONCE = 2**20

LARGEST_FILE = "BFPP_LARGEST_FILE"
"""Environment variable that raises the largest size of a file, in bytes."""

COMPRESSED = b"\x1f\x8b"
"""Magic number of gzip files."""

GROWTH = 64
"""Largest ratio of decompressed to compressed size: that of timelines is 26 at most."""

SMALL = 2**26
"""Bytes to which any compressed file may grow."""

IN_MEMORY = 5
"""Largest ratio of a file's values in memory to the bytes that it may grow to."""

CONTAINER, ELEMENT = 90, 32
"""Approximate bytes of an empty list or object in memory, and of one more value in it."""


class NotJson(InvalidFile):
    """A text that holds no JSON; the reason is one line."""


def read_file(path: Path) -> bytes:
    """Contents of a file or a pipe.

    Raises `OSError` for what is neither: a device may never end.
    """
    with path.open("rb") as file:
        kind = os.fstat(file.fileno()).st_mode
        if not (S_ISREG(kind) or S_ISFIFO(kind)):
            raise OSError(EINVAL, "neither a file nor a pipe", str(path))
        return read_stream(file)


def exists(path: Path) -> bool:
    """True if there is a file or a folder of that name; False for a text that can name none."""
    try:
        return path.exists()
    except (OSError, ValueError):  # as sizes of a model, which are longer than names may be
        return False


def read_stream(stream: IO[bytes] | gzip.GzipFile, most: int | None = None) -> bytes:
    """Contents of a stream; raises `OSError` if they are larger than the bound."""
    most = max(MOST_BYTES, _asked_for()) if most is None else most
    parts, size = list[bytes](), 0
    while part := stream.read(AT_ONCE):
        size += len(part)
        if size > most:
            raise OSError(EFBIG, f"holds more than {most:,} bytes: {LARGEST_FILE} raises that")
        parts.append(part)
    return b"".join(parts)


def decompressed(text: str | bytes) -> str | bytes:
    """The text, decompressed if it is a gzip file; raises `NotJson`."""
    if not isinstance(text, bytes) or not text.startswith(COMPRESSED):
        return text
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(text)) as packed:
            return read_stream(packed, _most_from(len(text)))
    except (OSError, EOFError, zlib.error) as error:
        raise NotJson(f"cannot be decompressed: {getattr(error, 'strerror', 0) or error}") from None


def parsed(text: str | bytes, size: int | None = None) -> Any:
    """The value of a JSON text, compressed or not; raises `NotJson`.

    `size` is that of the file, where the text was decompressed before.
    """
    plain = decompressed(text)
    most = IN_MEMORY * _most_from(len(text) if size is None else size)
    if (needed := _memory_of(plain)) > most:
        raise NotJson(
            f"would take about {needed:,} bytes of memory, more than {most:,}: "
            f"{LARGEST_FILE} raises that"
        )
    try:
        return json.loads(plain)
    except RecursionError:
        raise NotJson("is not JSON: nested too deeply") from None
    except ValueError as error:
        raise NotJson(f"is not JSON: {error}") from None


def _most_from(size: int) -> int:
    """Bytes that a file of this size may hold, once it is decompressed."""
    return max(SMALL, GROWTH * size, _asked_for())


def _asked_for() -> int:
    asked = os.environ.get(LARGEST_FILE) or "0"
    if not (asked.isascii() and asked.isdecimal() and len(asked) < len(str(2**63))):
        raise InvalidInput(f"{LARGEST_FILE}: must be a number of bytes, not {asked!r}")
    return int(asked)


def _memory_of(text: str | bytes) -> int:
    """Estimate of the bytes that the values of a JSON text take: seldom too small."""
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    containers = data.count(b"[") + data.count(b"{")
    return len(data) + CONTAINER * containers + ELEMENT * data.count(b",")


def not_of_format(record: object, what: str, wanted: str) -> str:
    """The reason why a JSON object is not `what` of the `wanted` format; "" if it claims to be."""
    claimed = record.get("format") if isinstance(record, dict) else None
    if claimed == wanted:
        return ""
    if isinstance(claimed, str) and claimed.rpartition(" ")[0] == wanted.rpartition(" ")[0]:
        return f"is {what} of another version of bfpp, in {claimed!r}: this one reads {wanted!r}"
    return f'is not {what}: it has no "format": "{wanted}"'


NO_TIMES = "has no start times: give the torch.profiler traces of the same ranks to bfpp explain"
"""What execution traces of PyTorch do not say."""


def is_execution_trace(record: object) -> bool:
    """True for the JSON of PyTorch's `ExecutionTraceObserver`: operators and what they wait for."""
    return isinstance(record, dict) and isinstance(record.get("nodes"), list) and "schema" in record
