"""Our runtime on one GPU, and the prediction of the same step: seconds, MFU and peak memory.

Predicted three times: with the preset of that GPU, with constants that are measured first, and from
measured layers: the passes of one layer of each kind, and updates, as `bfpp calibrate` writes them
(nothing is offloaded there). All layers are on the one GPU, in one stage or in several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from multiprocessing import get_context
from statistics import fmean
from time import perf_counter
from typing import Any, TypeVar

import torch

from benchmarks.helpers.measure import Results
from bfpp.executor.measure.host_dispatch import local_trainer
from bfpp.executor.measure.passes import CalibrationWork, Effort
from bfpp.executor.measure.passes import calibrate as measure_layers
from bfpp.executor.processes import launch
from bfpp.executor.settings import Activations, BackendName, DType
from bfpp.executor.train.job import Job
from bfpp.launchers.own.model import transformer_source
from bfpp.options.running.measuring import of_device
from bfpp.schedules.settings.offloading import ALL, OFF
from bfpp.schedules.settings.recomputation import FULL_RECOMPUTATION, parse_recomputation
from bfpp.sim.cluster.cluster import Cluster
from bfpp.sim.costs.measured.profile import read_profile
from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.experiment.prediction import predict
from bfpp.sim.measurements.calibration import calibrate
from bfpp.sim.models.model import Transformer
from bfpp.traces.timeline.units import GIGABYTE

STEPS, WARM_UP = 5, 2

Found = TypeVar("Found")

LLAMA = Transformer(
    "llama", 16, 2048, 32, 4096, 32768, mlp=8192, kv_heads=8,
    gated=True, norm="rms", positions="rotary", tied_embeddings=False,
)  # fmt: skip
GPT = Transformer("gpt", 24, 1024, 16, 1024, 50304, tied_embeddings=False, dropout=False)

MODELS = {
    "Llama 0.3B": replace(LLAMA, hidden=1024, heads=16, kv_heads=16, mlp=2816, sequence=2048),
    "Llama 1.1B": LLAMA,
    "Llama 2.0B": replace(
        LLAMA, layers=20, hidden=2560, heads=20, kv_heads=4, mlp=7680, sequence=8192
    ),
    "GPT 0.4B": GPT,
    "GPT 1.4B": replace(GPT, hidden=2048, sequence=2048),
}


@dataclass(frozen=True)
class Case:
    """A model, and how it is trained."""

    model: str
    schedule: str
    loops: int
    microbatches: int
    microbatch_size: int = 1
    recompute: str = "none"
    offload: int = OFF
    offload_share: float = 1.0

    @property
    def experiment(self) -> Experiment:
        return Experiment(
            self.schedule,
            pp=1,
            loops=self.loops if self.schedule == "breadth-first" else None,
            units_per_stage=None if self.schedule == "breadth-first" else self.loops,
            microbatches=self.microbatches,
            microbatch_size=self.microbatch_size,
            model=MODELS[self.model],
            implementation="bfpp",
            recompute=self.recompute,
            offload=self.offload,
            offload_share=self.offload_share,
            precision="bf16",
        )

    @property
    def job(self) -> Job:
        configuration = self.experiment.configuration
        policy = parse_recomputation(self.recompute)
        is_full = policy == FULL_RECOMPUTATION
        return Job(
            schedule=configuration.schedule,
            layout=configuration.layout,
            communication=configuration.communication,
            model=transformer_source(MODELS[self.model], None, is_causal=True),
            steps=WARM_UP + STEPS,
            backend=BackendName.LOCAL,
            device="cuda",
            microbatch_size=self.microbatch_size,
            precision=DType.BFLOAT16,
            activations=Activations.RECOMPUTE if is_full else Activations.KEEP,
            offload_share=self.offload_share,
            **({} if is_full else {"recomputation": policy}),
        )


CASES = (
    Case("Llama 1.1B", "1f1b", 1, 4),
    Case("GPT 0.4B", "1f1b", 1, 4, 8),
    Case("Llama 0.3B", "breadth-first", 4, 4, 4),
    Case("Llama 1.1B", "breadth-first", 16, 4, recompute="full"),
    Case("GPT 1.4B", "gpipe", 4, 4, 2),
    Case("Llama 0.3B", "1f1b", 1, 8),
    Case("Llama 2.0B", "1f1b", 1, 2),
    Case("Llama 1.1B", "gpipe", 1, 4),
    Case("Llama 1.1B", "breadth-first", 4, 4, recompute="selective"),
    Case("GPT 0.4B", "1f1b", 1, 16),
    Case("GPT 1.4B", "1f1b", 1, 4, 4, recompute="selective"),
    Case("GPT 0.4B", "breadth-first", 24, 8, 4, recompute="full"),
    Case("Llama 2.0B", "breadth-first", 20, 4, recompute="full"),
    Case("GPT 1.4B", "breadth-first", 8, 4, 2),
    Case("Llama 0.3B", "gpipe", 2, 4, 8),
    Case("Llama 1.1B", "gpipe", 1, 4, offload=ALL),
    Case("GPT 1.4B", "gpipe", 4, 4, 2, offload=ALL, offload_share=0.25),
    Case("Llama 0.3B", "breadth-first", 4, 4, 4, offload=4),
)


def measured(job: Job) -> dict[str, float]:
    """Seconds of a step, and its peak memory."""
    trainer = local_trainer(job)
    for _ in trainer.run(range(WARM_UP)):
        pass
    begin = perf_counter()
    for _ in trainer.run(range(WARM_UP, WARM_UP + STEPS)):
        pass
    seconds = (perf_counter() - begin) / STEPS
    trainer.close()
    trainer.backend.close()
    return {
        "seconds": seconds,
        "allocated": torch.cuda.max_memory_allocated() / GIGABYTE,
        "reserved": torch.cuda.max_memory_reserved() / GIGABYTE,
    }


def predicted(case: Case, cluster: Cluster | str) -> dict[str, Any]:
    """The simulator's prediction of the same step."""
    experiment = case.experiment.changed(cluster=cluster)
    timeline = simulate(experiment.graph(), experiment.costs)
    return {"seconds": timeline.step_time, **predict(timeline, experiment.require_physical())}


