"""Many experiments at once: every combination of some values, as rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, product
from typing import Any

from bfpp.api.predictions import predict
from bfpp.api.searching import all_bounds, evaluated, values_of
from bfpp.api.workers import Workers
from bfpp.launchers.limits import ANY, find_target
from bfpp.schedules import InvalidConfiguration, Schedule
from bfpp.schedules.errors import did_you_mean
from bfpp.schedules.graph.notebook import table
from bfpp.schedules.settings.sharding import CHOICES
from bfpp.sim.cluster.cluster import Cluster, load_cluster
from bfpp.sim.cluster.software_profiles import implementation_on
from bfpp.sim.engines.engines import DEFAULT
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.experiment.reading import values_read
from bfpp.sim.experiment.values import OPTIONS
from bfpp.sim.models.model import Transformer, load_model
from bfpp.sim.search.decision import surer_ties_first
from bfpp.sim.search.defaults import USUAL_RISK, usual_ranges, usual_schedules
from bfpp.sim.search.enumeration import configurations
from bfpp.sim.search.outcomes import Outcome, Outcomes
from bfpp.sim.search.problem import DIMENSIONS, RANGES, Problem
from bfpp.sim.search.pruning import Request, evaluate_best, most_promising_first
from bfpp.sim.search.ranking import ranked

MOST_SHOWN = 30
"""Rows that a notebook shows."""


class ResultRow(dict[str, Any]):
    """A configuration and what is predicted of it: values by name, and as attributes.

    Times are in seconds, memory in GiB. What was not predicted is no attribute: MFU and memory of
    abstract costs, or anything of a combination that is `refused`, for the reason given.

    >>> row, *_ = sweep(Experiment("1f1b", microbatches=8), pp=[2, 4])
    >>> row.step_time, row["step_time"], row.pp
    (27.0, 27.0, 2)
    """

    schedule: str
    step_time: float
    bubble: float
    mfu: float
    hfu: float
    tokens_per_second_per_gpu: float
    memory_largest_gb: float
    memory_reserved_gb: float
    fits: bool
    refused: str

    def __init__(self, record: Mapping[str, Any], make: Callable[[], Experiment]) -> None:
        super().__init__(record)
        self._make = make

    @property
    def experiment(self) -> Experiment:
        """The experiment that has these values, to go on with."""
        return self._make()

    def __getattr__(self, name: str) -> Any:
        if name in self and not name.startswith("_"):
            return self[name]
        raise AttributeError(f"the row has no {name!r}; it has {', '.join(self)}", name=name)

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self]


class ResultRows(list[ResultRow]):
    """Rows of a search or a sweep, which pandas, polars and pyarrow take as a table.

    `to_pandas()` makes a DataFrame. Other libraries read its Arrow stream, or the dataframe
    interchange protocol, as `polars.from_dataframe(rows)` does; both need pyarrow.

    >>> rows = sweep(Experiment("1f1b", microbatches=8), pp=[2, 4])
    >>> rows.columns["step_time"]
    [27.0, 33.0]
    """

    @property
    def columns(self) -> dict[str, list[Any]]:
        """Values by name, None where a row has none; nested ones as `memory_parts_gb.weights`."""
        flat = [dict(_flat(row)) for row in self]
        names = dict.fromkeys(name for row in flat for name in row)
        return {name: [row.get(name) for row in flat] for name in names}

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame`."""
        import pandas as pd

        return pd.DataFrame(self.columns)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._arrow().__arrow_c_stream__(requested_schema)

    def __dataframe__(self, nan_as_null: bool = False, allow_copy: bool = True) -> object:
        return self._arrow().__dataframe__(nan_as_null, allow_copy)

    def _arrow(self) -> Any:
        import pyarrow as pa

        return pa.table(self.columns)

    def _repr_html_(self) -> str:
        """The values that differ, and the numbers that are read first, for a notebook."""
        columns = self.columns
        chosen = [
            name for name in columns if name in OPTIONS and len({*map(repr, columns[name])}) > 1
        ]
        names = [*chosen, *(name for name in columns if name in ResultRow.__annotations__)]
        cells = zip(*(map(_in_words, columns[name]) for name in names), strict=True)
        title = (
            f"{len(self)} rows" if len(self) <= MOST_SHOWN else f"{MOST_SHOWN} of {len(self)} rows"
        )
        return table(title, [names, *islice(cells, MOST_SHOWN)])


