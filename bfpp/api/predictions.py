"""Simulated experiments: results with the experiment they were predicted from."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from bfpp.api.results import Result
from bfpp.launchers.launch import stages_for_others
from bfpp.schedules import InvalidConfiguration, InvalidInput, TaskGraph
from bfpp.schedules.columns import NONE
from bfpp.sim.engines.cost_model import CostModel
from bfpp.sim.engines.engines import DEFAULT
from bfpp.sim.engines.engines import simulate as simulate_graph
from bfpp.sim.experiment.experiment import Experiment
from bfpp.traces.timeline.memory_curves import fullest
from bfpp.traces.timeline.memory_record import MemoryRecord
from bfpp.traces.timeline.timeline import About, Replicas, Timeline
from bfpp.traces.timeline.units import GIGABYTE, in_words

if TYPE_CHECKING:
    # Loaded where a model is simulated, so that abstract costs are there soon.
    from bfpp.sim.costs.physical import PhysicalCosts
    from bfpp.sim.experiment.prediction import SampleWork, StepPrediction
    from bfpp.sim.unevenness.uneven_steps import UnevenSteps

INTERVAL = ("step_time_low", "step_time_high")

SHOW_PROGRESS_FROM = 50_000
"""Tasks from which on a replay takes long enough to show its progress."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Prediction(Result):
    """An experiment's timeline, with throughput and memory where a model was simulated.

    The numbers that are read most are attributes; `record` has all of them, as JSON has. The
    interval of the step time takes many replays, and is left out of it unless `with_interval`.

    >>> import bfpp
    >>> predicted = bfpp.predict(bfpp.Experiment("1f1b", pp=4, microbatches=8))
    >>> predicted, predicted.bubble, predicted.record["ranks"][0]["peak_microbatches"]
    (<Prediction 1f1b: 4 ranks, 8 micro-batches: 33 s>, 0.375, 4.0)
    >>> sizes = {"model": "llama3-8b", "cluster": "dgx-h100"}
    >>> predicted = bfpp.predict(bfpp.Experiment("1f1b", pp=4, tp=2, microbatches=8, **sizes))
    >>> predicted.mfu > 0.3, predicted.memory_reserved_gb > predicted.memory_largest_gb
    (True, True)
    >>> predicted.fits
    True
    """

    experiment: Experiment
    costs: CostModel
    with_interval: bool = True
    uneven: UnevenSteps | None = None

    @property
    def physical(self) -> PhysicalCosts | None:
        """The cost model, if it is that of a model on a cluster."""
        if self.experiment.model is None:
            return None
        from bfpp.sim.costs.physical import PhysicalCosts

        return self.costs if isinstance(self.costs, PhysicalCosts) else None

    @property
    def software(self) -> dict[str, Any]:
        """The implementation, and warnings where another answer may have been meant."""
        warnings = self.experiment.warnings
        return super().software | ({"warnings": warnings} if warnings else {})

    def origin(self) -> dict[str, Any]:
        """The engine, values without effect and, with physical costs, throughput and memory.

        Memory is in gigabytes; and how sure the step time is.
        """
        from bfpp.sim.experiment.without_effect import without_effect

        unused = without_effect(self.experiment)
        physical = self.physical
        engine: dict[str, Any] = {"engine": self.timeline.source}
        engine |= {"without_effect": unused} if unused else {}
        if self.uneven:
            from bfpp.sim.unevenness.uneven_report import uneven_record

            engine["uneven"] = uneven_record(self.uneven)
        if not physical:
            return engine
        from bfpp.sim.experiment.uncertainty import not_modelled

        peak, predicted = self._peak(), self.of_model
        return {
            **engine,
            **predicted,
            **self._host_memory(physical),
            **self._activation_shares(),
            "memory_peak": peak,
            **stages_for_others(self.experiment),
            **(self._interval(physical) if self.with_interval else {}),
            "not_modelled": not_modelled(self.timeline, physical, predicted["memory_reserved_gb"]),
        }

    def _host_memory(self, physical: PhysicalCosts) -> dict[str, float]:
        """Host memory that a device, and a node, pins for offloaded activations."""
        from bfpp.sim.memory.host_memory import host_memory, node_memory

        graph = self.timeline.graph
        if not graph.communication.offload:
            return {}
        return {
            "host_memory_gb": float(host_memory(graph, physical).max()) / GIGABYTE,
            "host_memory_node_gb": node_memory(graph, physical) / GIGABYTE,
        }

    def _activation_shares(self) -> dict[str, Any]:
        """The peak of activations over that of full sequences, where lengths are given."""
        if self.uneven is None or self.experiment.lengths is None:
            return {}
        from bfpp.sim.experiment.uneven import activations_of_full

        own = self.experiment, self.timeline.graph, self.costs
        return {"activations_of_full": activations_of_full(*own, len(self.uneven.seconds))}

    def _interval(self, physical: PhysicalCosts) -> dict[str, Any]:
        """The 80 % interval of the step time, and the constants that decide it."""
        from bfpp.sim.experiment.uncertainty import explained, parts_of

        # Where replicas differ, as wide as that of an even step: what differs is taken as known.
        even = simulate(self.timeline.graph, physical) if self.uneven else self.timeline
        longer = self.timeline.step_time / even.step_time if self.uneven else 1.0
        expected = explained(even, physical)
        low, high = expected.interval.low * longer, expected.interval.high * longer
        bounds = dict(zip(INTERVAL, (low, high), strict=True))
        return {**bounds, "interval_parts": parts_of(expected, physical)}

    @cached_property
    def of_model(self) -> StepPrediction:
        """Throughput and memory; raises `InvalidConfiguration` for abstract costs."""
        from bfpp.sim.experiment.prediction import predict as physical_prediction

        if (physical := self.physical) is None:
            raise InvalidConfiguration("model", "must be given, and a cluster")
        return physical_prediction(self.timeline, physical, self._work(physical))

    def _work(self, physical: PhysicalCosts) -> SampleWork | None:
        """The work of the mean sample, where lengths are given."""
        if self.uneven is None or self.experiment.lengths is None:
            return None
        from bfpp.sim.experiment.uneven import work_of_samples

        own = self.experiment, self.timeline.graph, physical
        return work_of_samples(*own, self.uneven.number)

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation: a share of the device's peak, without what is recomputed."""
        return self.of_model["mfu"]

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilisation: a share of the device's peak, with what is recomputed."""
        return self.of_model["hfu"]

    @property
    def tokens_per_second_per_gpu(self) -> float:
        """Throughput of the training, per GPU: padding is no token."""
        return self.of_model["tokens_per_second_per_gpu"]

    @property
    def memory_largest_gb(self) -> float:
        """GiB that the fullest rank allocates, at its peak."""
        return self.of_model["memory_largest_gb"]

    @property
    def memory_reserved_gb(self) -> float:
        """GiB that the fullest rank reserves of its device, with allocator and communicators."""
        return self.of_model["memory_reserved_gb"]

    @property
    def fits(self) -> bool:
        """Every rank's memory is enough."""
        return not self.of_model["missing_gb"]

    @cached_property
    def replicas(self) -> Replicas | None:
        """Timelines of all replicas in the median step, where they differ."""
        if self.uneven is None:
            return None
        timelines = [replace(it, about=self.timeline.about) for it in self.uneven.typical.each]
        shown = int(np.argmax(self.uneven.of_replica == self.uneven.slowest))
        return Replicas(timelines, self.uneven.of_replica, shown, self.uneven.costs.groups)

    @cached_property
    def held(self) -> Sequence[MemoryRecord]:
        """Memory of each rank's devices over the step, for a model on a cluster."""
        if not self.physical:
            return super().held
        from bfpp.sim.memory.memory_over_time import memory_over_time

        return memory_over_time(self.timeline.graph, self.physical)

    def _peak(self) -> dict[str, Any]:
        """Time, rank and task of the peak memory."""
        curve = fullest(self.memory_curves)
        at = curve.peak
        task = self.timeline.graph.task(int(curve.task[at]))
        return {
            "rank": curve.rank,
            "time": float(curve.time[at]),
            "operation": task.operation.title,
            "stage": None if task.stage == NONE else task.stage,
            "microbatch": None if task.microbatch == NONE else task.microbatch,
        }

    @property
    def shortage(self) -> str:
        """Empty, or the memory that it reserves of a device that has less."""
        if not self.record.get("missing_gb"):
            return ""
        reserved, device = self.record["memory_reserved_gb"], self.record["device_memory_gb"]
        return f"{reserved:.1f} of {device:.4g} GiB"

    @property
    def headline(self) -> tuple[str, ...]:
        """First of all whether it fits in memory, of a model on a cluster."""
        if not self.physical:
            return super().headline
        reserved, device = self.memory_reserved_gb, self.of_model["device_memory_gb"]
        fits = "fits" if self.fits else "does not fit"
        step = f"{in_words(self.step_time)} a step"
        if self.with_interval:
            step += f" ({' to '.join(in_words(self.record[name]) for name in INTERVAL)})"
        return (
            f"{fits}: {reserved:.1f} of {device:.4g} GiB reserved", f"MFU {self.mfu:.1%}", step,
            f"bubble ratio {self.bubble:.1%}", f"implementation {self.record['implementation']}",
        )  # fmt: skip

    def further_highlights(self) -> list[tuple[str, str]]:
        """Slowdowns by source where replicas differ; throughput and memory."""
        return [*self._of_replicas(), *self._of_model()]

    def _of_replicas(self) -> list[tuple[str, str]]:
        if not self.uneven:
            return []
        from bfpp.sim.unevenness.uneven_report import uneven_highlights

        return uneven_highlights(self.uneven)

    def _of_model(self) -> list[tuple[str, str]]:
        if not self.physical:
            return []
        bounds = [in_words(self.record[name]) for name in INTERVAL if self.with_interval]
        return [
            ("implementation", self.record["implementation"]),
            *([("80 % prediction interval", " to ".join(bounds))] if bounds else []),
            ("TFLOP/s per GPU: model, hardware", self._throughput()),
            ("MFU, HFU", f"{self.record['mfu']:.1%}, {self.record['hfu']:.1%}"),
            ("tokens per second per GPU", _rounded(self.record["tokens_per_second_per_gpu"])),
            ("samples per second", _rounded(self.record["samples_per_second"])),
            ("reserved memory (max over ranks)", self._reserved()),
            ("peak memory (max over ranks)", f"{self.record['memory_largest_gb']:.1f} GiB"),
            *self._activations_of_full(),
            *self._pinned(),
            ("peak memory, rank 0", f"{self.record['memory_gb']:.1f} GiB"),
            ("peak memory, rank 0, DP to infinity", f"{self.record['memory_min_gb']:.1f} GiB"),
        ]

    def _activations_of_full(self) -> list[tuple[str, str]]:
        if not (shares := self.record.get("activations_of_full")) or shares["mean"] == 1:
            return []
        return [("activations, of full sequences'", "{mean:.0%}, {largest:.0%}".format(**shares))]

    def _pinned(self) -> list[tuple[str, str]]:
        """Host memory of offloaded activations, if there are any."""
        if "host_memory_gb" not in self.record:
            return []
        of_device, of_node = (self.record[f"host_memory_{each}gb"] for each in ("", "node_"))
        return [("pinned host memory, of a node", f"{of_device:.1f}, {of_node:.1f} GiB")]

    def _throughput(self) -> str:
        """First the model's, which Megatron-LM logs; the paper gives that of the hardware."""
        of_model, of_hardware = (self.record[f"{of}tflops_per_gpu"] for of in ("model_", ""))
        return f"{of_model:.1f}, {of_hardware:.1f}"

    def _reserved(self) -> str:
        """The memory that decides whether the model fits, marked if it does not."""
        mark = " (!)" if self.record["missing_gb"] else ""
        reserved, device = self.record["memory_reserved_gb"], self.record["device_memory_gb"]
        return f"{reserved:.1f} of {device:.4g} GiB{mark}"


