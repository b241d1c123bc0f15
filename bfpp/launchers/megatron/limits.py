"""Limits of Megatron-LM: what no flag of it can launch, and how it communicates.

Each limit reads of a `Launch` the values that it is about, and no others: a search asks it of these
alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bfpp.launchers.launch import Launch, missing_without_pipeline
from bfpp.schedules import Communication, Layout, Per, Sharding, registered_name
from bfpp.schedules.settings.offloading import ALL, OFF
from bfpp.schedules.settings.precision import Precision

OWN = "1f1b", "depth-first"
"""Megatron-LM's schedules: 1F1B, and interleaved 1F1B."""


def of_pipeline(launch: Launch) -> Iterator[str]:
    """Orders of passes that it does not run."""
    layout, name = launch.layout, registered_name(launch.schedule)
    yield from missing_without_pipeline(launch)
    if layout.pp == 1:
        return
    if layout.loops > 1 and layout.microbatches < layout.pp:
        yield "fewer micro-batches than pipeline ranks: interleaved 1F1B takes no fewer"
    elif name == "breadth-first" and layout.loops > 1:
        yield (
            "breadth-first; a group of all micro-batches runs their forward passes in its order, "
            "and backward passes begin as soon as the last stage has one to run"
        )
    elif name not in OWN or (name == "depth-first" and layout.loops == 1):
        runs = "interleaved 1F1B" if layout.loops_around and layout.loops > 1 else "1F1B"
        yield f"the schedule {launch.schedule.reference}; these flags run {runs}"


def of_communication(launch: Launch) -> Iterator[str]:
    """Sharding without a flag."""
    if launch.sharding is Sharding.FULL:
        if Per.STEP in (launch.gather_per, launch.reduce_per):
            yield "gathering or reducing once a step: Megatron-FSDP does for each micro-batch"
        elif launch.layout.microbatches > 1 and launch.run_length != 1:
            most = f" of at most {launch.run_length}" if launch.run_length else ""
            yield f"gathering once for a run of micro-batches{most}: Megatron-FSDP does for each"


def of_offload(launch: Launch) -> Iterator[str]:
    """Offloading of activations without a flag."""
    if launch.offload == OFF:
        return
    modules = launch.offload_modules
    if not modules:
        yield f"offloading all that a pass saves, or {launch.offload_share:g} of it"
    elif launch.offload != ALL:
        yield f"--offload {launch.offload}; here every pass is offloaded"
    if "attn_proj" in modules and "core_attn" not in modules:
        yield "attn_proj without core_attn, which needs the same tensor"


def of_setting(launch: Launch) -> Iterator[str]:
    """Precisions, and what is recomputed, without a flag."""
    if isinstance(launch.recompute.layers, tuple):
        yield f"--recompute {launch.recompute}; here all layers are recomputed"
    if launch.precision is Precision.FP64:
        yield "training in fp64"


def as_run(layout: Layout, communication: Communication) -> Communication:
    """Communication as Megatron-LM's flags have it.

    1F1B does not overlap P2P, and Megatron-FSDP gathers for each micro-batch.
    """
    if layout.pp > 1 and layout.loops == 1:
        communication = replace(communication, pp_overlap=False)
    if communication.sharding is Sharding.FULL and layout.microbatches > 1:
        communication = replace(communication, run_length=1)
    return communication
