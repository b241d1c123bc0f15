"""The environment variables of a run's processes, set before they start work.

What the user has set is kept, except that `--interface` overrides it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from bfpp.executor.processes.network import (
    interface_to,
    interface_to_others,
    interfaces,
    is_loopback,
)
from bfpp.schedules import InvalidConfiguration

TORCHRUN = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}  # set by torchrun
GLOO = "GLOO_SOCKET_IFNAME"
NCCL = "NCCL_SOCKET_IFNAME"

STREAMS = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
"""One connection per lane, more than the default of 8, so that lanes do not serialise.

CUDA reads it when it starts.
"""


def is_joined() -> bool:
    """Whether torchrun or a cluster started the processes."""
    return os.environ.keys() >= TORCHRUN


def prepare(interface: str | None = None) -> None:
    """Set what is missing, in a process that joins others; to be called before CUDA starts.

    Raises `InvalidConfiguration` for an interface that this machine does not have.
    """
    if interface is not None and interface not in (known := interfaces()):
        raise InvalidConfiguration(
            "interface", f"{interface} is not an interface of this machine: {', '.join(known)}"
        )
    if is_joined():
        os.environ.update(missing(os.environ, interface))


def missing(environment: Mapping[str, str], interface: str | None) -> dict[str, str]:
    """Variables that are still to be set in a process that joins others."""
    found = {**STREAMS, **chosen(interface or _route(environment))}
    kept = environment.keys() - (chosen(interface).keys())
    return {name: value for name, value in found.items() if name not in kept}


def chosen(interface: str | None) -> dict[str, str]:
    """The variables for an interface; within a machine, NCCL needs none."""
    if interface is None:
        return {}
    own = {GLOO: interface}
    return own if is_loopback(interface) else {**own, NCCL: f"={interface}"}


def _route(environment: Mapping[str, str]) -> str | None:
    """The interface on the route to the first process."""
    host, local = environment["MASTER_ADDR"], environment.get("LOCAL_WORLD_SIZE")
    is_elsewhere = local is not None and local != environment["WORLD_SIZE"]
    return (interface_to_others if is_elsewhere else interface_to)(host)
