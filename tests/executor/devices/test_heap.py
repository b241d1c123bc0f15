"""The heap keeps what is freed, so that steps find their memory where the last one left it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes
from resource import RUSAGE_SELF, getrusage
from bfpp.executor.devices.thread_lanes import Crew

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
Crew()
held, faults = [0] * 64, [0] * 3
for step in range(3):
    before = getrusage(RUSAGE_SELF).ru_minflt
    for at in range(64):
        held[at] = libc.malloc(1 << 20)
        libc.memset(held[at], 1, 1 << 20)
    for at in reversed(range(64)):
        libc.free(held[at])
    faults[step] = getrusage(RUSAGE_SELF).ru_minflt - before
print(*faults)
"""
"""What a step does whose forward passes all come first, three times: pages that fault in each."""

PAGES = 64 * 256


def faults(**variables: str) -> list[int]:
    """Pages that fault in three steps of a process with these variables of glibc alone."""
    others = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MALLOC_", "GLIBC_"))
    }
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**others, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(each) for each in ran.stdout.split()]


pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallopt"), reason="only glibc has mallopt"
)


def test_memory_is_faulted_in_once() -> None:
    first, *later = faults()
    assert first > 0.9 * PAGES
    assert max(later) < 0.1 * PAGES


def test_the_user_decides() -> None:
    assert min(faults(MALLOC_TRIM_THRESHOLD_="131072")) > 0.9 * PAGES
    assert min(faults(GLIBC_TUNABLES="glibc.malloc.trim_threshold=131072")) > 0.9 * PAGES
