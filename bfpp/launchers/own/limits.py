"""Limits of `bfpp run`: what the executor does not train with, and how it communicates."""

from __future__ import annotations

from collections.abc import Iterator

from bfpp.launchers.launch import Launch
from bfpp.schedules import Communication, Layout
from bfpp.schedules.settings.precision import Precision
from bfpp.schedules.settings.recomputation import CORE_ATTENTION, LAYER, MLP
from bfpp.schedules.settings.tensor_overlap import TensorOverlap

PRECISIONS = (Precision.FP64, Precision.FP32, Precision.BF16, Precision.FP16)

RECOMPUTED = {LAYER, CORE_ATTENTION, MLP}
"""What its transformer's layers can compute again."""


def of_pipeline(launch: Launch) -> Iterator[str]:
    """Orders of passes that it does not run."""
    if launch.layout.slices > 1:
        yield f"the schedule {launch.schedule.reference}: slices of micro-batches"


def of_communication(launch: Launch) -> Iterator[str]:
    """Communication that it does not make: there is none such."""
    del launch
    yield from ()


def of_setting(launch: Launch) -> Iterator[str]:
    """Parallelism, precisions and kernels that its transformer does not have."""
    if launch.transformer.experts is not None:
        yield "experts"
    if launch.cp > 1:
        yield "context parallelism"
    if launch.precision not in PRECISIONS:
        yield f"training in {launch.precision}"
    if launch.tp > 1 and launch.tp_overlap is not TensorOverlap.NONE:
        yield "tensor-parallel communication that overlaps GEMMs"
    if others := sorted(launch.recompute.modules - RECOMPUTED):
        yield f"recomputation of {', '.join(others)} alone"


def of_offload(launch: Launch) -> Iterator[str]:
    """Offloading of activations: of all that a pass saves, or of a share."""
    if modules := launch.offload_modules:
        yield f"offloading of {', '.join(sorted(modules))} alone"


def as_run(layout: Layout, communication: Communication) -> Communication:
    """Communication as it is run: as it is said."""
    del layout
    return communication
