"""The build of the core, in C; all else about the package stands in pyproject.toml.

Flags and target are fixed, so that all machines compute the same numbers, and a wheel runs on each
machine of its platform: no fused multiply-adds, no instructions or libraries that only the building
machine has. Where there is no compiler, the package index has one in a wheel: zig, which compiles
for other platforms, too. `BFPP_PLATFORM=win_amd64 pip wheel .` makes one of `make wheels`.

It is both the program that setuptools runs and, imported, the build backend that pip asks what a
build needs: that of setuptools, and zig.
"""

import os
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from sysconfig import get_platform
from tempfile import TemporaryDirectory

from setuptools import Extension, setup
from setuptools.build_meta import *  # noqa: F403  # the hooks of a backend
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

ZIG = "ziglang==0.15.2"
TARGETS = {
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "musllinux_1_2_aarch64": "aarch64-linux-musl",
    "macosx_10_13_x86_64": "x86_64-macos.10.13",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
    "win_amd64": "x86_64-windows-gnu",
}
"""The platforms of our wheels, and zig's names of them, with the oldest system that they run on."""

FLAGS = ["-std=c11", "-O2", "-ffp-contract=off", "-fno-fast-math", "-fvisibility=hidden"]
BASELINES = {"x86_64": "x86-64", "aarch64": "armv8-a"}
"""The oldest processor that a compiler of the system compiles for, by the machine's name."""

PLATFORM = os.environ.get("BFPP_PLATFORM", "")
"""One of `TARGETS`, to compile for by zig; empty for this machine."""

ROOT = Path(__file__).resolve().parent
SOURCES = runpy.run_path(str(ROOT / "bfpp" / "core" / "sources.py"))


def get_requires_for_build_wheel(config_settings=None):  # noqa: ARG001
    """Packages that a build needs from the index."""
    return [] if compiler() and not PLATFORM else [ZIG]


get_requires_for_build_editable = get_requires_for_build_wheel


def compiler():
    """The command of this machine's C compiler; on Windows, of one that is asked for."""
    if named := os.environ.get("CC"):
        return shlex.split(named)
    names = () if sys.platform == "win32" else ("cc", "gcc", "clang")
    return next(([path] for path in map(shutil.which, names) if path and compiles(path)), [])


def compiles(path):
    """True if a compiler has the headers of C: some have not, and that of macOS may be a stub."""
    program = b"#include <math.h>\n#include <stdlib.h>\n"
    check = [path, "-fsyntax-only", "-x", "c", "-"]
    return subprocess.run(check, input=program, capture_output=True, check=False).returncode == 0


def command():
    """The compiler with its flags: all but sources and output."""
    here = get_platform()
    position = [] if (PLATFORM or here).startswith("win") else ["-fPIC"]
    if (system := compiler()) and not PLATFORM:
        oldest = [f"-march={name}" for end, name in BASELINES.items() if here.endswith(end)]
        return [*system, *oldest, *FLAGS, *position]
    target = TARGETS.get(PLATFORM or own_platform())
    if target is None:
        known = ", ".join(TARGETS)
        raise CompileError(f"no C compiler for {PLATFORM or here}; zig compiles for {known}")
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", target, "-mcpu=baseline"]
    return [*zig, *FLAGS, *position]


def own_platform():
    """The platform of that wheel of ours which this Python would take."""
    from packaging.tags import platform_tags  # in a build, which asks for it

    return next((tag for tag in platform_tags() if tag in TARGETS), None)


def compile_core(library):
    """Compile the library; raises `CompileError`, in one line.

    It is moved into place whole: a process that has the former one loaded keeps it.
    """
    with TemporaryDirectory(prefix="bfpp-") as scratch:
        words = [*command(), f'-DSOURCE_HASH="{SOURCES["source_hash"]()}"', "-shared"]
        words += [*map(str, sorted(SOURCES["SOURCE"].rglob("*.c"))), "-o", library.name, "-lm"]
        name = "zig" if "ziglang" in words else words[0]
        caches = {"ZIG_GLOBAL_CACHE_DIR": scratch, "ZIG_LOCAL_CACHE_DIR": scratch}
        try:
            done = subprocess.run(words, cwd=scratch, env=caches | os.environ, check=False)
        except OSError as error:
            raise CompileError(f"cannot compile the core: {name}: {error.strerror}") from None
        if done.returncode:
            raise CompileError(f"cannot compile the core: {name} failed, as it says above")
        library.parent.mkdir(parents=True, exist_ok=True)
        beside = library.with_name(f".{os.getpid()}-{library.name}")
        shutil.copyfile(Path(scratch, library.name), beside)
        beside.replace(library)


class BuildCore(build_ext):
    """The core is a plain library, not a module of Python: one for all versions of it."""

    def get_ext_filename(self, name):
        """Its path in the package."""
        return str(Path(*name.split(".")).with_name(SOURCES["library_name"](PLATFORM)))

    def build_extension(self, extension):
        """Compile it, whatever the compiler that Python itself was built with."""
        compile_core(Path(self.get_ext_fullpath(extension.name)).absolute())


class Wheel(bdist_wheel):
    """A wheel of one platform, for every Python 3."""

    def get_tag(self):
        """Tags of Python, its binary interface, and the platform."""
        return "py3", "none", PLATFORM or super().get_tag()[2]


if __name__ == "__main__":
    sources = [str(path.relative_to(ROOT)) for path in sorted(SOURCES["SOURCE"].rglob("*.c"))]
    setup(
        ext_modules=[Extension("bfpp.core.source.libbfpp", sources)],
        cmdclass={"build_ext": BuildCore, "bdist_wheel": Wheel},
    )