def calibrated() -> Cluster:
    """The cluster of this machine's GPU, with constants that are measured now."""
    found = of_device("cuda", quick=True, members=1)
    return calibrate(found.cluster, found.rows).cluster


def from_layers(job: Job) -> float:
    """Predicted seconds of a step, from the measured passes of a layer of each kind."""
    measured = launch(measure_layers, CalibrationWork(job, Effort()), 1)
    assert measured is not None
    profile = read_profile("profile", {"about": {}, **measured})
    return simulate(job.plan().graph, profile).step_time


def apart(action: Callable[..., Found], *arguments: object) -> Found:
    """Run an action in a process of its own, which has all of the GPU's memory.

    This process never uses CUDA itself: it could not fork then.
    """
    with get_context("fork").Pool(1) as pool:
        return pool.apply(action, arguments)


def row_of(
    case: Case, clusters: Mapping[str, Cluster | str], layers: float | None
) -> dict[str, Any]:
    """A measured step, what each cluster predicts, and the seconds by measured `layers`."""
    found = measured(case.job)
    row: dict[str, Any] = {
        "model": case.model,
        "schedule": case.schedule,
        "stages": case.loops,
        "micro-batches": f"{case.microbatches} x {case.microbatch_size}",
        "recompute": case.recompute,
        "offloaded": f"{case.offload_share:.0%}" if case.offload else "no",
        "measured (ms)": f"{1e3 * found['seconds']:.1f}",
    }
    for name, cluster in clusters.items():
        known = predicted(case, cluster)
        share = known["mfu"] * known["seconds"] / found["seconds"]
        row["MFU (%)"] = f"{100 * share:.1f}"
        row[f"{name} (ms)"] = f"{1e3 * known['seconds']:.1f}"
        row[f"{name}, error (%)"] = _error(known["seconds"], found["seconds"])
        row["allocated (GiB)"] = f"{found['allocated']:.2f}"
        row["predicted (GiB)"] = f"{known['memory_gb']:.2f}"
        row["memory, error (%)"] = _error(known["memory_gb"], found["allocated"])
    if layers is not None:
        row["layers (ms)"] = f"{1e3 * layers:.1f}"
        row["layers, error (%)"] = _error(layers, found["seconds"])
    return row


def _error(predicted: float, measured: float) -> str:
    return f"{100 * (predicted / measured - 1):+.1f}"


def run() -> Results:
    own = apart(calibrated)
    clusters: dict[str, Cluster | str] = {"preset": own.name, "calibrated": own}
    rows: list[dict[str, Any]] = []
    remarks: list[str] = []
    for case in CASES:
        try:
            layers = None if case.offload else from_layers(case.job)
            rows.append(apart(row_of, case, clusters, layers))
        except torch.OutOfMemoryError as error:
            remarks.append(f"{case} runs out of memory: {str(error).partition('.')[0]}.")
            continue
        print(*rows[-1].values(), flush=True)
    errors = {
        each: fmean(abs(float(row[key])) for row in rows if (key := f"{each}, error (%)") in row)
        for each in (*clusters, "layers", "memory")
    }
    return Results(
        "Steps on one GPU, predicted and measured",
        "steps within 10 % with measured constants, memory within 5 %",
        rows,
        [
            f"Mean error of the step time: {errors['preset']:.1f} % with the preset {own.name}.",
            f"With constants that were measured first: {errors['calibrated']:.1f} %.",
            f"From measured layers, where nothing is offloaded: {errors['layers']:.1f} %.",
            f"Of the peak of allocated memory: {errors['memory']:.1f} %.",
            *remarks,
        ],
    )
