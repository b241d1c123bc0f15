"""Network interfaces of this machine, the route to another one, and the address to listen on.

The kernel knows the route: connecting a datagram socket sends nothing, but gives it the
local address. A process listens on the address that it gives to others, and on no other.
"""

from __future__ import annotations

import ctypes
import errno
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
    """The interface on the route to a host, if there is one."""
    if sys.platform != "linux":
        return None
    names = {address: name for name, address, _ in _addresses()}
    return next((names[local] for local in _local_addresses(host) if local in names), None)


def interface_to_others(host: str) -> str | None:
    """The interface to a host that other machines reach by that name; it may be this one.

    A machine may know its own name as that of its loopback interface, where no
    other machine answers.
    """
    interface = interface_to(host)
    if interface is None or interface not in _loopbacks():
        return interface
    outward = interface_to(ELSEWHERE)
    rest = [name for name, _, flags in _addresses() if not flags & LOOPBACK]
    return outward or next(iter(rest), interface)


def address_for_others(host: str) -> str:
    """The address of a host for other machines: another one, if the name means loopback."""
    name = interface_to_others(host)
    if name in (None, interface_to(host)):
        return host
    return next(_in_words(address) for each, address, _ in _addresses() if each == name)


def loopback() -> str | None:
    """The loopback interface, where there is one."""
    return next(iter(sorted(_loopbacks())), None) if sys.platform == "linux" else None


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens on the address of a host, which is this machine, and on no other.

    If that address is not one of ours (a router's, say), it is our address on the route there.
    Raises `OSError` if it cannot listen.
    """
    resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(address[0]) for *_, address in resolved]
    failure = OSError(errno.EADDRNOTAVAIL, f"{host} is no address of this host")
    for address in (*addresses, *map(_in_words, _local_addresses(host))):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            return socket.create_server((address, port), family=family)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
            failure = error
    raise failure


def _in_words(address: bytes) -> str:
    family = next(each for each, part in ADDRESS.items() if part.stop - part.start == len(address))
    return socket.inet_ntop(family, address)


def is_loopback(name: str) -> bool:
    """Test for a loopback interface."""
    return name in _loopbacks()


def _loopbacks() -> set[str]:
    return {name for name, _, flags in _addresses() if flags & LOOPBACK}


def _local_addresses(host: str) -> Iterator[bytes]:
    """The local addresses from which this machine would reach a host."""
    # To connect a UDP socket sends nothing: it asks the system for the route. Any port will do.
    try:
        resolved = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):  # reported when connecting fails
        return
    for family, kind, *_, address in resolved:
        with suppress(OSError), socket.socket(family, kind) as probe:
            probe.connect(address)
            # Without the scope (%eth0) that link-local addresses of IPv6 come with.
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
