"""Calls of the core, recorded or drawn, for the C program that repeats them (`tests/core/calls.c`).

The program knows the functions by the headers: it repeats calls of each without a line of its own.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np

from bfpp.core import library
from bfpp.core.sources import SOURCE
from tests.helpers import ROOT

PROGRAM = ROOT / "tests" / "core" / "calls.c"
FUNCTIONS = library._declarations()
WHOLE, REAL, NOTHING, CONSTANT, WRITTEN = range(5)
REALS = [0.0, 0.25, 0.5, 1.0, 1.5, 3.0, 1e-9, 1e300, -1.0, float("nan"), float("inf")]
EXTREMES = [0, 1, -1, 127, -128, 2**31 - 1, -(2**31), 2**32 - 1, 2**40, 2**63 - 1, -(2**63)]
LARGEST = 4000
"""Elements of a drawn array."""


@dataclass(frozen=True)
class Call:
    """Arguments as they are given; the result, and the arrays afterwards, if they are known."""

    name: str
    arguments: tuple
    result: int | None = None
    after: tuple = ()


@contextmanager
def recorded(calls: list[Call], most: int = 20) -> Iterator[None]:
    """Record calls of the core's modules that end well: of each function the first ones."""

    def recording(name):
        function = library.function(name)

        def call(*arguments):
            before = _copies(arguments)
            result = function(*arguments)
            if sum(each.name == name for each in calls) < most:
                calls.append(Call(name, before, result, _copies(arguments)))
            return result

        return call

    modules = [name for name in sys.modules if name.startswith("bfpp.core.")]
    with ExitStack() as stack:
        for name in modules:
            if name != library.__name__ and hasattr(sys.modules[name], "function"):
                stack.enter_context(patch(f"{name}.function", recording))
        yield


def _copies(arguments):
    return tuple(each.copy() if isinstance(each, np.ndarray) else each for each in arguments)


def drawn(random: np.random.Generator, count: int) -> Iterator[Call]:
    """Calls of every function, `count` of each, with arrays of the right lengths and no sense."""
    for name, (_, parameters) in FUNCTIONS.items():
        found = 0
        while found < count:
            arguments = _arguments(parameters, random)
            if arguments is not None:
                found += 1
                yield Call(name, arguments)


def _arguments(parameters, random):
    """Arguments, unless an array would be too long, or of a negative length."""
    values: dict[str, object] = {}
    for _, kind, optional, name, length in parameters:
        if length is None:
            values[name] = _number(kind, random)
            continue
        size = eval(length, {}, dict(values))
        if not 0 <= size <= LARGEST:
            return None
        absent = optional and random.random() < 0.3
        values[name] = None if absent else _array(np.dtype(library.ELEMENTS[kind]), size, random)
    return tuple(values.values())


def _number(kind, random):
    if kind == "bool":
        return bool(random.integers(2))
    if kind == "double":
        return float(random.choice(REALS))
    return int(random.choice([*range(-2, 9), 40], p=[0.02, 0.03, *[0.1] * 9, 0.05]))


def _array(element, size, random):
    if element == np.float64:
        return random.choice(REALS, size)
    if element == np.bool_:
        return random.random(size) < 0.5
    forms = (
        lambda: np.zeros(size),
        lambda: np.arange(size),
        lambda: np.minimum(np.arange(size), random.integers(1, 9)),
        lambda: np.sort(random.integers(0, 9, size)),
        lambda: random.integers(-2, 9, size),
        lambda: random.choice(EXTREMES, size),
    )
    return forms[random.integers(len(forms))]().astype(np.int64).astype(element)


def damaged(call: Call, random: np.random.Generator) -> Call:
    """The call with some numbers of its arrays replaced; what comes of it is unknown."""
    arguments = list(_copies(call.arguments))
    arrays = [each for each in arguments if isinstance(each, np.ndarray) and each.size]
    for _ in range(random.integers(1, 4)):
        array = arrays[random.integers(len(arrays))]
        values = _array(array.dtype, 16, random)
        array.flat[random.integers(array.size)] = random.choice(values)
    return Call(call.name, tuple(arguments))


def written(calls: Sequence[Call], path: Path) -> Path:
    """The file of calls that the program reads."""
    names = list(FUNCTIONS)
    with path.open("wb") as file:
        file.write(_whole(len(calls)))
        for call in calls:
            known = call.result is not None
            file.write(_whole(names.index(call.name), known, call.result or 0, len(call.arguments)))
            after = call.after if known else call.arguments
            parameters = FUNCTIONS[call.name][1]
            for each in zip(parameters, call.arguments, after, strict=True):
                _write(file, known, *each)
    return path


def _write(file, known, parameter, argument, after):
    constant, kind, _, _, length = parameter
    if argument is None:
        file.write(_whole(NOTHING))
    elif length is None and kind == "double":
        file.write(_whole(REAL) + struct.pack("=d", argument))
    elif length is None:
        file.write(_whole(WHOLE, argument))
    else:
        form = CONSTANT if constant else WRITTEN
        file.write(_whole(form, argument.nbytes, kind == "double") + argument.tobytes())
        if known and not constant:
            file.write(after.tobytes())


def _whole(*numbers):
    return struct.pack(f"={len(numbers)}q", *numbers)


def sources(folder: Path) -> list[Path]:
    """The C files of the program and the core; its table of functions is made from the headers."""
    table = folder / "table.c"
    cases = []
    for at, (symbol, parameters) in enumerate(FUNCTIONS.values()):
        given = [_given(nth, each[1], each[4]) for nth, each in enumerate(parameters)]
        cases.append(f"    case {at}:\n        return {symbol}({', '.join(given)});\n")
    includes = [f'#include "{path.name}"\n' for path in sorted(SOURCE.glob("*.h"))]
    table.write_text(
        f'#include "{PROGRAM}"\n{"".join(includes)}\n'
        "static int64_t dispatched(int64_t function, struct argument *with)\n{\n"
        f"    switch (function) {{\n{''.join(cases)}    }}\n    return 0;\n}}\n"
    )
    return [table, *sorted(SOURCE.glob("*.c"))]


def _given(nth, kind, length):
    if length is None:
        return f"with[{nth}].number.{'real' if kind == 'double' else 'whole'}"
    return f"(void *)with[{nth}].array"
