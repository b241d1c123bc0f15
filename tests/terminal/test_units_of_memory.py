"""Memory is in GiB of 2^30 bytes wherever it is said; GB are a network's, or a disk's."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import bfpp
from bfpp.terminal.number_types import GIGABYTES, gigabytes

PACKAGE = Path(bfpp.__file__).parent

OF_TEN = re.compile(r"(?<![A-Za-z])GB\b(?!/s)")
"""A unit of 10^9 bytes, other than of a rate."""

OTHERWISE = {
    "paper": "the paper's own unit, as it prints it",
    "executor/checkpoint/readiness.py": "free space on disk, of 10^9 bytes",
    "terminal/number_types.py": "what users may type",
    "options/running/measuring.py": "the name of a device",
    "sim/cluster/units.py": "the unit of data sheets, which is asked about",
}
"""Folders and files whose texts may have it, and why."""


def texts(path: Path) -> Iterator[str]:
    """The texts of a module, other than its documentation."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in documentation:
            yield str(node.value)


def test_texts_count_memory_in_gib() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix(): each
        for path in PACKAGE.rglob("*.py")
        for each in texts(path)
        if OF_TEN.search(each)
    }
    assert {name: text for name, text in found.items() if not name.startswith((*OTHERWISE,))} == {}
    assert all(any(name.startswith(each) for name in found) for each in OTHERWISE)


def test_schemas_count_memory_in_gib() -> None:
    for path in PACKAGE.joinpath("options/schemas").glob("*.json"):
        assert not OF_TEN.search(path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize("unit", ["", *GIGABYTES])
def test_gb_are_taken_for_gib(unit: str) -> None:
    assert gigabytes(f"60{unit}") == 60


def test_a_unit_that_is_none_is_refused_with_the_one_that_is() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="as in 60GiB"):
        gigabytes("60TB")
