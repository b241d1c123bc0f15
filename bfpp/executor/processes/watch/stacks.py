"""Stacks of a process's threads, from faulthandler's output in its log.

It writes the innermost frame first, so what is cut are outer ones.
"""

from __future__ import annotations

import re
from collections.abc import Collection

MOST_FRAMES = 20
THREAD = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]+).*\(most recent call first\):")


def stacks(log: str, threads: Collection[int]) -> str:
    """Stacks of some threads, by default the main one; nothing if none was written.

    The main thread is the first of a process, and so the last that is written.
    """
    blocks: list[tuple[int, list[str]]] = []
    for line in log.splitlines():
        if header := THREAD.match(line):
            blocks.append((int(header[1], 16), []))
        elif blocks and line.startswith("  "):
            blocks[-1][1].append(line)
    chosen = [frames for thread, frames in blocks if thread in threads] or [
        frames for _, frames in blocks[-1:]
    ]
    return "\n".join(line for frames in chosen for line in _shown(frames))


def _shown(frames: list[str]) -> list[str]:
    more = len(frames) - MOST_FRAMES
    cut = [f"  and {more} more"] if more > 0 else []
    return ["Stack (most recent call first):", *frames[:MOST_FRAMES], *cut]
