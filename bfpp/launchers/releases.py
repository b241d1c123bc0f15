"""Releases of other frameworks to write files for: as asked for, installed, or the newest."""

from __future__ import annotations

import argparse
import re
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

NEWEST = {"torch": (2, 15), "torchtitan": (0, 3), "megatron-core": (0, 20)}
"""The newest releases that files were loaded by, by the names of their packages."""

_NUMBER = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})\b.*")


Number = tuple[int, int]


class Release(NamedTuple):
    """A release of a package, and why it is this one."""

    package: str
    number: Number
    why: str

    @property
    def name(self) -> str:
        """The package and its release: `torch 2.15`."""
        return f"{self.package} {self.number[0]}.{self.number[1]}"

    def __str__(self) -> str:
        return f"{self.name}, {self.why}"


def add_release_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--release`."""
    parser.add_argument(
        "--release",
        type=release_number,
        metavar="X.Y",
        help="write for this release of PyTorch or the framework (default: the one that is "
        "installed, or else the newest that is known)",
    )


def release_number(text: str) -> Number:
    """The major and minor number of a release; an argument's type."""
    if (match := _NUMBER.fullmatch(text)) is None:
        raise argparse.ArgumentTypeError(f"must be a release, such as 2.15, not {text!r}")
    return int(match[1]), int(match[2])


def release_of(package: str, asked: Number | None) -> Release:
    """The release to write for."""
    if asked is not None:
        return Release(package, asked, "as asked for")
    try:
        if found := _NUMBER.fullmatch(version(package)):
            return Release(package, (int(found[1]), int(found[2])), "which is installed")
    except PackageNotFoundError:
        pass
    return Release(package, NEWEST[package], "the newest known: it is not installed here")
