"""The streams of a rank: compute, and each kind of communication that may run next to it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stream:
    """A kind of lane; a rank has one lane of it, or one for each peer.

    `toward` is "to" or "from" where there is one for each peer. `overlap` is the switch of
    `Communication` without which its tasks take the compute lane's time instead.
    """

    name: str
    title: str
    toward: str = ""
    overlap: str | None = None


COMPUTE = Stream("COMPUTE", "compute")
DATA = Stream("DATA", "data", overlap="dp_overlap")
REPLICAS = Stream("REPLICAS", "replicas", overlap="dp_overlap")
"""Communication across groups of replicas (HSDP), over other links than within a group."""
TIED = Stream("TIED", "tied weights", overlap="dp_overlap")
"""Communication between the ranks of the first and last unit, for their shared parameters."""
P2P = "pp_overlap"
SEND_ACTIVATIONS = Stream("SEND_ACTIVATIONS", "send activations", "to", P2P)
RECEIVE_ACTIVATIONS = Stream("RECEIVE_ACTIVATIONS", "receive activations", "from", P2P)
SEND_GRADIENTS = Stream("SEND_GRADIENTS", "send gradients", "to", P2P)
RECEIVE_GRADIENTS = Stream("RECEIVE_GRADIENTS", "receive gradients", "from", P2P)
QUEUE = Stream("QUEUE", "P2P")
"""All sends and receives of a rank, in modes with one queue."""
EXPERTS = Stream("EXPERTS", "experts")
"""All-to-alls inside a pass, between the devices that share a layer's experts."""
TO_HOST = Stream("TO_HOST", "copies to host")
FROM_HOST = Stream("FROM_HOST", "copies from host")
"""Copies of activations over the link between a device and its host, which has two directions."""

STREAMS = [
    COMPUTE, DATA, REPLICAS, TIED, SEND_ACTIVATIONS, RECEIVE_ACTIVATIONS, SEND_GRADIENTS,
    RECEIVE_GRADIENTS, QUEUE, EXPERTS, TO_HOST, FROM_HOST,
]  # fmt: skip
"""All streams, in the order in which a rank's lanes are listed."""


def stream_named(name: str) -> Stream:
    """The stream of that name; raises `KeyError` if there is none."""
    for stream in STREAMS:
        if stream.name == name:
            return stream
    raise KeyError(name)
