"""Python processes that begin without the working directory among the places of modules.

Python puts it first for `python -c` and `python -m`, which is how multiprocessing, Dask and
submitit start theirs: a file of that directory called `signal.py` would run in each of them.
Whatever is on this process's own path, a user's PYTHONPATH included, stays on theirs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "PYTHONSAFEPATH"


@contextmanager
def safe_path() -> Iterator[None]:
    """Begin Python processes safely while this lasts."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