def predict(
    experiment: Experiment,
    engine: str = DEFAULT,
    costs: CostModel | None = None,
    graph: TaskGraph | None = None,
) -> Prediction:
    """Build and replay an experiment, with a progress bar where it takes long.

    `costs` and `graph` take the place of its own.

    Raises `InvalidInput` for a step whose time is no finite number, or that is
    too large for this machine's memory.

    >>> prediction = predict(Experiment("1f1b", pp=4, microbatches=8))
    >>> prediction.record["step_time"], round(prediction.record["bubble"], 3)
    (33.0, 0.375)
    """
    uneven = None
    try:
        costs = costs or experiment.costs
        graph = graph or experiment.graph()
        with _progress(graph.schedule, len(graph)) as advance, np.errstate(all="ignore"):
            if experiment.is_uneven:
                from bfpp.sim.experiment.uneven import steps_of  # an even step has none of it

                uneven = steps_of(experiment, graph, costs, engine)
                timeline = uneven.typical.of(uneven.slowest)
            else:
                timeline = simulate_graph(graph, costs, engine, advance)
    except MemoryError:
        raise InvalidInput("the step is too large for this machine's memory") from None
    if not math.isfinite(timeline.step_time):
        raise InvalidInput("a number is too large to compute with: the step time is not finite")
    about = _about(costs)
    timeline = replace(timeline, about={**timeline.about, **about})
    return Prediction(timeline, experiment=experiment, costs=costs, uneven=uneven)


