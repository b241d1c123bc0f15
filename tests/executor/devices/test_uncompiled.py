"""Torch's compiler is loaded where somebody compiles, and only there."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from bfpp.executor.devices.uncompiled import COMPILER, uncompiled

PROGRAM = """
import json, sys
from bfpp.command_line import main
main("run 1f1b --pp 2 --layers 2 --steps 2 --clip 1 --backend local --verify".split())
loaded = ["torch._dynamo" in sys.modules]
from bfpp.executor.devices.uncompiled import uncompiled
with uncompiled():
    import torch._dynamo.config
    loaded.append(hasattr(torch._dynamo, "optimize"))
loaded.append(hasattr(sys.modules["torch._dynamo"], "optimize"))
print(json.dumps(loaded))
"""


def test_a_run_does_not_load_it_and_who_compiles_does() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [False, True, True]


def test_who_is_done_first_leaves_the_stand_in_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, COMPILER, raising=False)
    first, second = uncompiled(), uncompiled()
    first.__enter__()
    second.__enter__()
    stand_in = sys.modules[COMPILER]
    first.__exit__(None, None, None)
    assert sys.modules[COMPILER] is stand_in
    second.__exit__(None, None, None)
    assert COMPILER not in sys.modules
