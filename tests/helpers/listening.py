"""The sockets on which processes wait for connections, as Linux tells."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

LISTENS = "0A"
FAMILIES = {"tcp": socket.AF_INET, "tcp6": socket.AF_INET6}
Address = IPv4Address | IPv6Address


def beyond_loopback(pids: Iterable[int]) -> set[tuple[str, int]]:
    """Addresses and ports of processes that others than this machine could reach."""
    return {(str(address), port) for address, port in listening(pids) if not address.is_loopback}


def listening(pids: Iterable[int]) -> set[tuple[Address, int]]:
    """The addresses and ports on which any of the processes listens now."""
    return {place for pid in pids for place in _of_process(pid)}


def _of_process(pid: int) -> Iterator[tuple[Address, int]]:
    own = {target for target in _files(pid) if target.startswith("socket:")}
    for name, family in FAMILIES.items():
        for line in _lines(Path(f"/proc/{pid}/net/{name}")):
            _, local, _, state, *_, inode = line.split()[:10]
            if state == LISTENS and f"socket:[{inode}]" in own:
                address, port = local.split(":")
                yield _address(address, family), int(port, 16)


def _files(pid: int) -> Iterator[str]:
    try:
        for file in Path(f"/proc/{pid}/fd").iterdir():
            try:
                yield str(file.readlink())
            except OSError:
                continue
    except OSError:
        return


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()[1:]
    except OSError:
        return []


def _address(text: str, family: socket.AddressFamily) -> Address:
    """Numbers that the kernel writes as words of the machine's byte order."""
    words = bytes.fromhex(text)
    found = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
    return ip_address(socket.inet_ntop(family, found))
