"""The BLAS that numpy loads: with one thread, it does not keep a second core busy for 0.05 s.

OpenBLAS reads the number of threads from the environment when it is loaded; this module does not
load it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

THREADS = "OPENBLAS_NUM_THREADS"


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit a BLAS that is loaded meanwhile, here or in a new process, to one thread.

    A number of threads that the environment already sets is kept.
    """
    if THREADS in os.environ:
        yield
        return
    os.environ[THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[THREADS]
