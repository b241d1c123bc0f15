"""Folders with Python files of users."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.user_schedules import MANY


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test runs in a new folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def many(own_folder: Path) -> None:
    """The file many.py, in a new folder."""
    (own_folder / "many.py").write_text(MANY)
