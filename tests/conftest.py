"""Which tests run by default, and how: the same examples every time, however slow the machine."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("BFPP_SLOW") == "1" or "slow" in config.getoption("-m"):
        return
    skip = pytest.mark.skip(reason="slow: set BFPP_SLOW=1 or choose it with -m slow")
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(skip)
