"""The wire format of protocol buffers that traces need: varints, doubles, texts, messages.

A message is a sequence of fields, each with a number and a wire type. In a file, each message
follows its length, a varint.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from bfpp.schedules.errors import InvalidFile

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types."""

MOST_BITS = 64

Value = int | float | bytes


class MalformedMessage(InvalidFile):
    """Bytes that are not such messages; the reason is one line."""


def varint(number: int) -> bytes:
    """A whole number, seven bits a byte, the least ones first; negative ones in 64 bits."""
    number &= (1 << MOST_BITS) - 1
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


def field(number: int, value: int | float | str | bytes) -> bytes:
    """One field: a whole number as a varint, any other as a double."""
    if isinstance(value, int):
        return varint(number << 3 | VARINT) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | FIXED64) + struct.pack("<d", value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | BYTES) + delimited(data)


def packed(number: int, values: Iterable[int]) -> bytes:
    """A repeated field of whole numbers; none where there are none."""
    data = b"".join(map(varint, values))
    return field(number, data) if data else b""


def varints(value: Value) -> Iterator[int]:
    """Whole numbers of a repeated field: packed, or one; raises `MalformedMessage`."""
    if isinstance(value, float):
        raise MalformedMessage("a list of whole numbers has another number")
    if isinstance(value, int):
        yield value
        return
    at = 0
    while at < len(value):
        number, at = _varint(value, at)
        yield number


def delimited(message: bytes) -> bytes:
    """A message behind its length."""
    return varint(len(message)) + message


def messages(data: bytes) -> Iterator[bytes]:
    """The messages of a file; raises `MalformedMessage`."""
    at = 0
    while at < len(data):
        size, at = _varint(data, at)
        yield _bytes(data, at, size)
        at += size


def fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """The number and value of each field, as it is on the wire; raises `MalformedMessage`."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            whole, at = _varint(message, at)
            yield number, whole
        elif kind == BYTES:
            size, at = _varint(message, at)
            yield number, _bytes(message, at, size)
            at += size
        elif kind in (FIXED64, FIXED32):
            size, letter = (8, "<d") if kind == FIXED64 else (4, "<f")
            (real,) = struct.unpack(letter, _bytes(message, at, size))
            yield number, real
            at += size
        else:
            raise MalformedMessage(f"a field has wire type {kind}, which does not exist")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A whole number, and where it ends."""
    number = shift = 0
    while shift < MOST_BITS:
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    raise MalformedMessage("ends within a number, or is no protocol buffer")


def _bytes(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise MalformedMessage("ends within a message, or is no protocol buffer")
    return data[at : at + size]
