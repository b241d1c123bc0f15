"""The devices of this machine, by the names that torch has for them."""

from __future__ import annotations

import os
import re

import torch

from bfpp.schedules import InvalidConfiguration

FIELD = "device"


def device_named(name: str) -> torch.device:
    """The CPU, or a GPU by its number; raises `InvalidConfiguration` if this machine has none such.

    Torch would take a number that is too large for another one.
    """
    if name == "cpu":
        return torch.device(name)
    if not re.fullmatch("cuda(:[0-9]{1,4})?", name):
        raise InvalidConfiguration(FIELD, f"must be cpu, cuda or cuda:N, not {name}")
    number = int(name.partition(":")[2] or 0)
    if number >= (gpus := torch.cuda.device_count()):
        raise InvalidConfiguration(FIELD, f"{name} does not exist: this machine has {gpus} GPUs")
    return torch.device("cuda", number)


def memory_of(device: torch.device) -> float:
    """The bytes of a device's memory; of a CPU's, all of this machine."""
    if device.type == "cpu":
        return float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
    return float(torch.cuda.get_device_properties(device).total_memory)


def multiprocessors_of(device: torch.device) -> int:
    """The multiprocessors (SMs) of a GPU."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
