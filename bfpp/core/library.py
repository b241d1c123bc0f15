"""Load the compiled core, and check the arguments of its functions.

The headers in `source/` are read as they stand: a parameter's type says which arrays a function
takes, and the brackets behind it how long they are. So a call with an array of another type or
length, or one that is not contiguous, raises `TypeError` or `ValueError` before any C runs.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Protocol

import numpy as np

from bfpp.core.sources import LIBRARY, SOURCE, CoreError, source_hash

OUT_OF_MEMORY, MALFORMED = -1, -2
"""Error codes that functions return instead of a count."""

SHARED = re.compile(r"#define (\w+_PARAMETERS)((?: .*\\\n)+.*)")
DECLARATION = re.compile(r"CORE int64_t (bfpp_(\w+))\(([^;]*)\);")
PARAMETER = re.compile(r"(const )?(\w+) (OPTIONAL )?(\w+)(?:\[([^]]*)\])?$")

NUMBERS: dict[str, Any] = {
    "int64_t": ctypes.c_int64,
    "double": ctypes.c_double,
    "bool": ctypes.c_bool,
}
ELEMENTS = {
    "double": np.float64,
    "int64_t": np.int64,
    "int32_t": np.int32,
    "uint32_t": np.uint32,
    "int8_t": np.int8,
    "bool": np.bool_,
}

_ADDRESS: Any = ctypes.c_char * 0
"""The fastest way to pass an array's address; it takes no None."""


MOST = 2**31
"""The largest count: products of two fit 64 bits."""


class Function(Protocol):
    """A function of the core: takes numbers and arrays, returns a count or a flag."""

    def __call__(self, *arguments: int | float | np.ndarray[Any, Any] | None) -> int:
        """Raises `TypeError` and `ValueError` for other types, lengths, or malformed contents."""


@cache
def function(name: str) -> Function:
    """The function of that name: `sweep` is `bfpp_sweep` of a header."""
    symbol, parameters = _declarations()[name]
    call = _typed(
        symbol, [ctypes.c_void_p if each[-1] else NUMBERS[each[1]] for each in parameters]
    )
    quick = _quick(symbol, parameters)

    def checked(*arguments: Any) -> int:
        try:
            count: int = quick(*arguments)
        except (AttributeError, TypeError, ValueError):
            count = call(*_converted(name, parameters, arguments))
        if count == OUT_OF_MEMORY:
            raise MemoryError("core")
        if count == MALFORMED:
            raise ValueError(f"core: malformed arrays for {symbol}")
        return count

    return checked


def _typed(symbol: str, types: list[Any]) -> Any:
    """A function of the library that takes these types."""
    call = _library()[symbol]
    call.restype, call.argtypes = ctypes.c_int64, types
    return call


def _quick(symbol: str, parameters: list[Parameter]) -> Callable[..., int]:
    """The call with all checks in one expression, as a search makes it a million times.

    Raises anything for arguments that are not right: `_converted` says what is wrong.
    """
    checks, given, types = [], [], []
    for _, kind, optional, name, length in parameters:
        address = ctypes.c_void_p if optional else _ADDRESS
        types.append(NUMBERS[kind] if length is None else address)
        check, value = f"0 <= {name} <= {MOST}", name
        if length is not None:
            check, value = f"{name}.size == {length} and {name}.dtype is {kind}", f"address({name})"
        elif kind != "int64_t":
            check = "True"
        checks.append(f"({name} is None or {check})" if optional else f"{check}")
        given.append(f"None if {name} is None else {value}" if optional else value)
    names = ", ".join(each[3] for each in parameters)
    known = {kind: np.dtype(element) for kind, element in ELEMENTS.items()}
    quick: Callable[..., int] = eval(  # noqa: S307 - of the headers beside this file
        f"lambda {names}: call({', '.join(given)}) if {' and '.join(checks)} else None.wrong",
        {"call": _typed(symbol, types), "address": _ADDRESS.from_buffer, **known},
    )
    return quick


def _converted(name: str, parameters: list[Parameter], arguments: tuple[Any, ...]) -> Iterator[Any]:
    """Arguments as C takes them; raises `TypeError` or `ValueError` for the one that is wrong."""
    values = dict(zip([each[3] for each in parameters], arguments, strict=True))
    for (constant, kind, optional, own, length), value in zip(parameters, arguments, strict=True):
        if length is None:
            if kind == "int64_t" and not 0 <= value <= MOST:
                raise ValueError(f"core: {own} of {name} is {value}")
            yield value
            continue
        if value is None and optional:
            yield None
            continue
        element = np.dtype(ELEMENTS[kind])
        if not isinstance(value, np.ndarray) or value.dtype != element:
            given = getattr(value, "dtype", type(value).__name__)
            raise TypeError(f"core: {own} is of {given}, not {element}")
        size = eval(length, {}, values)  # noqa: S307 - of the headers beside this file
        if value.size != size:
            raise ValueError(f"core: {own} of {name} has {value.size} elements, not {size}")
        if not value.flags.c_contiguous or not (constant or value.flags.writeable):
            raise TypeError(f"core: {own} of {name} is not contiguous, or may not be written")
        yield ctypes.c_void_p(value.ctypes.data)


@cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        raise CoreError(f"the compiled core cannot be loaded ({error}): run make") from None
    library.bfpp_source_hash.restype = ctypes.c_char_p
    if library.bfpp_source_hash().decode() != source_hash():
        raise CoreError("the core is older than its source: run make")
    return library


Parameter = tuple[bool, str, bool, str, str | None]
"""A parameter: if constant, its type, if optional, its name, and an array's length."""


@cache
def _declarations() -> dict[str, tuple[str, list[Parameter]]]:
    """Symbol and parameters of each function, by its name."""
    text = "".join(path.read_text() for path in sorted(SOURCE.rglob("*.h")))
    for name, shared in SHARED.findall(text):
        text = text.replace(name, shared.replace("\\\n", ""))
    declarations = {}
    for symbol, name, listed in DECLARATION.findall(text):
        parameters = []
        for each in re.split(r",\s*", listed.strip()):
            match = PARAMETER.match(each.strip())
            if match is None:
                raise CoreError(f"{each!r} of {symbol} is no parameter")
            constant, kind, optional, own, length = match.groups()
            parameters.append((bool(constant), kind, bool(optional), own, length))
        declarations[name] = symbol, parameters
    return declarations
