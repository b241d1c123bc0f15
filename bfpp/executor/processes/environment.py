"""The environment variables of a run's processes, set before they start work.

What the user has set is kept, except that `--interface` overrides it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from bfpp.executor.processes.network import (
    address_for_others,
    interface_to,
    interface_to_others,
    interfaces,
    loopback,
)
from bfpp.schedules import InvalidConfiguration

TORCHRUN = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}  # set by torchrun
GLOO = "GLOO_SOCKET_IFNAME"
NCCL = "NCCL_SOCKET_IFNAME"
HOST = "127.0.0.1"
"""The loopback address."""

STREAMS = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
"""One connection per lane, more than the default of 8, so that lanes do not serialise.

CUDA reads it when it starts.
"""


def is_joined() -> bool:
    """True if torchrun or a cluster started the processes."""
    return os.environ.keys() >= TORCHRUN


def prepare(interface: str | None = None) -> None:
    """Set missing variables in a process that joins others; to be called before CUDA starts.

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
    variables = {**STREAMS, **chosen(interface or _route(environment))}
    kept = environment.keys() - (chosen(interface).keys())
    return {name: value for name, value in variables.items() if name not in kept}


def chosen(interface: str | None) -> dict[str, str]:
    """The variables for an interface."""
    return {} if interface is None else {GLOO: interface, NCCL: f"={interface}"}


def has_store(environment: Mapping[str, str]) -> bool:
    """True if torchrun hosts the store; other launchers that set its variables do not."""
    return environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def store_host(environment: Mapping[str, str]) -> str:
    """The host of the store, by a name or an address by which it is reached from here.

    A store of ours listens within this host if all processes are there; if not, not on the
    loopback interface, as which a machine may know its own name.
    """
    host, is_within = environment["MASTER_ADDR"], _is_within_host(environment)
    if has_store(environment) or is_within is None:
        return host
    return HOST if is_within else address_for_others(host)


def _is_within_host(environment: Mapping[str, str]) -> bool | None:
    """True if all processes are on one host, as far as their launcher says so."""
    local = environment.get("LOCAL_WORLD_SIZE")
    return None if local is None else local == environment["WORLD_SIZE"]


def _route(environment: Mapping[str, str]) -> str | None:
    """The interface by which processes reach each other: within one host no other can use it."""
    host, is_within = environment["MASTER_ADDR"], _is_within_host(environment)
    if is_within:
        return loopback() or interface_to(host)
    return (interface_to if is_within is None else interface_to_others)(host)
