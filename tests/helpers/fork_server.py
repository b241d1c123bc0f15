"""The server that processes are forked off: one for all that a test process starts."""

from __future__ import annotations

from multiprocessing import forkserver


def stop_server() -> None:
    """Stop the one that runs, which may have been begun for something else."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
