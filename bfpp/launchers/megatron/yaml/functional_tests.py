"""Functional tests of Megatron-LM: YAML with a table of its flags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bfpp.launchers.arguments import UNKNOWN, Ignored, Words
from bfpp.launchers.sources.documents import leaves

OF_TESTS = "MODEL_ARGS"
"""The table of flags."""

BESIDE_FLAGS = {
    "ENV_VARS": (False, "variables of libraries"),
    "TEST_TYPE": (False, "how it is tested"),
    "METRICS": (False, "how it is tested"),
    "LAUNCHER": (False, "how processes are started"),
    "MODE": (False, "how it is tested"),
    "BEFORE_SCRIPT": (False, "how it is tested"),
    "AFTER_SCRIPT": (False, "how it is tested"),
}
"""Sections beside the flags: whether they matter, and why they are ignored."""


def flags_of_test(path: str, flags: Mapping[str, Any]) -> dict[str, Words]:
    """The flags of a test, of which those that are true have no value."""
    return {
        name: () if words == ("true",) else words
        for name, words in leaves(path, flags).items()
        if words != ("false",)
    }


def beside_flags_of_test(table: Mapping[str, Any]) -> Iterator[Ignored]:
    """Settings of a test that are no flags."""
    for name, (matters, reason) in BESIDE_FLAGS.items():
        for key, value in _entries(table.get(name)):
            yield Ignored(f"{name}.{key}" if key else name, value, matters, reason)
    for name in table:
        if name != OF_TESTS and name not in BESIDE_FLAGS:
            yield Ignored(name, "", True, UNKNOWN)


def _entries(value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        yield from ((str(key), str(each)[:60]) for key, each in value.items())
    elif value is not None:
        yield "", str(value)[:60]
