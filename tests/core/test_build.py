"""The build of the core: its machines, its flags, and the texts of errors."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import packaging.tags
import pytest
from setuptools.errors import CompileError

from bfpp.core import library, sources
from tests.helpers import ROOT

NEEDS_COMPILER = pytest.mark.skipif(
    sys.platform == "win32" or not any(map(shutil.which, ("cc", "gcc", "clang"))),
    reason="compiles with the system's compiler",
)


@pytest.fixture
def setup(monkeypatch):
    """`setup.py`, as a build on this machine imports it."""
    for variable in ("BFPP_PLATFORM", "CC"):
        monkeypatch.delenv(variable, raising=False)
    specification = spec_from_file_location("setup_of_bfpp", ROOT / "setup.py")
    module = module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def compiled(setup, monkeypatch, folder: Path, program: str) -> ctypes.CDLL:
    """A program of our own, compiled as the core is."""
    (folder / "program.c").write_text(program)
    monkeypatch.setitem(setup.SOURCES, "SOURCE", folder)
    setup.compile_core(folder / sources.library_name())
    return ctypes.CDLL(str(folder / sources.library_name()))


# Flags and targets


@pytest.mark.parametrize(
    ("machine", "flag"),
    [
        ("linux-x86_64", "-march=x86-64"),
        ("linux-aarch64", "-march=armv8-a"),
        ("macosx-14-arm64", ""),
    ],
)
def test_a_compiler_of_the_system_is_told_the_oldest_processor(setup, monkeypatch, machine, flag):
    monkeypatch.setenv("CC", "my-cc --sysroot '/the root'")
    monkeypatch.setattr(setup, "get_platform", lambda: machine)
    words = setup.command()
    assert words[:3] == ["my-cc", "--sysroot", "/the root"]
    assert [word for word in words if word.startswith("-march")] == [flag] * bool(flag)
    assert {*setup.FLAGS, "-fPIC"} <= {*words}
    assert setup.get_requires_for_build_wheel() == []


@pytest.mark.parametrize(
    ("platform", "target"),
    [
        ("manylinux_2_17_x86_64", "x86_64-linux-gnu.2.17"),
        ("musllinux_1_2_aarch64", "aarch64-linux-musl"),
        ("macosx_11_0_arm64", "aarch64-macos.11.0"),
        ("win_amd64", "x86_64-windows-gnu"),
    ],
)
def test_zig_is_told_the_oldest_system_and_processor(setup, monkeypatch, platform, target):
    """It compiles for another platform though there is a compiler."""
    monkeypatch.setattr(setup, "PLATFORM", platform)
    words = setup.command()
    at = words.index("-target")
    assert words[at - 3 : at + 3] == ["-m", "ziglang", "cc", "-target", target, "-mcpu=baseline"]
    assert {*setup.FLAGS} <= {*words}
    assert ("-fPIC" in words) == (platform != "win_amd64")
    assert setup.get_requires_for_build_wheel() == [setup.ZIG]


def test_every_platform_has_a_library_of_its_kind(setup):
    names = {sources.library_name(platform) for platform in setup.TARGETS}
    assert names == {"libbfpp.so", "libbfpp.dylib", "libbfpp.dll"}
    assert sources.library_name() == sources.library_name(sys.platform) == sources.LIBRARY.name


@pytest.mark.parametrize(
    ("taken", "platform"),
    [
        (["manylinux_2_36_x86_64", "manylinux_2_17_x86_64"], "manylinux_2_17_x86_64"),
        (["musllinux_1_2_aarch64", "musllinux_1_1_aarch64"], "musllinux_1_2_aarch64"),
        (["macosx_14_0_arm64", "macosx_11_0_arm64"], "macosx_11_0_arm64"),
    ],
)
def test_without_a_compiler_zig_compiles_for_this_machine(setup, monkeypatch, taken, platform):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(packaging.tags, "platform_tags", lambda: iter([*taken, "any"]))
    assert f" {setup.TARGETS[platform]} -mcpu=baseline" in " ".join(setup.command())
    assert setup.get_requires_for_build_wheel() == [setup.ZIG]


def test_a_platform_that_nothing_compiles_for_is_one_line(setup, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(setup, "get_platform", lambda: "linux-s390x")
    monkeypatch.setattr(packaging.tags, "platform_tags", lambda: iter(["linux_s390x"]))
    with pytest.raises(CompileError, match=r"^no C compiler for linux-s390x; zig compiles for .*$"):
        setup.command()


@pytest.mark.skipif(sys.platform == "win32", reason="a script as a compiler")
def test_a_compiler_without_headers_is_none(setup, monkeypatch, tmp_path):
    """Such as that of macOS which offers to install one."""
    stub = tmp_path / "cc"
    stub.write_text("#!/bin/sh\nexit 1\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert setup.compiler() == []
    stub.write_text("#!/bin/sh\nexit 0\n")
    assert setup.compiler() == [str(stub)]


PROGRAM = """
#if defined(__FAST_MATH__) || defined(__FMA__) || defined(__AVX__)
#error "flags of the machine"
#endif
__attribute__((visibility("default"))) double f(double a, double b, double c) { return a * b + c; }
double hidden(void) { return 0; }
"""


@NEEDS_COMPILER
def test_no_flag_of_the_user_and_no_processor_changes_a_number(setup, monkeypatch, tmp_path):
    """The exact product is 1 - 2^-60: rounded to 1, unless multiplied and added at once."""
    monkeypatch.setenv("CC", f"{setup.compiler()[0]} -march=native -ffast-math -ffp-contract=fast")
    program = compiled(setup, monkeypatch, tmp_path, PROGRAM)
    program.f.restype, program.f.argtypes = ctypes.c_double, [ctypes.c_double] * 3
    assert program.f(1 + 2**-30, 1 - 2**-30, -1.0) == 0.0
    assert not hasattr(program, "hidden")


# Errors


@NEEDS_COMPILER
def test_what_does_not_compile_is_one_line_and_leaves_the_library(
    setup, monkeypatch, tmp_path, capfd
):
    before = tmp_path / sources.library_name()
    before.write_bytes(b"as it was")
    with pytest.raises(CompileError) as error:
        compiled(setup, monkeypatch, tmp_path, "int f(void) { return nothing; }\n")
    reason = f"cannot compile the core: {setup.compiler()[0]} failed, as it says above"
    assert str(error.value) == reason
    assert "nothing" in capfd.readouterr().err
    assert before.read_bytes() == b"as it was"
    assert {path.name for path in tmp_path.iterdir()} == {"program.c", before.name}


def test_a_compiler_that_is_not_there_is_one_line(setup, monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(CompileError, match=r"^cannot compile the core: no-such-compiler: .+$"):
        compiled(setup, monkeypatch, tmp_path, "")


@NEEDS_COMPILER
def test_the_sources_have_no_warnings(setup):
    files = map(str, sorted(sources.SOURCE.glob("*.c")))
    warnings = ["-Werror", "-Wall", "-Wextra", "-Wpedantic"]
    warnings += ["-Wno-vla-parameter"]  # headers alone give the lengths of arrays
    words = [*setup.command(), *warnings, "-fsyntax-only", *files]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# The library and its sources


def test_the_hash_knows_every_source_but_not_how_its_lines_end(monkeypatch, tmp_path):
    shutil.copytree(sources.SOURCE, tmp_path, dirs_exist_ok=True)
    built = sources.source_hash()
    monkeypatch.setattr(sources, "SOURCE", tmp_path)
    assert sources.source_hash() == built
    header, *_ = tmp_path.glob("*.h")
    text = header.read_bytes()
    header.write_bytes(text.replace(b"\n", b"\r\n"))
    assert sources.source_hash() == built
    header.write_bytes(text + b"\n")
    assert sources.source_hash() != built
    header.write_bytes(text)
    header.rename(tmp_path / "renamed.h")
    assert sources.source_hash() != built


@pytest.fixture
def calling(monkeypatch):
    """A command that calls the core, whose library has not been loaded yet."""
    library.function.cache_clear()
    library._library.cache_clear()
    monkeypatch.setattr("bfpp.commands.clusters.run", lambda _: library.function("sweep") and 0)
    yield ("clusters",)
    library.function.cache_clear()
    library._library.cache_clear()


def test_a_library_of_its_sources_is_loaded(bfpp, calling):
    assert bfpp(*calling) == (0, "", "")


def test_a_library_of_other_sources_is_one_line(bfpp, calling, monkeypatch):
    monkeypatch.setattr(library, "source_hash", lambda: "of other sources")
    assert bfpp(*calling) == (2, "", "bfpp: the core is older than its source: run make\n")


def test_a_missing_library_is_one_line(bfpp, calling, monkeypatch, tmp_path):
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "libbfpp.so")
    code, out, err = bfpp(*calling)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("bfpp: the compiled core cannot be loaded (")
    assert err.endswith("): run make\n")
