"""Chakra's traces as chakra_converter writes them, by the schema et_def.proto."""

from __future__ import annotations

COMPUTE, COLLECTIVE, REDUCE = 4, 7, 0
"""Types of nodes, and of a collective."""


def number(value):
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    return bytes([*data, value])


def part(place, value):
    """A field of a message, by the rules of protocol buffers."""
    if isinstance(value, int):
        return number(place << 3) + number(value)
    text = value.encode() if isinstance(value, str) else value
    return number(place << 3 | 2) + number(len(text)) + text


def attribute(name, value):
    place = 29 if isinstance(value, str) else 27 if isinstance(value, bool) else 9
    return part(10, part(1, name) + part(place, value))


def node(own, name, micros, after=(), kind=COMPUTE, packed=True, **about):
    """A node as chakra_converter writes it: of a caller, with tensors, without a start time."""
    waits = (
        part(5, b"".join(map(number, after))) if packed else b"".join(part(5, it) for it in after)
    )
    return b"".join(
        [
            part(1, own), part(2, name), part(3, kind), part(4, number(own + 1)), waits,
            part(7, micros), part(8, part(1, "[]")),
            *(attribute(*each) for each in about.items()),
        ]
    )  # fmt: skip


def trace(*nodes):
    metadata = part(2, part(1, "schema") + part(29, "1.1.1-chakra.0.0.4"))
    return b"".join(number(len(each)) + each for each in (metadata, *nodes))


def one_rank(micros, late, group="3"):
    """A launch of a GEMM, of an all-reduce that waits for it, and of a copy, on two streams."""
    host = {"is_cpu_op": True, "tid": 1}
    reduce = {"comm_type": REDUCE, "comm_size": 4096, "pg_name": group, "stream": 20}
    return trace(
        node(1, "aten::mm", late, **host),
        node(2, "gemm", micros, [1], is_cpu_op=False, stream=7),
        node(3, "c10d::allreduce_", 5, [1], packed=False, **host),
        node(4, "ncclDevKernel_AllReduce", 30, [3, 2], COLLECTIVE, is_cpu_op=False, **reduce),
        node(5, "Memcpy DtoD", 10, [3], is_cpu_op=False, stream=7),
    )
