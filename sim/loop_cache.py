"""Loops that are kept on disk, loaded without the tables of types that only compiling needs.

To fill those tables takes numba 0.1 s. That loading can do without them is its own affair: this
is for versions of numba with which it has been tried (`KNOWN`).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite.binding import add_symbol
from numba.core.caching import FunctionCache
from numba.core.runtime._nrt_python import c_helpers


class LoopCache(FunctionCache):
    """What numba keeps of a loop; it fills its tables when it has to compile."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The loop for these types, if it is kept."""
        _name_runtime()
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)  # type: ignore[no-untyped-call]


@cache
def _name_runtime() -> None:
    """Tell the linker where numba's runtime is, by which loops allocate arrays."""
    for name, address in c_helpers.items():
        add_symbol(name if name.startswith("_") else f"NRT_{name}", address)
