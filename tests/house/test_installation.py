"""Installation: wheels from every kind of source tree, with and without a compiler."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from benchmarks.helpers.installations import copy_of
from bfpp.core.sources import LIBRARY
from tests.helpers import ROOT

pytestmark = pytest.mark.slow


def wheel_of(source: Path, folder: Path, *options: str, python=sys.executable, **settings) -> Path:
    """The wheel that pip builds."""
    words = [python, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*words, *options, "--wheel-dir", folder, source], check=True, **settings)
    (wheel,) = folder.glob("*.whl")
    return wheel


def require_whole(wheel: Path, folder: Path) -> None:
    """It is for every Python of one platform, has every file and the core, and runs."""
    assert re.fullmatch(r"bfpp-[\d.]+-py3-none-(?!any)\w+\.whl", wheel.name)
    listed = subprocess.run(
        ["git", "ls-files", "bfpp"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    with ZipFile(wheel) as archive:
        inside = set(archive.namelist())
        archive.extractall(folder / "unpacked")
    assert {*listed.stdout.split(), f"bfpp/core/source/{LIBRARY.name}"} <= inside
    done = subprocess.run(
        [sys.executable, "-m", "bfpp", "simulate", "1f1b", "--pp", "2", "--json"],
        cwd=folder / "unpacked", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["bubble"] == 0.125
    call = "from bfpp.core.library import function; function('sweep')"
    subprocess.run([sys.executable, "-c", call], cwd=folder / "unpacked", check=True)


def test_a_clone_without_symbolic_links_builds_a_whole_wheel(tmp_path):
    """The links at the top level are files there, as git leaves them on Windows."""
    clone = ["git", "-c", "core.symlinks=false", "clone", "--quiet", "--depth=1", f"file://{ROOT}"]
    subprocess.run([*clone, tmp_path / "clone"], check=True)
    assert (tmp_path / "clone" / "sim").read_text() == "bfpp/sim"
    require_whole(wheel_of(tmp_path / "clone", tmp_path / "wheel"), tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="links to programs")
def test_without_a_compiler_the_package_index_has_one(tmp_path):
    """The PATH has Python alone, and the home is empty: zig compiles, for old systems."""
    source = copy_of(ROOT, tmp_path / "source")
    cache = subprocess.run(
        [sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True, check=True
    )
    for name in ("bin", "home"):
        (tmp_path / name).mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    environment = {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path / "home")}
    environment |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    environment["PIP_CACHE_DIR"] = cache.stdout.strip()
    wheel = wheel_of(source, tmp_path / "wheel", env=environment)
    require_whole(wheel, tmp_path)
    assert [*(tmp_path / "home").iterdir()] == []
    library = (tmp_path / "unpacked" / "bfpp" / "core" / "source" / LIBRARY.name).read_bytes()
    if sys.platform == "linux":
        versions = re.findall(rb"GLIBC_2\.(\d+)", library)
        assert all(int(version) <= 17 for version in versions)


def test_the_source_distribution_builds_the_same_wheel(tmp_path):
    """Also the links at the top level are left out of it."""
    source = copy_of(ROOT, tmp_path / "source")
    pack = f"import setup; setup.build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", pack], cwd=source, capture_output=True, check=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    wheel = wheel_of(archive, tmp_path / "wheel", "--no-build-isolation")
    require_whole(wheel, tmp_path)
    direct = wheel_of(source, tmp_path / "direct", "--no-build-isolation")
    with ZipFile(wheel) as one, ZipFile(direct) as other:
        assert set(one.namelist()) == set(other.namelist())


def test_an_editable_installation_has_the_library_beside_its_sources(tmp_path):
    source = copy_of(ROOT, tmp_path / "source")
    build = f"import setup; setup.build_editable({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as archive:
        assert not any(name.endswith(LIBRARY.suffix) for name in archive.namelist())
    call = "from bfpp.core.library import function; function('sweep')"
    subprocess.run([sys.executable, "-c", call], cwd=source, check=True)
    assert (source / "bfpp" / "core" / "source" / LIBRARY.name).stat().st_size > 0
