"""The network interfaces of this machine, and the one that leads to another.

The kernel knows: connecting a datagram socket sends nothing, but gives it the
local address of its route.
"""

from __future__ import annotations

import ctypes
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress

LOOPBACK = 0x8  # a flag of an interface
ELSEWHERE = "192.0.2.1"  # for documentation: whatever way is taken to hosts that are not near
ADDRESS = {socket.AF_INET: slice(4, 8), socket.AF_INET6: slice(8, 24)}  # within a socket address


class Interface(ctypes.Structure):
    """An address of an interface, and where the next one is: C's `struct ifaddrs`."""

    _fields_ = (
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("flags", ctypes.c_uint),
        ("address", ctypes.c_void_p),
    )


def interfaces() -> list[str]:
    """The names of all interfaces."""
    return [name for _, name in socket.if_nameindex()]


def interface_to(host: str) -> str | None:
    """The interface on the route to a host, if it can be found."""
    if sys.platform != "linux":
        return None
    names = {address: name for name, address, _ in _addresses()}
    return next((names[local] for local in _local_addresses(host) if local in names), None)


def interface_to_others(host: str) -> str | None:
    """The same for a host that other machines reach by that name; it may be this one.

    A machine may know its own name as that of its loopback interface, where no
    other machine answers.
    """
    found = interface_to(host)
    if found is None or found not in _loopbacks():
        return found
    outward = interface_to(ELSEWHERE)
    rest = [name for name, _, flags in _addresses() if not flags & LOOPBACK]
    return outward or next(iter(rest), found)


def is_loopback(name: str) -> bool:
    """Whether it is a loopback interface."""
    return name in _loopbacks()


def _loopbacks() -> set[str]:
    return {name for name, _, flags in _addresses() if flags & LOOPBACK}


def _local_addresses(host: str) -> Iterator[bytes]:
    """The local addresses from which this machine would reach a host."""
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):  # reported when connecting fails
        return
    for family, kind, *_, address in found:
        with suppress(OSError), socket.socket(family, kind) as probe:
            probe.connect(address)
            yield socket.inet_pton(family, str(probe.getsockname()[0]).partition("%")[0])


def _addresses() -> list[tuple[str, bytes, int]]:
    """Name, address and flags of each interface that has an address."""
    library = ctypes.CDLL(None, use_errno=True)
    first = ctypes.c_void_p()
    if library.getifaddrs(ctypes.byref(first)):
        return []
    try:
        return list(_read(first.value))
    finally:
        library.freeifaddrs(first)


def _read(place: int | None) -> Iterator[tuple[str, bytes, int]]:
    while place:
        entry = Interface.from_address(place)
        place = entry.next
        if not entry.address:
            continue
        family = ctypes.c_ushort.from_address(entry.address).value
        if family in ADDRESS:
            part = ADDRESS[socket.AddressFamily(family)]
            yield entry.name.decode(), ctypes.string_at(entry.address, part.stop)[part], entry.flags