def _flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _in_words(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def sweep(experiment: Experiment, *, engine: str = DEFAULT, **values: Iterable[Any]) -> ResultRows:
    """Predict the experiment with every combination of these values.

    A row holds the combination and the prediction's numbers, times in seconds; for an
    impossible combination it holds the reason as `refused`. `rows.to_pandas()` is a table of them.

    >>> rows = sweep(Experiment("breadth-first", microbatches=8), pp=[2, 4], loops=[1, 4])
    >>> [(each.pp, each.loops, round(each.bubble, 3)) for each in rows]
    [(2, 1, 0.125), (2, 4, 0.031), (4, 1, 0.375), (4, 4, 0.094)]
    """
    names = list(values)
    return ResultRows(
        _row(experiment, dict(zip(names, combination, strict=True)), engine)
        for combination in product(*values.values())
    )


def search(
    model: Transformer | str,
    cluster: Cluster | str,
    gpus: int | Sequence[int],
    batch: int | Sequence[int],
    *,
    schedules: Sequence[str | Schedule] = (),
    framework: str = ANY,
    implementation: str | None = None,
    risk: float = USUAL_RISK,
    top: int | None = 15,
    workers: int = 1,
    **ranges: Any,
) -> ResultRows:
    """The best ways to train a model on some GPUs, highest throughput first.

    A row holds the values of its experiment and the prediction; `batch` is in samples, and
    several are searched together, as are numbers of GPUs. The `framework` is the one that is to
    launch it: `megatron`, `torchtitan`, `bfpp`, or any of them; the `implementation` is its own, or
    else the cluster's, unless one is named. Those that run out of memory with a higher probability
    than `risk` come last. The `top` best are simulated, with the front of speed against memory;
    with None, all that fit. Other values to search are `ranges`, as `bfpp search` takes them:
    `cp=(1, 2)`, `ep`, `precision`, `recompute`, `tp_overlap`, `cut`, `dp_replicate`, and choices of
    full sharding: `gather_per=("run", "step")`, `reduce_per`, `run_length`, `weight_buffers`,
    `prefetch`. Of what is always searched, `tp=(1, 2)`, `pp`, `loops`, `sharding`, ... keep to some
    values. With more than one of `workers`, they are processes, and a script needs
    `if __name__ == "__main__"`.

    >>> from dataclasses import replace
    >>> small = replace(load_model("bert-6.6b"), layers=4)
    >>> best, *others = search(small, "dgx1-v100", gpus=2, batch=8, schedules=["1f1b"])
    >>> best.mfu > others[-1].mfu, best.experiment.pp
    (True, 1)
    """
    cluster = load_cluster(cluster) if isinstance(cluster, str) else cluster
    model = load_model(model) if isinstance(model, str) else model
    target = find_target(framework)
    software = implementation_on(cluster, implementation or target.implementation)
    limits = target.limits_with(software)
    asked, only = _asked(ranges)
    ranged = usual_ranges(model, software) | (target.ranges if limits else {}) | asked
    searched: dict[str, Any] = {name: tuple(each) for name, each in ranged.items()}
    problem = Problem(
        model,
        cluster,
        tuple(gpus) if isinstance(gpus, Sequence) else (gpus,),
        tuple(batch) if isinstance(batch, Sequence) else (batch,),
        tuple(schedules or usual_schedules(software)),
        software,
        limits=limits,
        risk=risk,
        only=tuple(only.items()),
        **searched,
    )
    return _best_first(problem, top, workers)


def _asked(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, tuple[Any, ...]]]:
    """Values of a search, one or several of a name: those to search, and those to keep to."""
    known = (*RANGES, *DIMENSIONS)
    asked: dict[str, Any] = {}
    only: dict[str, tuple[Any, ...]] = {}
    for name, value in values.items():
        if name not in known:
            raise InvalidConfiguration(name, f"is not searched{did_you_mean(name, known)}")
        several = value if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
        if name in RANGES:
            asked[name] = tuple(several)
        else:
            kind = CHOICES.get(name, int)
            only[name] = tuple(kind(values_read({name: each}, {})[name]) for each in several)
    return asked, only


def _best_first(problem: Problem, top: int | None, workers: int) -> ResultRows:
    """The rows of a search, the best first."""
    chosen = configurations(problem)
    if workers == 1:
        request = None if top is None else Request(top)
        in_order = chosen if top is None else most_promising_first(problem, chosen)
        parts = [evaluate_best(problem, in_order, request).outcomes]
    else:
        with Workers(count=workers) as several:
            bounds = all_bounds(problem, chosen, several)
            found = evaluated(problem, chosen, several, bounds, top)
            parts = [part.outcomes for part in found]
    if not parts:
        return ResultRows()
    best_first = surer_ties_first(problem, ranked(Outcomes.joined(parts), risk=problem.risk))
    return ResultRows(
        ResultRow(each.record, partial(_experiment, problem, each)) for each in best_first
    )


def _experiment(problem: Problem, outcome: Outcome) -> Experiment:
    """The experiment that predicts a configuration as the search did."""
    values: dict[str, Any] = values_read(values_of(outcome, dict(problem.fixed)), {}) | {
        "model": problem.model,
        "cluster": problem.cluster,
        "implementation": problem.implementation,
    }
    return Experiment(outcome.configuration.schedule, **values)


def _row(experiment: Experiment, chosen: Mapping[str, Any], engine: str) -> ResultRow:
    shown = {name: getattr(value, "name", value) for name, value in chosen.items()}
    make = partial(experiment.changed, **chosen)
    try:
        prediction = predict(make(), engine)
        record = dict(prediction.record)
        if prediction.physical:
            record["fits"] = prediction.fits
    except InvalidConfiguration as error:
        return ResultRow({**shown, "refused": str(error)}, make)
    kept = {name: value for name, value in record.items() if name != "ranks"}
    return ResultRow({**kept, **shown}, make)
