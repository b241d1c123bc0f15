"""Ctrl-C, and the garbage collector, which is off while modules are imported."""

import gc

INTERRUPTED = 130
"""The exit code of an interrupted command."""


def collect_garbage() -> None:
    """Turn the collector on again, if it is off; present objects are left alone."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
