"""Flags as text."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

Flags = Mapping[str, object]
"""Flags by name. `True` is a flag alone, a tuple one of several values; None and False are none."""


def flag_lines(flags: Flags) -> Iterator[str]:
    """The flags that are given, each with its values."""
    for name, value in flags.items():
        if value is not None and value is not False:
            yield shlex.join((name, *_words(value)))


def _words(value: object) -> tuple[str, ...]:
    if value is True:
        return ()
    return tuple(map(str, value)) if isinstance(value, tuple) else (str(value),)
