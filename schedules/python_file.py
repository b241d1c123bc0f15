"""Schedules that a Python file defines: `mine.py:SCHEDULE`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from bfpp.schedules.invalid import InvalidConfiguration
from bfpp.schedules.steps import Schedule

MARK = ".py:"
"""What is between the file and the name of the schedule in it."""


def load_schedule(source: str) -> Schedule:
    """The schedule, or one of the class, of that name in the file."""
    stem, _, name = source.rpartition(MARK)
    path = Path(f"{stem}.py")
    if not path.is_file():
        raise InvalidConfiguration("schedule", f"there is no Python file {path}")
    try:
        found = getattr(_module(path), name, None)
        schedule = found() if isinstance(found, type) else found
        if isinstance(schedule, Schedule):
            _ = schedule.name
            return schedule
    except Exception as error:  # whatever a user's file raises
        words = f"{type(error).__name__}: {error}"
        raise InvalidConfiguration("schedule", f"{source} fails with {words}") from error
    raise InvalidConfiguration("schedule", f"{path} has no Schedule of the name {name!r}")


def _module(path: Path) -> object:
    name = f"bfpp_schedule_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
