"""Paths of the core's sources and its library. `setup.py` runs this file, before any package."""

from __future__ import annotations

import sys
from pathlib import Path

SOURCE = Path(__file__).parent / "source"


class CoreError(ImportError):
    """The library is missing, or was built from other sources; the message is one line."""


def library_name(platform: str = "") -> str:
    """The library's name, here or on a platform that is named as wheels or Python name it."""
    suffixes = {"win": ".dll", "dar": ".dylib", "mac": ".dylib"}
    return f"libbfpp{suffixes.get((platform or sys.platform)[:3], '.so')}"


LIBRARY = SOURCE / library_name()
"""Beside the sources, and not in a package, whose modules Python would take it for."""


def source_hash() -> str:
    """Hash of all sources, which the library carries."""
    from hashlib import sha256  # commands that need no core do not wait for it

    total = sha256()
    for path in sorted(SOURCE.rglob("*.[ch]")):
        total.update(path.name.encode() + path.read_bytes().replace(b"\r\n", b"\n"))
    return total.hexdigest()[:16]
