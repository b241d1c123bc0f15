"""Predictions drawn in pieces of passes: each dispatch and combine of experts as a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from bfpp.api.predictions import Prediction
from bfpp.schedules import InvalidConfiguration
from bfpp.sim.engines.engines import simulate
from bfpp.traces.timeline.memory_curves import MemoryCurve
from bfpp.traces.timeline.memory_record import MemoryRecord
from bfpp.traces.timeline.metrics import RankMetrics
from bfpp.traces.timeline.timeline import Timeline


@dataclass(frozen=True, kw_only=True, repr=False)
class PredictionInPieces(Prediction):
    """A prediction that is drawn in pieces of passes; its numbers are those of whole passes."""

    whole: Prediction

    @cached_property
    def record(self) -> dict[str, Any]:
        """The record of the whole passes."""
        return self.whole.record

    @cached_property
    def ranks(self) -> list[RankMetrics]:
        """Those of the whole passes."""
        return self.whole.ranks

    @cached_property
    def held(self) -> Sequence[MemoryRecord]:
        """Memory of the whole passes, at whose times the curves change."""
        return self.whole.held

    @cached_property
    def memory_curves(self) -> list[MemoryCurve]:
        """Those of the whole passes: memory is saved or freed once a pass."""
        return self.whole.memory_curves

    @property
    def whole_timeline(self) -> Timeline:
        """Without memory: pieces are no steps of a rank."""
        return self.timeline


def in_pieces(prediction: Prediction) -> Prediction:
    """The same, drawn with a task for each dispatch and combine of experts inside a pass."""
    if (physical := prediction.physical) is None:
        raise InvalidConfiguration("pieces", "needs --model and --cluster")
    prediction.experiment.require_even("--pieces")
    from bfpp.sim.costs.expert_exchanges import with_exchanges

    timeline = prediction.timeline
    pieces = with_exchanges(timeline.graph, physical).expanded()
    expanded = simulate(pieces, physical, timeline.source)
    return PredictionInPieces(
        replace(expanded, about=timeline.about),
        prediction.caption,
        experiment=prediction.experiment,
        costs=prediction.costs,
        whole=prediction,
    )
