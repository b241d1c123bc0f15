"""Copies of checkouts, and virtual environments that bfpp is installed in."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

from benchmarks.helpers.measure import ROOT


def copy_of(checkout: Path, folder: Path) -> Path:
    """Copy what a clone of the checkout would have, with changes that are not committed yet."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=checkout, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(checkout / name, folder / name, follow_symlinks=False)
    return folder


def installed(what: Path, folder: Path) -> Path:
    """Install sources or a wheel, with the pinned packages, in a new environment; its Python."""
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    quiet = ["--quiet", "--disable-pip-version-check"]
    pinned = ["--constraint", ROOT / "constraints.txt"]
    subprocess.run([python, "-m", "pip", "install", *quiet, *pinned, what], check=True)
    return python
