"""One result explained: idle time by cause, critical path, sensitivities, differences."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from bfpp.api.predictions import Prediction, predict
from bfpp.api.saved import SavedTimeline
from bfpp.schedules.formats.orders_file import GivenOrders
from bfpp.schedules.graph.notebook import table
from bfpp.schedules.operations.operations import OPERATIONS
from bfpp.sim.costs.measured.replay import Pace, paces
from bfpp.sim.engines.engines import DEFAULT
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.experiment.sensitivity import Sensitivity, joined, sensitivities, uneven_sensitivities
from bfpp.terminal.printing import counted
from bfpp.traces.explain.causes import Causes
from bfpp.traces.explain.looks import Cause
from bfpp.traces.stragglers.gains import Remedy
from bfpp.traces.timeline.metrics import compute_time
from bfpp.traces.timeline.units import in_words

if TYPE_CHECKING:
    # Loaded where a model is explained, so that abstract costs are there soon.
    from bfpp.sim.experiment.communication_bounds import CommunicationBound

FULLER = 0.02
"""The share by which one rank computes longer than any other, from which on it is pointed out."""


@dataclass(frozen=True)
class Explanation:
    """Breakdown of a result's step time.

    >>> import bfpp
    >>> explained = bfpp.explain(bfpp.Experiment("gpipe", pp=4, microbatches=8))
    >>> {str(share): seconds for share, seconds in explained.causes.shares.items() if seconds}
    {'compute': 24.0, 'bubble': 9.0}
    """

    result: Prediction | SavedTimeline

    @property
    def step_time(self) -> float:
        """The step time in seconds."""
        return self.result.timeline.step_time

    @cached_property
    def causes(self) -> Causes:
        """Blockers, critical path and waits."""
        return Causes(self.result.timeline)

    @cached_property
    def paces(self) -> list[Pace]:
        """Pace of each rank's passes, relative to the median rank's."""
        return paces(self.causes)

    @cached_property
    def idle(self) -> list[dict[Cause, float]]:
        """For each rank, its idle seconds by cause."""
        return self.causes.idle

    @cached_property
    def sensitivities(self) -> list[Sensitivity]:
        """Sensitivities of the step time, largest first."""
        graph, costs = self.result.timeline.graph, self.result.costs
        uneven = self.result.uneven if isinstance(self.result, Prediction) else None
        if uneven:
            unsorted = uneven_sensitivities(uneven, graph, costs)
        else:
            unsorted = sensitivities(graph, costs)
        return sorted(unsorted, key=lambda each: -abs(each.seconds_per_percent))

    @cached_property
    def depends_on(self) -> list[Sensitivity]:
        """The same as it is read: parameters of one effect together, none without effect."""
        return joined(each for each in self.sensitivities if each.seconds_per_percent)

    @cached_property
    def remedies(self) -> list[Remedy]:
        """Remedies where replicas, ranks or micro-batches differ, the largest gain first."""
        if not isinstance(self.result, Prediction) or self.result.uneven is None:
            return []
        from bfpp.sim.remedies.remedies import remedies  # an even step needs none

        return remedies(self.result.experiment, self.result.uneven)

    @property
    def fullest_rank(self) -> str:
        """Two sentences: the rank whose work the others wait for, and a remedy; or none."""
        graph, seconds = self.result.timeline.graph, compute_time(self.result.timeline)
        rank = int(seconds.argmax())
        others = np.delete(seconds, rank)
        if not len(others) or seconds[rank] <= (1 + FULLER) * others.max():
            return ""
        times = dict.fromkeys(in_words(each) for each in (others.min(), others.max()))
        said = (
            f"Rank {rank} computes for {in_words(seconds[rank])}, the others for "
            f"{' to '.join(times)}: they wait for it."
        )
        if not isinstance(self.result, Prediction) or self.result.physical is None:
            return said
        layout, layers = graph.layout, self.result.experiment.layers_of_stages
        held = [sum(layers[stage] for stage in layout.stages_of(each)) for each in range(layout.pp)]
        own, of_others = held[rank], sum(held) - held[rank]
        has = [counted(own, "layer")] if own else []
        has += ["the output layer"] if layout.stages - 1 in layout.stages_of(rank) else []
        layer = others.sum() / of_others if of_others else seconds[rank] / own
        if own and others.min() + layer < seconds[rank]:
            helps = "with fewer layers there, ranks are more even (--balance time, or --cut)"
        else:
            helps = (
                f"a layer takes about {in_words(layer)}, so that no other cut is more even, but "
                "fewer ranks (--pp) are"
            )
        return f"{said} It has {' and '.join(has)}; {helps}."

    @cached_property
    def bounds(self) -> list[CommunicationBound]:
        """Bounds of the communication of a model on a cluster."""
        if not isinstance(self.result, Prediction) or self.result.physical is None:
            return []
        from bfpp.sim.experiment.communication_bounds import bounds

        return bounds(self.result.physical, self.result.timeline.graph)

    @cached_property
    def rule(self) -> Explanation | None:
        """Of given orders: the fastest registered schedule on their stages, in their memory."""
        if not isinstance(self.result, Prediction):
            return None
        experiment = self.result.experiment
        if not isinstance(experiment.rule, GivenOrders):
            return None
        from bfpp.sim.synthesis.problem.registered_schedules import fastest_rule

        fastest = fastest_rule(experiment)
        return Explanation(predict(fastest)) if fastest else None

    def __repr__(self) -> str:
        return f"<Explanation of {self.result!r}>"

    def _repr_html_(self) -> str:
        """The mean rank's step by cause, and its sensitivities, for a notebook."""
        seconds = self.causes.mean_rank
        rows = [
            (str(name), in_words(each), f"{each / self.step_time:.1%}")
            for name, each in seconds.items()
            if each
        ]
        depends = [(each.parameter, in_words(each.seconds_per_percent)) for each in self.depends_on]
        return (
            table(f"{self.result.title}: step time {in_words(self.step_time)}", rows)
            + table("One per cent more of each changes the step by", depends)
            + self.result.timeline._repr_html_()
        )

    def path_by_operation(self) -> list[tuple[str, int, float]]:
        """For each operation on the critical path: its name, tasks and seconds."""
        timeline, path = self.result.timeline, self.causes.critical_path
        rows = []
        for operation in OPERATIONS:
            tasks = [task for task in path if timeline.graph.operation[task] == operation]
            if tasks:
                seconds = float(timeline.duration[tasks].sum())
                name = operation.called(timeline.graph.communication)
                rows.append((name, len(tasks), seconds))
        return rows

    def difference(self, other: Explanation) -> dict[str, Any]:
        """Seconds that the other one takes longer, cause by cause."""
        here, there = self.causes.mean_rank, other.causes.mean_rank
        return {
            "step_time": other.step_time,
            "difference": other.step_time - self.step_time,
            "by_cause": {name: there[name] - here[name] for name in here},
        }

    def record(self) -> dict[str, Any]:
        """The explanation as a JSON object; times in seconds."""
        timeline = self.result.timeline
        path = []
        for number in self.causes.critical_path:
            task, start, end = timeline.describe(number)
            fields = ("number", "rank", "peer", "stage", "unit", "microbatch")
            record = {name: getattr(task, name) for name in fields}
            path.append({"operation": task.operation.title, **record, "start": start, "end": end})
        return {
            "schedule": self.result.name,
            **self.result.software,
            "step_time": self.step_time,
            "mean_rank": self.causes.mean_rank,
            "shares": self.causes.shares,
            "ranks": [
                {
                    "rank": pace.rank,
                    "idle": sum(idle.values()),
                    "causes": idle,
                    "excess": pace.excess,
                    "gain": pace.gain,
                }
                for pace, idle in zip(self.paces, self.idle, strict=True)
            ],
            "critical_path": path,
            "communication": [each._asdict() for each in self.bounds],
            "sensitivities": [asdict(each) for each in self.sensitivities],
            **({"remedies": [each._asdict() for each in self.remedies]} if self.remedies else {}),
            "fastest_rule": self.rule
            and {"schedule": self.rule.result.name, **self.difference(self.rule)},
        }


def explain(experiment: Experiment, engine: str = DEFAULT) -> Explanation:
    """Break down an experiment's step time, with its sensitivities.

    >>> explained = explain(Experiment("1f1b", pp=2, microbatches=2))
    >>> {str(cause): seconds for cause, seconds in explained.idle[1].items() if seconds}
    {'warm-up': 1.0, 'drain': 2.0}
    """
    return Explanation(predict(experiment, engine))
