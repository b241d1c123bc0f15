"""Loads the compiled core, and checks what its functions are given.

The headers in `source/` are read as they stand: a parameter's type says which arrays a function
takes, and the brackets behind it how long they are. So a call with an array of another type or
length, or one that is not contiguous, raises `TypeError` or `ValueError` before any C runs.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn, Protocol

import numpy as np

from bfpp.core.sources import LIBRARY, SOURCE, CoreError, source_hash

OUT_OF_MEMORY, MALFORMED = -1, -2
"""What functions return instead of a count."""

DECLARATION = re.compile(r"CORE int64_t (bfpp_(\w+))\(([^;]*)\);")
PARAMETER = re.compile(r"(const )?(\w+) (OPTIONAL )?(\w+)(?:\[([^]]*)\])?$")

NUMBERS = {"int64_t": ctypes.c_int64, "double": ctypes.c_double, "bool": ctypes.c_bool}
ELEMENTS = {
    "double": np.float64,
    "int64_t": np.int64,
    "int32_t": np.int32,
    "uint32_t": np.uint32,
    "int8_t": np.int8,
    "bool": np.bool_,
}

_address_of: Callable[[Any], ctypes.Array[ctypes.c_char]] = (ctypes.c_char * 0).from_buffer


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
    call = _library()[symbol]
    call.restype = ctypes.c_int64
    call.argtypes = [_converter(*each) for each in parameters]
    names = [each[3] for each in parameters]
    counts = [place for place, each in enumerate(parameters) if each[1:5:3] == ("int64_t", None)]
    places = [place for place, each in enumerate(parameters) if each[4] is not None]
    lengths = eval(  # noqa: S307 - of the headers beside this file
        f"lambda {', '.join(names)}: ({''.join(f'{parameters[at][4]}, ' for at in places)})"
    )

    def checked(*arguments: Any) -> int:
        for place in counts:
            if not 0 <= arguments[place] <= MOST:
                raise ValueError(f"core: {names[place]} of {name} is {arguments[place]}")
        for place, length in zip(places, lengths(*arguments), strict=True):
            array = arguments[place]
            if array is not None and array.size != length:
                raise ValueError(
                    f"core: {names[place]} of {name} has {array.size} elements, not {length}"
                )
        try:
            count: int = call(*arguments)
        except ctypes.ArgumentError as error:
            raise TypeError(str(error)) from None
        if count == OUT_OF_MEMORY:
            raise MemoryError("core")
        if count == MALFORMED:
            raise ValueError(f"core: malformed arrays for {symbol}")
        return count

    return checked


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
"""Whether it is constant, its type, whether it is optional, its name, and an array's length."""


@cache
def _declarations() -> dict[str, tuple[str, list[Parameter]]]:
    """Symbol and parameters of each function, by its name."""
    text = "".join(path.read_text() for path in sorted(SOURCE.rglob("*.h")))
    found = {}
    for symbol, name, listed in DECLARATION.findall(text):
        parameters = []
        for each in re.split(r",\s*", listed.strip()):
            match = PARAMETER.match(each.strip())
            if match is None:
                raise CoreError(f"{each!r} of {symbol} is no parameter")
            constant, kind, optional, own, length = match.groups()
            parameters.append((bool(constant), kind, bool(optional), own, length))
        found[name] = symbol, parameters
    return found


@cache
def _converter(constant: bool, kind: str, optional: bool, name: str, length: str | None) -> Any:
    """The type that turns an argument into an address; raises `TypeError` for another array."""
    if length is None:
        return NUMBERS[kind]
    element = np.dtype(ELEMENTS[kind])

    def refuse(array: object) -> NoReturn:
        given = getattr(array, "dtype", type(array).__name__)
        raise TypeError(f"core: {name} is of {given}, not {element}")

    class Array:
        """An array of one type."""

        @classmethod
        def from_param(cls, array: Any) -> Any:
            """Its address, which lasts as long as the call."""
            if array is None and optional:
                return None
            if not isinstance(array, np.ndarray) or array.dtype != element:
                refuse(array)
            try:
                return _address_of(array)
            except TypeError:  # it may not be written
                if not constant or not array.flags.c_contiguous:
                    raise
                return ctypes.c_void_p(array.ctypes.data)

    return Array
