"""Training time against cost, over sizes of the cluster (the paper, section Trade-off).

Results on some GPUs are extrapolated to clusters of other sizes by data
parallelism: the batch grows with the cluster, the throughput of a GPU stays.
Large batches need more samples for the same loss, by the critical batch size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bfpp.sim.search.outcomes import Outcome
from bfpp.sim.theory.batch import training_samples

SECONDS_A_DAY = 86_400.0


@dataclass(frozen=True)
class TrainingCost:
    """A whole training on `gpus` GPUs: its time and its cost.

    `outcome` is what it extrapolates; `batch` is in samples, `days` of wall
    time, `gpu_days` over all GPUs.
    """

    gpus: int
    batch: float
    days: float
    gpu_days: float
    outcome: Outcome

    def price(self, per_gpu_hour: float) -> float:
        """Cost of the GPUs, in the currency of a GPU-hour's price."""
        return self.gpu_days * 24 * per_gpu_hour


def training(outcome: Outcome, gpus: int, critical_batch: float) -> TrainingCost:
    """The training that an outcome makes on `gpus`."""
    searched = outcome.configuration.degrees.devices
    batch = outcome.configuration.batch * gpus / searched
    seconds = training_samples(batch, critical_batch) / outcome.samples_per_second
    gpu_days = seconds * searched / SECONDS_A_DAY
    return TrainingCost(gpus, batch, gpu_days / gpus, gpu_days, outcome)


def tradeoff(
    outcomes: Iterable[Outcome], sizes: Sequence[int], critical_batch: float
) -> list[TrainingCost]:
    """For each size of the cluster, the training that ends first (and so costs least).

    None for a size that only parts of data-parallel replicas would fill.
    """
    fitting = [outcome for outcome in outcomes if outcome.fits]
    every = (
        [training(each, gpus, critical_batch) for each in fitting if _fills(each, gpus)]
        for gpus in sizes
    )
    return [min(some, key=lambda candidate: candidate.gpu_days) for some in every if some]


def _fills(outcome: Outcome, gpus: int) -> bool:
    """True if whole replicas fill so many devices."""
    degrees = outcome.configuration.degrees
    return gpus * degrees.dp % degrees.devices == 0
