"""Paths of the core's sources and its library. `setup.py` runs this file, before any package."""

from __future__ import annotations

import sys
from hashlib import sha256
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCE = FOLDER / "source"
SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
LIBRARY = FOLDER / f"libbfpp{SUFFIX}"


def source_hash() -> str:
    """Hash of all sources, which the library carries."""
    total = sha256()
    for path in sorted(SOURCE.rglob("*.[ch]")):
        total.update(path.name.encode() + path.read_bytes().replace(b"\r\n", b"\n"))
    return total.hexdigest()[:16]
