"""Functions of the core, given arrays of any contents: run as a program, which may die.

It makes so many calls of each function, and prints each before it is made. Half have arrays drawn
at random, of the right types and lengths; half are recorded calls in which something is changed.
"""

from __future__ import annotations

import pickle
import resource
import signal
import sys
from argparse import ArgumentParser
from contextlib import suppress
from ctypes import ArgumentError
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from bfpp.core import library
from bfpp.core.library import ELEMENTS, Parameter, function
from tests.helpers.core_calls import Call, copied, declared

SECONDS = 20
"""After so many the process ends by a signal: a call does not return."""

BYTES = 2**32
"""Of memory: what asks for more fails."""

LONGEST = 4096
"""Elements that are drawn; where more would have to be given, the call is refused."""

ROUNDS = ("steps", "tries")
"""Numbers that say how long a function runs."""

HUGE = (-1, 2**31 - 1, 2**31, 2**62, 2**63 - 1, -(2**63))
STRANGE = (0.0, -1.0, 1e-300, 1e300, np.inf, -np.inf, np.nan)


def drawn_number(random: Random, kind: str, name: str) -> Any:
    """A number, mostly a small one."""
    if kind == "bool":
        return random.random() < 0.5
    if kind == "double":
        return random.choice([*STRANGE, random.uniform(0, 10), random.uniform(0, 10)])
    if name not in ROUNDS and random.random() < 0.02:
        return random.choice(HUGE)
    return random.randrange(7)


def drawn_array(random: Random, kind: str, length: int, bound: int) -> Any:
    """Times, flags, or indices below a bound, in any order or ascending; a few are none."""
    draws = np.random.default_rng(random.randrange(2**32))
    if kind == "bool":
        return draws.random(length) < random.random()
    if kind == "double":
        array = draws.uniform(0, 10, length) * draws.integers(0, 2, length)
    else:
        array = draws.integers(-random.randrange(2), bound + 1, length)
        array = np.sort(array) if random.random() < 0.3 else array
        array = array.astype(ELEMENTS[kind])
    if random.random() < 0.5:
        spoil(random, array)
    return array


def spoil(random: Random, array: Any) -> None:
    """Change a few elements of an array to anything."""
    for _ in range(random.randrange(4) if array.size else 0):
        at = random.randrange(array.size)
        if array.dtype == np.bool_:
            array.flat[at] = not array.flat[at]
        elif array.dtype == np.float64:
            array.flat[at] = random.choice(STRANGE)
        else:
            near = int(array.flat[at]) + random.choice([-1, 1])
            limits = np.iinfo(array.dtype)
            value = random.choice([near, random.randrange(9), limits.min, limits.max])
            array.flat[at] = min(max(value, limits.min), limits.max)


def drawn(random: Random, parameters: list[Parameter]) -> list[Any]:
    """Arguments of the right types and lengths."""
    given: dict[str, Any] = {}
    for _, kind, optional, name, length in parameters:
        if length is None:
            given[name] = drawn_number(random, kind, name)
            continue
        count = eval(length, {}, given)
        numbers = [each for each in given.values() if type(each) is int and 0 < each <= LONGEST]
        bound = random.choice(numbers or [1])
        array = drawn_array(random, kind, min(max(count, 0), LONGEST), bound)
        given[name] = None if optional and random.random() < 0.3 else array
    return [*given.values()]


def changed(random: Random, call: Call, parameters: list[Parameter]) -> list[Any]:
    """A recorded call's arguments, of which one or two are others."""
    given = [*copied(call.before)]
    for place, (*_, name, _) in enumerate(parameters):
        if name in ROUNDS:
            given[place] = min(given[place], 20)
    for _ in range(1 + random.randrange(2)):
        place = random.randrange(len(given))
        _, kind, _, name, _ = parameters[place]
        if isinstance(given[place], np.ndarray):
            spoil(random, given[place])
        elif given[place] is not None:
            given[place] = drawn_number(random, kind, name)
    return given


def call(name: str, given: list[Any]) -> None:
    """One call, which may be refused."""
    signal.alarm(SECONDS)
    with suppress(ArgumentError, MemoryError, TypeError, ValueError):
        function(name)(*given)


def main() -> None:
    """As the command line says."""
    parser = ArgumentParser()
    parser.add_argument("--seed", required=True)
    parser.add_argument("--examples", type=int, required=True)
    parser.add_argument("--calls", type=Path, required=True, help="recorded calls, pickled")
    parser.add_argument("--library", type=Path, help="the core, as it is built for sanitizers")
    parser.add_argument("names", nargs="+")
    options = parser.parse_args()
    if options.library:
        library.LIBRARY = options.library
    else:
        resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    recorded: dict[str, list[Call]] = pickle.loads(options.calls.read_bytes())
    for name in options.names:
        _, parameters = declared()[name]
        for nth in range(options.examples):
            random = Random(f"{options.seed} {name} {nth}")
            if nth % 2 and name in recorded:
                given = changed(random, random.choice(recorded[name]), parameters)
            else:
                given = drawn(random, parameters)
            sys.stdout.write(f"{name} {nth}\n")
            sys.stdout.flush()
            call(name, given)


if __name__ == "__main__":
    main()
