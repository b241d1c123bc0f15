"""The process of a GPU on the CPUs of the GPU's NUMA node.

A host with several processors has memory and PCIe links of each. A process that runs elsewhere
queues kernels, and copies from pinned memory, over the link between processors. So the process of a
GPU stays on the CPUs of the node that the GPU is attached to, before it makes anything: threads
that come later inherit that, and memory is on the node of the CPU that first writes it. Linux says
which node that is. CPUs that a launcher or the user has chosen (`torchrun --numa-binding`,
`taskset`, cgroups) are narrowed down, or kept where none of them is on that node.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

SYSTEM = Path("/sys")
NODES, DEVICES = "devices/system/node", "bus/pci/devices"


def bind_to_node_of(gpu: int, system: Path = SYSTEM) -> int | None:
    """Keep this process on the CPUs of a GPU's node; returns that node.

    None where the host has one node, or does not say, or other CPUs were chosen.
    """
    properties: Any = torch.cuda.get_device_properties(gpu)
    where = (properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id)
    return bind_to_node_at("{:04x}:{:02x}:{:02x}.0".format(*where), system)


def bind_to_node_at(address: str, system: Path = SYSTEM) -> int | None:
    """The same of a device of this PCI address."""
    try:
        nodes = _numbers((system / NODES / "online").read_text())
        node = int((system / DEVICES / address / "numa_node").read_text())
        if len(nodes) == 1 or node not in nodes:  # -1: unknown
            return None
        near = _numbers((system / NODES / f"node{node}" / "cpulist").read_text())
        if not (chosen := os.sched_getaffinity(0) & near):
            return None
        os.sched_setaffinity(0, chosen)
    except (OSError, ValueError, AttributeError):  # no Linux, no /sys, or no right to
        return None
    return node


def _numbers(text: str) -> set[int]:
    """The numbers in Linux's `0-3,8-11`."""
    ranges = (part.split("-") for part in text.strip().split(",") if part)
    return {each for ends in ranges for each in range(int(ends[0]), int(ends[-1]) + 1)}
