"""Loops that are kept on disk, loaded without what only compiling needs.

That is numba's tables of types, which take 0.1 s to fill, and the intermediate code of each loop,
with which another that calls it is compiled. That loading can do without them is numba's own
affair: this is for versions with which it has been tried (`KNOWN` of `machine_code`).

What is on disk only saves time: a loop that cannot be read, or is not the one that was asked for,
is compiled again, and one that cannot be written is compiled by each process.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pickle import UnpicklingError
from typing import Any

from llvmlite.binding import add_symbol, parse_assembly, parse_bitcode
from numba.core.caching import FunctionCache
from numba.core.runtime._nrt_python import c_helpers

SIGNATURE = 3
"""Its place in what is kept. Two processes that compile at once may write one file for two."""

DAMAGED = EOFError, UnpicklingError
"""What reading raises of a file that was cut short."""


class LoopCache(FunctionCache):
    """What numba keeps of a loop; machine code alone is loaded until one has to be compiled."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The loop for these types, if it is kept."""
        _name_runtime()
        codegen = target_context.codegen()
        kept = self._kept(sig, codegen)
        if kept is None:
            INTERMEDIATE.parse()
            return None
        if INTERMEDIATE.is_needed:
            return self._impl.rebuild(target_context, kept)
        (name, kind, (code, intermediate)), function, *others = kept
        bare = (name, kind, (code, _no_code())), function, *others
        symbols = {function.llvm_func_name, function.llvm_cpython_wrapper_name}
        codegen._engine._defined_symbols |= symbols
        loop = self._impl.rebuild(target_context, bare)
        INTERMEDIATE.left_out.append((loop.library, intermediate))
        return loop

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a loop for these types, if the disk has room."""
        with suppress(OSError, *DAMAGED):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]

    def _kept(self, sig: Any, codegen: Any) -> Any:
        """What the files have for these types; files that are damaged are begun anew."""
        with suppress(OSError):
            try:
                key = self._index_key(sig, codegen)
                kept = self._cache_file.load(key)  # type: ignore[no-untyped-call]
                if kept is None or kept[SIGNATURE].args == sig:
                    return kept
            except DAMAGED:
                pass
            self.flush()  # type: ignore[no-untyped-call]
        return None

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        """What a loop is found by: with its module's constants, which may be other modules'."""
        own = super()._index_key(sig, codegen)  # type: ignore[no-untyped-call]
        constants = (
            (name, value) for name, value in self._py_func.__globals__.items() if type(value) is int
        )
        return (*own, *sorted(constants))


class Intermediate:
    """The intermediate code of loops: what is left out is parsed once a loop has to be compiled."""

    def __init__(self) -> None:
        self.is_needed = False
        self.left_out: list[tuple[Any, bytes]] = []

    def parse(self) -> None:
        """Give the loops that are loaded theirs."""
        self.is_needed = True
        for library, code in self.left_out:
            library._shared_module = parse_bitcode(code)
            library.codegen._engine._load_defined_symbols(library._shared_module)
        self.left_out.clear()


INTERMEDIATE = Intermediate()
"""That of this process."""


@cache
def _name_runtime() -> None:
    """Tell the linker where numba's runtime is, by which loops allocate arrays."""
    for name, address in c_helpers.items():
        add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


@cache
def _no_code() -> bytes:
    code: bytes = parse_assembly("").as_bitcode()
    return code
