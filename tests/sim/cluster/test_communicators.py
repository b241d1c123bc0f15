"""Memory of NCCL's communicators, beside what its sources say, added up by hand."""

from __future__ import annotations

from bfpp.sim.cluster.communicators import MEBIBYTE, communicator_bytes

NODE = 8
ALL_PROTOCOLS = (0.5 + 4.6875 + 4) * MEBIBYTE  # LL, LL128, Simple


def test_a_transfer_has_one_connection_a_channel() -> None:
    assert communicator_bytes((0, 7), 8, NODE, transfers=True) == 8 * ALL_PROTOCOLS
    assert communicator_bytes((7, 8), 8, NODE, transfers=True) == 8 * 2 * MEBIBYTE


def test_a_ring_and_a_tree_have_four() -> None:
    assert communicator_bytes(range(8), 16, NODE) == 16 * 4 * ALL_PROTOCOLS
    # Over the network, each end has buffers of a connection, but those of LL.
    assert communicator_bytes(range(9), 1, NODE) == 4 * 2 * (4.6875 + 4) * MEBIBYTE
    assert communicator_bytes((0, 1), 16, NODE) == 16 * ALL_PROTOCOLS


def test_a_process_alone_has_none() -> None:
    assert communicator_bytes((3,), 16, NODE) == 0
