"""Predicted memory of a run's ranks, by its task graph and its model's sizes.

State and buffers are counted (`bfpp.executor.memory.sizes`), and what it takes to make them.
Activations are those of the cost model's operators, of a transformer of ours; where whole stages
are recomputed, stages keep their inputs, whatever the model. What is not known is left out:
activations of other models, and what an optimizer allocates while it updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from bfpp.executor.settings import Activations, BackendName
from bfpp.schedules import Degrees, InvalidConfiguration
from bfpp.schedules.columns import Seconds as Numbers
from bfpp.schedules.settings.attention import Attention
from bfpp.schedules.settings.precision import parse_precision
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.cluster.software_profiles import FSDP
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.costs.units.activations import (
    TRANSFER_BUFFERS,
    UnitActivations,
    inputs_alone,
    unit_activations,
)
from bfpp.sim.memory.memory_over_time import held_over_time
from bfpp.sim.models.model import Transformer, model_flops
from bfpp.sim.models.unit_layers import Layers
from bfpp.traces.timeline.memory_record import PARTS, MemoryRecord
from bfpp.traces.timeline.units import GIGABYTE

if TYPE_CHECKING:
    from bfpp.executor.memory.sizes import StartMemory
    from bfpp.executor.model.transformer.transformer import TransformerSizes
    from bfpp.executor.plan.plan import Plan
    from bfpp.executor.train.job import Job

EAGER = replace(FSDP, name="bfpp", fused_kernels=False, eager=True)
"""Plain PyTorch: the loss is not fused, and keeps its input in full precision."""

ANY_CLUSTER = "dgx-h100"
"""Any cluster: memory on a device does not depend on it."""


class Unpadded(Transformer):
    """A transformer whose vocabulary is not padded."""

    def padded_vocabulary(self, tp: int = 1) -> int:
        """S_voc as it is."""
        del tp
        return self.vocabulary


def start_of_job(job: Job, plan: Plan) -> list[StartMemory]:
    """Predicted memory of each process of a job before its first step."""
    from bfpp.executor.memory.sizes import start_bytes
    from bfpp.executor.run.resume import pieces_read

    places = [(*job.ranks_of(process),) for process in range(job.processes)]
    restores, read = job.saving is not None, pieces_read(job.saving)
    known = {
        ranks: start_bytes(plan, ranks, restores=restores, read=read)
        for ranks in dict.fromkeys(places)
    }
    return [known[ranks] for ranks in places]


def require_memory(
    job: Job, plan: Plan, predicted: Sequence[MemoryRecord], starts: Sequence[StartMemory]
) -> None:
    """Raise `InvalidConfiguration` where this machine, or one of its GPUs, cannot hold the ranks.

    Ranks that share memory need what each keeps for the whole step; one with a GPU of its own, its
    peak. Before the first step, processes make their layers, all at the same time. Of a CPU run on
    several machines, it is not known here which ranks share one.
    """
    from bfpp.executor.processes.environment import is_joined

    if job.backend is BackendName.CUDA:
        peaks = [float(held.on_device(plan.graph).total.max()) for held in predicted]
        _require(max(peaks, default=0.0), "cuda", "the peak of a rank takes")
    elif job.uses_gpu or not is_joined():
        parts = PARTS["state"], PARTS["gradients"]
        kept = sum(held.at_peak.get(name, 0.0) for held in predicted for name in parts)
        what = "weights, gradients and states of the optimizer take"
        _require(job.dp * job.tp * kept, job.device, what)
    before = "making the model takes"
    if job.uses_gpu:
        most = max((start.host for start in starts), default=0)
        _require(job.processes_here * most, "cpu", before)
    elif not is_joined():
        _require(sum(start.peak for start in starts), "cpu", before)


def _require(needed: float, device: str, what: str) -> None:
    from bfpp.executor.devices.devices import device_named, memory_of

    if needed > (there := memory_of(device_named(device))):
        where = "this machine" if device == "cpu" else "the GPU"
        raise InvalidConfiguration(
            "memory_check",
            f"{what} {needed / GIGABYTE:.3g} GiB; {where} has {there / GIGABYTE:.3g} GiB",
        )


def memory_of_job(job: Job, plan: Plan) -> list[MemoryRecord]:
    """Predicted memory of a job's ranks; nothing where the model is not known."""
    from bfpp.executor.model.sources import TransformerSource

    if not job.measures_memory:
        return []
    return predicted_memory(
        plan, job.model.sizes if isinstance(job.model, TransformerSource) else None
    )


