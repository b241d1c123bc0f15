"""Compiles the core, in C, beside its sources; all else stands in pyproject.toml.

Where there is no compiler, the build asks the package index for zig, which is one in a wheel. Flags
and target are fixed, so that all machines compute the same numbers: no fused multiply-adds, no
instructions that only the building machine has.
"""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ZIG = "ziglang==0.15.2"
FLAGS = ["-std=c11", "-O2", "-ffp-contract=off", "-fvisibility=hidden", "-Wall", "-Wextra"]
FLAGS += ["-Wno-vla-parameter"]  # the header gives lengths, which definitions need not repeat

ROOT = Path(__file__).parent
SOURCES = runpy.run_path(str(ROOT / "bfpp" / "core" / "sources.py"))


def compiler():
    """The command of this machine's C compiler, if it has one."""
    if named := os.environ.get("CC"):
        return named.split()
    return next(([path] for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)


class BuildCore(build_ext):
    """The core is a plain library, not a module of Python: one for all versions of it."""

    def get_ext_filename(self, name):
        return str(Path(*name.split(".")).with_suffix(SOURCES["SUFFIX"]))

    def build_extension(self, extension):
        target = Path(self.get_ext_fullpath(extension.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        command = [*(compiler() or [sys.executable, "-m", "ziglang", "cc"]), *FLAGS]
        command += [f'-DSOURCE_HASH="{SOURCES["source_hash"]()}"', "-shared", "-fPIC"]
        subprocess.run([*command, *extension.sources, "-o", str(target), "-lm"], check=True)


class Wheel(bdist_wheel):
    """A wheel of one platform, for every Python 3."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension("bfpp.core.libbfpp", sorted(map(str, Path("bfpp/core/source").glob("*.c"))))
    ],
    cmdclass={"build_ext": BuildCore, "bdist_wheel": Wheel},
    setup_requires=[] if compiler() else [ZIG],
)
