"""A C program that makes recorded calls of the core, and compares what comes of them.

Each array is allocated of exactly its length, so that sanitizers see what is read beyond it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import chain
from typing import Any

import numpy as np

from bfpp.core.library import MALFORMED, SOURCE, Parameter
from tests.helpers.core_calls import Call, declared

START = """
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char *what)
{
    fprintf(stderr, "%s\\n", what);
    exit(1);
}

static void read_bytes(FILE *file, void *into, size_t size)
{
    if (size && fread(into, size, 1, file) != 1)
        fail("the file of calls is cut off");
}

static int64_t read_int64_t(FILE *file)
{
    int64_t value;
    read_bytes(file, &value, sizeof value);
    return value;
}

static bool read_bool(FILE *file) { return read_int64_t(file) != 0; }

static double read_double(FILE *file)
{
    double value;
    read_bytes(file, &value, sizeof value);
    return value;
}

/* NULL where the count is negative. */
static void *read_array(FILE *file, size_t size)
{
    int64_t count = read_int64_t(file);
    void *array = count < 0 ? NULL : malloc((size_t)count * size);
    if (count > 0)
        read_bytes(file, array, (size_t)count * size);
    return array;
}

/* By how much of it a number may differ: another C library rounds logarithms otherwise. */
static double tolerance = 0.0;

static bool are_same_doubles(const double *one, const double *other, size_t count)
{
    for (size_t at = 0; at < count; at++)
        if (one[at] != other[at] && !(isnan(one[at]) && isnan(other[at])) &&
            !(fabs(one[at] - other[at]) <= tolerance * fabs(other[at])))
            return false;
    return true;
}

/* Compares an array with the one in the file; gives both back. */
static void compare(FILE *file, void *array, size_t size, bool doubles, const char *name)
{
    int64_t count = read_int64_t(file);
    void *expected = malloc(count > 0 ? (size_t)count * size : 1);
    read_bytes(file, expected, count > 0 ? (size_t)count * size : 0);
    bool same = count <= 0
        || (doubles ? are_same_doubles(array, expected, (size_t)count)
                    : !memcmp(array, expected, (size_t)count * size));
    if (!same)
        fail(name);
    free(expected);
    free(array);
}
"""

END = """
static void *make_calls(void *path)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        fail("no file of calls");
    int64_t count = read_int64_t(file);
    for (int64_t left = count; left > 0; left--)
        CALLS[read_int64_t(file)](file);
    fclose(file);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[16];
    int count = argc > 2 ? atoi(argv[2]) : 0;
    tolerance = argc > 3 ? atof(argv[3]) : 0.0;
    for (int each = 0; each < count; each++)
        if (pthread_create(&threads[each], NULL, make_calls, argv[1]))
            fail("no thread");
    for (int each = 0; each < count; each++)
        pthread_join(threads[each], NULL);
    return count < 1;
}
"""


def program() -> str:
    """The source: a function for each of the core's, which reads a call, and makes it."""
    headers = (f'#include "{path.relative_to(SOURCE)}"\n' for path in sorted(SOURCE.rglob("*.h")))
    functions = (caller(name, *declaration) for name, declaration in declared().items())
    table = "".join(f"call_{name}, " for name in declared())
    return "".join(
        [*headers, START, *functions, f"static void (*const CALLS[])(FILE *) = {{{table}}};\n", END]
    )


def caller(name: str, symbol: str, parameters: list[Parameter]) -> str:
    """A function that makes one call."""
    lines, last = [], []
    for constant, kind, _, own, length in parameters:
        if length is None:
            lines.append(f"{kind} {own} = read_{kind}(file);")
            continue
        lines.append(f"{kind} *{own} = read_array(file, sizeof *{own});")
        doubles = "true" if kind == "double" else "false"
        compared = f'compare(file, {own}, sizeof *{own}, {doubles}, "{own} of {name} differs");'
        last.append(f"free({own});" if constant else compared)
    given = ", ".join(each[3] for each in parameters)
    lines.append(f"if ({symbol}({given}) != read_int64_t(file))")
    lines.append(f'    fail("{name} returns something else");')
    body = "".join(f"    {line}\n" for line in [*lines, *last])
    return f"\nstatic void call_{name}(FILE *file)\n{{\n{body}}}\n"


def file_of(calls: Iterable[Call]) -> bytes:
    """The calls, as the program reads them."""
    numbers = {name: number for number, name in enumerate(declared())}
    parts = [b"".join(chain([integer(numbers[call.name])], parts_of(call))) for call in calls]
    return integer(len(parts)) + b"".join(parts)


def parts_of(call: Call) -> Iterable[bytes]:
    """Arguments, the result, and the arrays after it that are compared: none after an error."""
    _, parameters = declared()[call.name]
    for (_, kind, *_, length), given in zip(parameters, call.before, strict=True):
        if length is not None:
            yield of_array(given)
        else:
            yield struct.pack("<d", given) if kind == "double" else integer(int(given))
    yield integer(call.result)
    for (constant, *_, length), left in zip(parameters, call.after, strict=True):
        if length is not None and not constant:
            yield integer(-1) if call.result == MALFORMED else of_array(left)


def of_array(array: np.ndarray[Any, Any] | None) -> bytes:
    """Its length and its elements."""
    return integer(-1) if array is None else integer(array.size) + array.tobytes()


def integer(value: int) -> bytes:
    """Eight bytes."""
    return struct.pack("<q", value)
