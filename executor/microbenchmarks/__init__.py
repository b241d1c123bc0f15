"""Measures what a machine's kernels, host and links take, one kind after the other.

Unlike `bfpp.executor.calibration`, which times the layers of one model, these measurements know
no model. Each is a `Row`, whose kind says what ran; what to make of them is for others to know.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

import torch

from bfpp.executor.microbenchmarks.clock import Clock
from bfpp.executor.microbenchmarks.collectives import Exchanges, collectives
from bfpp.executor.microbenchmarks.designs import FULL, ON_CPU, QUICK, Design
from bfpp.executor.microbenchmarks.kernels import Row, attention, products, streaming
from bfpp.executor.microbenchmarks.machine import copies, host, sustained
from bfpp.executor.processes import launch
from bfpp.schedules import InvalidConfiguration

__all__ = [
    "Row",
    "about_device",
    "design_of",
    "device_of",
    "measure",
    "measure_links",
    "members_of",
]

PARTS = (streaming, products, host, copies, attention, sustained)


def device_of(name: str) -> torch.device:
    """The device of that name; raises `InvalidConfiguration` if it is not here."""
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or not (number or "0").isdecimal():
        raise InvalidConfiguration("device", f"must be cpu, cuda or cuda:N, not {name}")
    if kind == "cuda" and int(number or 0) >= (gpus := torch.cuda.device_count()):
        raise InvalidConfiguration("device", f"{name} does not exist: this machine has {gpus} GPUs")
    return torch.device(kind, int(number or 0))


def design_of(device: torch.device, quick: bool) -> Design:
    """What is measured on a device."""
    if device.type != "cuda":
        return ON_CPU
    return QUICK if quick else FULL


def members_of(device: torch.device) -> int:
    """How many such devices this machine has."""
    return torch.cuda.device_count() if device.type == "cuda" else 1


def measure(device: torch.device, design: Design) -> Iterator[Row]:
    """Every measurement of one device, as soon as it is made."""
    clock = Clock(device, design.repetitions)
    for part in PARTS:
        yield from part(clock, design)
        if clock.on_gpu:
            torch.cuda.empty_cache()


def measure_links(device: torch.device, design: Design, members: int) -> list[Row]:
    """Collectives among `members` devices, and transfers."""
    work = Exchanges(design.sent, device.type == "cuda", design.repetitions)
    return launch(collectives, work, members) or []


def about_device(device: torch.device) -> dict[str, str | int]:
    """Which device it is, and whose software runs on it."""
    if device.type != "cuda":
        return {"device": platform.processor() or "CPU", "torch": torch.__version__}
    known = torch.cuda.get_device_properties(device)
    return {
        "device": known.name,
        "memory": known.total_memory,
        "multiprocessors": known.multi_processor_count,
        "driver": _driver(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "unknown",
        "cudnn": torch.backends.cudnn.version() or "unknown",
    }


def _driver() -> str:
    """The version of NVIDIA's driver (Linux)."""
    version = Path("/proc/driver/nvidia/version")
    words = version.read_text().split() if version.exists() else []
    return next((word for word in words if word[:1].isdigit()), "unknown")
