"""Our runtime on one GPU beside the prediction of the same step: seconds, MFU and peak memory.

Twice: with the preset of that GPU as it is shipped, and with constants that are measured first.
All layers are on the one GPU, in one stage or in several.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch

from bfpp.executor.backends.local import LocalBackend
from bfpp.executor.job import Job
from bfpp.executor.lanes import Device, Streams, Threads
from bfpp.executor.settings import Activations, BackendName, Precision
from bfpp.executor.training import Trainer
from bfpp.schedules.recomputation import FULL_RECOMPUTATION, parse_recomputation
from bfpp.sim.cluster import Cluster
from bfpp.sim.engines import simulate
from bfpp.sim.experiment import Experiment
from bfpp.sim.memory import GIGABYTE
from bfpp.sim.model import Transformer
from bfpp.sim.prediction import predict
from bfpp.trained_model import transformer_source

STEPS, WARM_UP = 3, 2

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
            precision=Precision.BFLOAT16,
            activations=Activations.RECOMPUTE if is_full else Activations.KEEP,
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
)


def trainer_of(job: Job) -> Trainer:
    """Who runs a job's steps, all in this process."""
    device, plan = job.local_device(), job.plan()
    lanes: Device = Streams(device) if job.uses_gpu else Threads(1)
    with device:  # weights are drawn there
        backend = LocalBackend(plan, lanes)
    return Trainer(plan, backend)


def measured(job: Job) -> dict[str, float]:
    """Seconds of a step, and its peak memory."""
    trainer = trainer_of(job)
    torch.cuda.reset_peak_memory_stats()
    reports = list(trainer.run(range(job.steps)))[WARM_UP:]
    trainer.close()
    trainer.backend.close()
    return {
        "seconds": median(report.elapsed for report in reports),
        "tasks": median(report.seconds for report in reports),
        "allocated": torch.cuda.max_memory_allocated() / GIGABYTE,
        "reserved": torch.cuda.max_memory_reserved() / GIGABYTE,
    }


def predicted(case: Case, cluster: Cluster | str) -> Mapping[str, Any]:
    """What the simulator says of the same step."""
    experiment = case.experiment.changed(cluster=cluster)
    timeline = simulate(experiment.graph(), experiment.costs)
    predicted = predict(timeline, experiment.require_physical())
    return {"seconds": timeline.step_time, **predicted}


def rows(clusters: Mapping[str, Cluster | str]) -> Iterator[dict[str, Any]]:
    for case in CASES:
        row: dict[str, Any] = {
            "model": case.model,
            "schedule": case.schedule,
            "stages": case.loops,
            "batch": f"{case.microbatches} x {case.microbatch_size}",
            "recompute": case.recompute,
        }
        try:
            found = measured(case.job)
        except torch.OutOfMemoryError:
            found = {}
        finally:
            gc.collect()
            torch.cuda.empty_cache()
        row["measured"] = found
        for name, cluster in clusters.items():
            row[name] = predicted(case, cluster)
        yield row
