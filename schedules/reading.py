"""What users name to be read: files and pipes, none of them without end."""

from __future__ import annotations

import os
from errno import EFBIG, EINVAL
from pathlib import Path
from stat import S_ISFIFO, S_ISREG
from typing import IO

MOST_BYTES = 2**31
"""More than any graph that is small enough to be simulated."""

AT_ONCE = 2**20


def read_file(path: Path) -> bytes:
    """All that a file, or a pipe, holds.

    Raises `OSError` for what is neither: a device may never end.
    """
    with path.open("rb") as file:
        kind = os.fstat(file.fileno()).st_mode
        if not (S_ISREG(kind) or S_ISFIFO(kind)):
            raise OSError(EINVAL, "neither a file nor a pipe", str(path))
        return read_stream(file)


def read_stream(stream: IO[bytes]) -> bytes:
    """All that a stream holds; raises `OSError` if that is more than anything of use."""
    parts, size = list[bytes](), 0
    while part := stream.read(AT_ONCE):
        size += len(part)
        if size > MOST_BYTES:
            raise OSError(EFBIG, os.strerror(EFBIG))
        parts.append(part)
    return b"".join(parts)


def not_of_format(record: object, what: str, wanted: str) -> str:
    """Why an object of JSON is not `what` of the `wanted` format; "" where it says that it is."""
    said = record.get("format") if isinstance(record, dict) else None
    if said == wanted:
        return ""
    if isinstance(said, str) and said.rpartition(" ")[0] == wanted.rpartition(" ")[0]:
        return f"is {what} of another version of bfpp, in {said!r}: this one reads {wanted!r}"
    return f'is not {what}: it has no "format": "{wanted}"'
