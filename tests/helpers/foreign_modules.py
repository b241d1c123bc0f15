"""Modules of other projects' checkouts, imported without the libraries that they need and lack.

What is missing is a stand-in that takes any call: enough for what parses, not for what computes.
It stays for the process, so that whoever uses it runs in one of its own (`answers`).
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOST = 60
"""Missing modules and names of one import."""

_NAME = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")


class _StandIn:
    """Something that can be called, decorate, be inherited from and have any attribute."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __call__(self, *given: Any, **_: object) -> Any:
        return given[0] if len(given) == 1 and callable(given[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(name)

    def __instancecheck__(self, _: object) -> bool:
        return False

    def __or__(self, _: object) -> Any:
        return self

    __ror__ = __or__


def _stand_in(name: str) -> Any:
    """A class for the name of a class, which others may inherit from beside their own."""
    if not name[0].isupper():
        return _StandIn()
    takes_any = {"__init__": _StandIn.__init__, "__init_subclass__": lambda *_, **__: None}
    return type(name, (), takes_any)


class _Missing(MetaPathFinder, Loader):
    """Finds modules of the packages that are missing."""

    def __init__(self) -> None:
        self.packages: set[str] = set()

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        at = next((each for each in self.packages if f"{name}.".startswith(f"{each}.")), None)
        return ModuleSpec(name, self, is_package=True) if at else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)
        module.__getattr__ = _StandIn().__getattr__  # type: ignore[method-assign]
        module.__version__ = "99.0"  # type: ignore[attr-defined]
        return module

    def exec_module(self, module: ModuleType) -> None: ...


def imported(name: str) -> ModuleType:
    """The module, with stand-ins for what it and its own cannot import."""
    missing = next((each for each in sys.meta_path if isinstance(each, _Missing)), None)
    if missing is None:
        sys.meta_path.append(missing := _Missing())
    for _ in range(MOST):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing.packages.add(str(error.name))
        except ImportError as error:
            if (match := _NAME.match(str(error))) is None:
                raise
            setattr(sys.modules[match[2]], match[1], _stand_in(match[1]))
    raise ImportError(f"{name} lacks too much")


def package_at(name: str, folder: str) -> None:
    """Let a folder's modules be imported as those of a package, whatever its `__init__` does."""
    package = ModuleType(name)
    package.__path__ = [folder]
    sys.modules[name] = package


def answers(module: str, arguments: Sequence[str], questions: Sequence[object]) -> list[Any]:
    """The answers of a helper module to questions, one JSON a line, in a process of its own."""
    command = [sys.executable, "-m", module, *arguments]
    asked = "".join(json.dumps(each) + "\n" for each in questions)
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
