"""The core, built with the C compiler's sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from bfpp.core.sources import SOURCE, source_hash

FLAGS = ["-std=c11", "-O1", "-g", "-ffp-contract=off", "-Wno-vla-parameter"]
MEMORY = "address,undefined"
"""Reads and writes beyond arrays, leaks, and what C leaves undefined."""

THREADS = "thread"
"""State that threads share."""


def compiler() -> str:
    """This machine's; skips where there is none."""
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if found is None:
        pytest.skip("there is no C compiler")
    return found


def build(target: Path, sanitizers: str, *more: str) -> None:
    """Compile the core and more with sanitizers; skips where the compiler has none."""
    flags = [*FLAGS, f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    trial, empty = target.with_suffix(".trial"), target.with_suffix(".trial.c")
    empty.write_text("int main(void) { return 0; }\n")
    command = [compiler(), *flags, str(empty), "-o", str(trial)]
    if subprocess.run(command, capture_output=True).returncode or subprocess.run(trial).returncode:
        pytest.skip(f"{compiler()} has no sanitizers for {sanitizers}")
    flags += [f'-DSOURCE_HASH="{source_hash()}"', "-I", str(SOURCE), *more]
    sources = map(str, sorted(SOURCE.rglob("*.c")))
    subprocess.run([compiler(), *flags, *sources, "-o", str(target), "-lm"], check=True)


def sanitized_core(folder: Path) -> Path:
    """A library of the core that ends a process which makes it touch other memory than its own."""
    library = folder / "libbfpp.so"
    build(library, MEMORY, "-shared", "-fPIC")
    return library


def sanitizing() -> dict[str, str]:
    """Environment variables of a process of Python that loads such a library.

    The sanitizer must come first, and is to refuse what there is no memory for as malloc does;
    Python itself gives back little.
    """
    command = [compiler(), "-print-file-name=libasan.so"]
    first = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    limits = "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=4096"
    return {"LD_PRELOAD": first, "ASAN_OPTIONS": limits, "PYTHONMALLOC": "malloc"}
