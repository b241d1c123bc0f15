"""Hosts of a study that are network namespaces of this machine, with a network of a given speed.

Each has one interface, on a bridge that this machine is on too. What leaves a host, and what
enters it, passes a token bucket of the network's rate. Needs root, `ip` and `tc`.

Such a bucket has one queue for all. Whoever fills it, with packets of 64 KiB that the kernel cuts
up later, holds up acknowledgements and the messages by which gloo agrees on a transfer: at 25
Mbit/s, two transfers that should not meet took 68 ms instead of 44. So packets are queued one by
one, with CUBIC, which shares a link evenly: as in a network card with a queue for each flow.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from bfpp.schedules import InvalidInput

if TYPE_CHECKING:
    from bfpp.executor.processes import Hosts

INTERFACE = "eth0"
ENTER = ("ip", "netns", "exec")
BURST, LONGEST_QUEUE = 16 * 1024, "1s"
"""Bytes that may pass at once, and how long a packet waits at most."""

THIS_MACHINE = 254
"""The last part of this machine's address on the bridge; hosts have theirs from 1 on."""


@contextmanager
def namespaces(count: int, bits: float | None, folder: Path) -> Iterator[Hosts]:
    """Make network namespaces on links of this rate; remove them on exit, also after an error.

    Their names follow from the study's folder, so that those of a killed study are removed first.
    Without a rate, links are not shaped.
    Raises `InvalidInput` where this cannot be.
    """
    from bfpp.executor.processes import Hosts

    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            raise InvalidInput(f"hosts: namespaces need {program}, which is not installed")
    if os.geteuid() != 0:
        raise InvalidInput("hosts: only root can make namespaces")
    digest = sha256(str(folder.resolve()).encode())
    mark = f"bf{digest.hexdigest()[:8]}"
    network = f"198.18.{digest.digest()[0]}"  # of benchmarks, by RFC 2544
    names = [f"{mark}h{host}" for host in range(count)]
    _remove(mark, names)
    try:
        _make(mark, names, network)
        if bits is not None:
            for host, name in enumerate(names):
                _share_evenly(name, network)
                _limit(_within(name), INTERFACE, bits)
                _limit((), _end(mark, host), bits)
        yield Hosts(f"{network}.{THIS_MACHINE}", INTERFACE, ENTER, tuple(names))
    except subprocess.CalledProcessError as error:
        reason = error.stderr.strip().partition("\n")[0]
        raise InvalidInput(f"hosts: {' '.join(error.cmd)}: {reason}") from None
    finally:
        _remove(mark, names)


def _make(mark: str, names: list[str], network: str) -> None:
    _system("ip", "link", "add", mark, "type", "bridge")
    _system("ip", "addr", "add", f"{network}.{THIS_MACHINE}/24", "dev", mark)
    _system("ip", "link", "set", mark, "up")
    for host, name in enumerate(names):
        end = _end(mark, host)
        _system("ip", "netns", "add", name)
        peer = ("peer", "name", INTERFACE, "netns", name)
        _system("ip", "link", "add", end, "type", "veth", *peer)
        _system("ip", "link", "set", end, "master", mark, "up")
        inside = ("ip", "-n", name)
        _system(*inside, "addr", "add", f"{network}.{host + 1}/24", "dev", INTERFACE)
        for interface in ("lo", INTERFACE):
            _system(*inside, "link", "set", interface, "up")


def _share_evenly(name: str, network: str) -> None:
    """Let flows that leave a host take turns, packet by packet."""
    _system("ip", "-n", name, "link", "set", "dev", INTERFACE, "gso_max_segs", "1")
    route = (f"{network}.0/24", "dev", INTERFACE, "congctl", "cubic")
    _system("ip", "-n", name, "route", "replace", *route)


def _limit(prefix: tuple[str, ...], interface: str, bits: float) -> None:
    """Let what an interface sends pass at `bits` a second."""
    bucket = ("rate", f"{bits:.0f}bit", "burst", str(BURST), "latency", LONGEST_QUEUE)
    _system(*prefix, "tc", "qdisc", "add", "dev", interface, "root", "tbf", *bucket)


def _within(name: str) -> tuple[str, ...]:
    return (*ENTER, name)


def _end(mark: str, host: int) -> str:
    """The end of a host's link on this machine."""
    return f"{mark}e{host}"


def _remove(mark: str, names: list[str]) -> None:
    """All of it that is there; links first, since those in namespaces are removed later."""
    for host, name in enumerate(names):
        _system("ip", "link", "del", _end(mark, host), check=False)
        _system(*ENTER[:2], "del", name, check=False)
    _system("ip", "link", "del", mark, check=False)


def _system(*words: str, check: bool = True) -> None:
    subprocess.run(words, check=check, capture_output=True, text=True)  # noqa: S603  ours alone