def peak_seconds_of_step(job: Job, plan: Plan, cluster: str) -> float | None:
    """Seconds of a step's model FLOPs at the peak of a cluster's GPUs, for the MFU.

    Of a transformer of ours; attention counts as if nothing were masked. Raises
    `InvalidConfiguration` for a precision in which the cluster has no peak.
    """
    from bfpp.executor.model.sources import TransformerSource

    if not isinstance(job.model, TransformerSource):
        return None
    flops = model_flops(_model(job.model.sizes), plan.microbatches * plan.microbatch_size)
    peak = load_cluster(cluster).device.peak_of(parse_precision(str(plan.precision)))
    return flops / (job.workers * peak)


def predicted_memory(plan: Plan, sizes: TransformerSizes | None) -> list[MemoryRecord]:
    """Predicted memory of each rank; `sizes` are those of a built-in transformer, if it is one."""
    from bfpp.executor.memory.sizes import resident_bytes

    layout = plan.graph.layout
    largest = max((form.values.shape.bytes for form in plan.forms[:-1]), default=0)
    payloads = TRANSFER_BUFFERS * largest if layout.pp > 1 else 0
    others = [
        {**resident_bytes(plan, rank), "workspace": payloads, "update": 0}
        for rank in range(layout.pp)
    ]
    activations, unknown = _activations(plan, sizes)
    offloaded = activations.saved * plan.offload_share
    memory = held_over_time(plan.graph, activations, others, offloaded)
    known = [title for name, title in PARTS.items() if name not in ("update", *unknown)]
    return [held.only(known) for held in memory]


def _activations(
    plan: Plan, sizes: TransformerSizes | None
) -> tuple[UnitActivations, tuple[str, ...]]:
    """Bytes of each unit's activations, and the parts that are not known."""
    if plan.keeps_float32:
        sizes = None
    activations = _described(plan, sizes) if sizes else _nothing(plan)
    if plan.activations is Activations.RECOMPUTE:
        inputs = np.array([0, *(form.values.shape.bytes for form in plan.forms[:-1])], dtype=float)
        return inputs_alone(activations, inputs), () if sizes else ("transient",)
    return activations, () if sizes else ("saved", "transient")


def _nothing(plan: Plan) -> UnitActivations:
    nothing: Numbers = np.zeros(plan.graph.layout.units)
    return UnitActivations(*[nothing] * 6)


def _described(plan: Plan, sizes: TransformerSizes) -> UnitActivations:
    """By the operators of our transformer, in the layers of each unit."""
    from bfpp.executor.model.recomputation import counted_layers

    physical = PhysicalCosts(
        _model(sizes),
        load_cluster(ANY_CLUSTER),
        Degrees(tp=plan.tp),
        plan.microbatch_size,
        EAGER,
        plan.recomputation,
        Attention.FUSED,
        plan.sequence_parallel,
        parse_precision(str(plan.precision)),
    )
    counted = {*counted_layers(plan.model)}
    layers = [len(counted & {*cut}) for cut in plan.cuts]
    stages = plan.graph.layout.stage_of_unit.tolist()
    again = [
        plan.recomputation.of_stage(stage).layers_of(count)
        for stage, count in zip(stages, layers, strict=True)
    ]
    return unit_activations(physical, Layers(np.array([layers]), np.array([again])))


def _model(sizes: TransformerSizes) -> Transformer:
    """The description of a transformer of ours."""
    return Unpadded(
        "run",
        layers=sizes.layers,
        hidden=sizes.hidden,
        heads=sizes.heads,
        sequence=sizes.context,
        vocabulary=sizes.vocabulary,
        mlp=sizes.mlp,
        kv_heads=sizes.kv_heads,
        head_layers=sizes.head_layers,
        gated=sizes.gated,
        tied_embeddings=False,
        norm=sizes.norm,
        positions=sizes.positions,
        head_dim=sizes.head_dim,
        window=sizes.window,
        causal=sizes.causal or sizes.window is not None,  # within a window, to earlier ones alone
        dropout=False,
    )
