"""Times a machine's kernels, its host and its links, one kind after the other.

`bfpp.executor.measure.passes` times the layers of one model; these measurements are of no model.
Each is a `Row` whose kind says what ran. Constants are fitted to them in
`bfpp.sim.measurements.calibration`.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

import torch

from bfpp.executor.devices.out_of_memory import shortage
from bfpp.executor.measure.clock import Clock
from bfpp.executor.measure.collectives import Exchanges, collectives
from bfpp.executor.measure.designs import FULL, ON_CPU, QUICK, Design
from bfpp.executor.measure.host_dispatch import dispatch
from bfpp.executor.measure.kernels import Row, attention, gemms, streaming
from bfpp.executor.measure.machine import copies, host, sustained
from bfpp.executor.processes import RunFailed, launch
from bfpp.executor.processes.environment import is_joined
from bfpp.schedules import InvalidConfiguration

__all__ = [
    "Row",
    "about_device",
    "design_of",
    "measure",
    "measure_links",
    "members_of",
]

PARTS = (streaming, gemms, host, dispatch, copies, attention, sustained)


def design_of(device: torch.device, quick: bool) -> Design:
    """The shapes and sizes that are measured on a device."""
    if device.type != "cuda":
        return ON_CPU
    return QUICK if quick else FULL


def members_of(device: torch.device) -> int:
    """The number of devices to measure together: torchrun's processes, or all GPUs here."""
    if is_joined():
        return int(os.environ["WORLD_SIZE"])
    return torch.cuda.device_count() if device.type == "cuda" else 1


def measure(device: torch.device, design: Design) -> Iterator[Row]:
    """Yields each measurement of one device as soon as it is made.

    Raises `RunFailed` for what this device or this build of torch cannot run.
    """
    clock = Clock(device, design.repetitions)
    for part in PARTS:
        try:
            yield from part(clock, design)
        except RuntimeError as error:
            reason = shortage(error) or next(iter(str(error).splitlines()), "failed")
            raise RunFailed(0, f"{part.__name__}: {reason}", "") from error
        if clock.on_gpu:
            torch.cuda.empty_cache()


def measure_links(device: torch.device, design: Design, members: int) -> list[Row] | None:
    """Collectives among `members` devices, and transfers between two of them.

    Under torchrun, None in all processes but the first. Raises `InvalidConfiguration` for more
    GPUs than the machine has.
    """
    on_gpus = device.type == "cuda"
    if on_gpus and members > (gpus := torch.cuda.device_count()):
        raise InvalidConfiguration("members", f"{members} GPUs, but this machine has {gpus}")
    if members == 1 and not is_joined():
        return []
    return launch(collectives, Exchanges(design.sent, on_gpus, design.repetitions), members)


def about_device(device: torch.device) -> dict[str, str | int]:
    """The device's name and size, and the versions of its software."""
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
