"""The BLAS that numpy loads: with one thread, it does not keep a second core busy for 0.05 s.

It reads how many it may have as it is loaded, from the environment; this module loads none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

THREADS = "OPENBLAS_NUM_THREADS"


@contextmanager
def one_thread() -> Iterator[None]:
    """Let a BLAS that is loaded meanwhile, here or in a process that begins, have one thread.

    Unless the environment says how many.
    """
    if THREADS in os.environ:
        yield
        return
    os.environ[THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[THREADS]
