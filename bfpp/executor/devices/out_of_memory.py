"""An allocation that failed, in words: torch says it in one way for each device.

Imports no torch, which raises `RuntimeError` for it.
"""

from __future__ import annotations

import re

PREFIXES = " KMGTPE"
AMOUNT = re.compile(
    r"(?:tried|unable) to allocate ([\d.]+) *(?:bytes|([KMGTPE])iB)?", re.IGNORECASE
)
SIGNS = ("DefaultCPUAllocator", "out of memory")


def shortage(error: BaseException) -> str | None:
    """`out of memory: tried to allocate 4.2 GiB`, if the error says so."""
    text = str(error)
    is_torchs = isinstance(error, RuntimeError) and any(sign in text for sign in SIGNS)
    is_torchs |= type(error).__name__ == "OutOfMemoryError"
    if not (isinstance(error, MemoryError) or is_torchs):
        return None
    amount = AMOUNT.search(text)
    if amount is None:
        return "out of memory"
    size = float(amount[1]) * 1024.0 ** PREFIXES.index((amount[2] or " ").upper())
    return f"out of memory: tried to allocate {in_bytes(size)}"


def in_bytes(size: float) -> str:
    """`4.2 GiB`, as torch counts."""
    for prefix in PREFIXES[:-1]:
        if size < 1000:
            return f"{size:.3g} {prefix}iB" if prefix.strip() else f"{size:.3g} B"
        size /= 1024
    return f"{size:.3g} {PREFIXES[-1]}iB"
