"""Many experiments at once: every combination of some values, as records for a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from bfpp.api.predictions import predict
from bfpp.api.searching import evaluated
from bfpp.api.workers import Workers
from bfpp.schedules import InvalidConfiguration, Schedule
from bfpp.schedules.families.registry import DEFAULT_SCHEDULES
from bfpp.sim.cluster.cluster import Cluster, load_cluster
from bfpp.sim.cluster.software_profiles import implementation_on
from bfpp.sim.engines.engines import DEFAULT
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.models.model import Transformer, load_model
from bfpp.sim.search.enumeration import configurations
from bfpp.sim.search.outcomes import Outcomes
from bfpp.sim.search.problem import Problem, usual_ranges
from bfpp.sim.search.pruning import evaluate_best
from bfpp.sim.search.ranking import ranked


def sweep(
    experiment: Experiment, *, engine: str = DEFAULT, **values: Iterable[Any]
) -> list[dict[str, Any]]:
    """Predict the experiment with every combination of these values.

    A record holds the combination and the prediction's numbers, times in seconds; for an
    impossible combination it holds the reason as `refused`. `pandas.DataFrame(records)` is a
    table of them; `pandas.json_normalize(records)` also spreads nested values, such as the parts
    of memory, over columns.

    >>> records = sweep(Experiment("breadth-first", microbatches=8), pp=[2, 4], loops=[1, 4])
    >>> [(each["pp"], each["loops"], round(each["bubble"], 3)) for each in records]
    [(2, 1, 0.125), (2, 4, 0.031), (4, 1, 0.375), (4, 4, 0.094)]
    """
    names = list(values)
    return [
        _record(experiment, dict(zip(names, combination, strict=True)), engine)
        for combination in product(*values.values())
    ]


def search(
    model: Transformer | str,
    cluster: Cluster | str,
    gpus: int | Sequence[int],
    batch: int | Sequence[int],
    *,
    schedules: Sequence[str | Schedule] = (),
    implementation: str | None = None,
    cp: Sequence[int] = (1,),
    ep: Sequence[int] = (),
    precision: Sequence[str] = (),
    recompute: Sequence[str] = (),
    workers: int = 1,
    **full_sharding: Sequence[Any],
) -> list[dict[str, Any]]:
    """Every way to train a model on some GPUs that fits, highest throughput first.

    A record holds the values of the experiment and its prediction; `batch` is in samples,
    and several are searched together, as are numbers of GPUs, sizes of context- and
    expert-parallel groups, precisions, what is recomputed, and choices of full sharding:
    `gather_per=("run", "step")`, `reduce_per`, `run_length`, `weight_buffers`, `prefetch`.
    The `implementation` is the cluster's, unless one is named.
    With more than one of `workers`, they are processes, and a script needs
    `if __name__ == "__main__"`.

    >>> from dataclasses import replace
    >>> small = replace(load_model("bert-6.6b"), layers=4)
    >>> best, *others = search(small, "dgx1-v100", gpus=2, batch=8, schedules=["1f1b"])
    >>> best["tflops_per_gpu"] > others[-1]["tflops_per_gpu"]
    True
    """
    cluster = load_cluster(cluster) if isinstance(cluster, str) else cluster
    model = load_model(model) if isinstance(model, str) else model
    software = implementation_on(cluster, implementation)
    said = {"cp": cp, "ep": ep, "precision": precision, "recompute": recompute, **full_sharding}
    ranges: dict[str, Any] = {name: tuple(values) for name, values in said.items() if values}
    problem = Problem(
        model,
        cluster,
        tuple(gpus) if isinstance(gpus, Sequence) else (gpus,),
        tuple(batch) if isinstance(batch, Sequence) else (batch,),
        tuple(schedules or DEFAULT_SCHEDULES),
        software,
        **(usual_ranges(model, software) | ranges),
    )
    chosen = configurations(problem)
    if workers == 1:
        parts = [evaluate_best(problem, chosen).outcomes]
    else:
        with Workers(count=workers) as several:
            parts = [part.outcomes for part in evaluated(problem, chosen, several)]
    return [outcome.record for outcome in ranked(Outcomes.joined(parts))] if parts else []


def _record(experiment: Experiment, chosen: Mapping[str, Any], engine: str) -> dict[str, Any]:
    shown = {name: getattr(value, "name", value) for name, value in chosen.items()}
    try:
        record = predict(experiment.changed(**chosen), engine).record
    except InvalidConfiguration as error:
        return {**shown, "refused": str(error)}
    return {**{name: value for name, value in record.items() if name != "ranks"}, **shown}