@overload
def simulate(what: Experiment, *, engine: str = DEFAULT) -> Prediction: ...


@overload
def simulate(what: TaskGraph, costs: CostModel, engine: str = DEFAULT) -> Timeline: ...


def simulate(
    what: Experiment | TaskGraph, costs: CostModel | None = None, engine: str = DEFAULT
) -> Prediction | Timeline:
    """Predict an experiment, as `predict` does; or when each task of a graph runs under `costs`.

    A graph is checked first, unless it is that of a built-in schedule: raises
    `InvalidConfiguration` if it is wrong.

    >>> import bfpp
    >>> bfpp.simulate(Experiment("1f1b", pp=2, microbatches=4)).step_time
    15.0
    >>> graph = bfpp.build_graph("1f1b", bfpp.Layout(2, 4))
    >>> bfpp.simulate(graph, bfpp.AbstractCosts(transfer=0.25), engine="simpy").step_time
    16.0
    """
    if isinstance(what, Experiment):
        return predict(what, engine, costs)
    if costs is None:
        raise InvalidConfiguration("costs", "must be given with a graph")
    return simulate_graph(what, costs, engine)


def _about(model: CostModel) -> About:
    """The names and numbers of the costs: enough to simulate the step again."""
    costs = {**vars(model)}
    costs |= asdict(costs["degrees"]) if "degrees" in costs else {}
    named = {name: getattr(value, "name", value) for name, value in costs.items()}
    named = {name: str(it).lower() if isinstance(it, bool) else it for name, it in named.items()}
    return {name: value for name, value in named.items() if isinstance(value, str | int | float)}


def _rounded(number: float) -> str:
    """To four digits, never as a power of ten."""
    return f"{float(f'{number:.4g}'):,.15g}"


@contextmanager
def _progress(name: str, tasks: int) -> Iterator[Callable[[int], None] | None]:
    if tasks < SHOW_PROGRESS_FROM or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # start-up time
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        job = bar.add_task(name, total=tasks)
        done = count(1)

        def advance(_: int) -> None:
            if (ended := next(done)) % 1024 == 0:
                bar.update(job, completed=ended)

        yield advance
