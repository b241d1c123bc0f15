"""Layers of each unit of a layout: their number by kind, and how many are recomputed.

A stage's layers are divided over its units as equally as can be, the later ones not larger; the
first layers of a stage are those that are recomputed. Those of prediction modules are in the last
unit too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.columns import Flags, Integers
from bfpp.schedules.layout.cut import even_cut
from bfpp.schedules.settings.recomputation import Recomputation
from bfpp.sim.models.model import Transformer

Matrix = npt.NDArray[np.float64]

DIVISIONS = 1024
"""Number of cached divisions of models: they are the same for all `Degrees`."""


@dataclass(frozen=True, eq=False)
class Layers:
    """Number of layers of each kind in each unit, and of recomputed ones among them.

    A row for each of the model's kinds, a column for each unit.
    """

    of_kind: Integers
    recomputed_of_kind: Integers
    prediction_modules: int = 0

    @cached_property
    def part_counts(self) -> Matrix:
        """A row for each part of a model, how often it is in each unit: as `compute.Parts.each`.

        The embedding is in the first, the head in the last, and there again for each prediction
        module.
        """
        first, last = np.zeros((2, self.of_kind.shape[1]))
        first[0] = last[-1] = 1.0
        counts = [first, self.prediction_modules * last, (1 + self.prediction_modules) * last]
        for of_kind, recomputed in zip(self.of_kind, self.recomputed_of_kind, strict=True):
            counts += recomputed.astype(float), (of_kind - recomputed).astype(float)
        return np.array(counts)

    @property
    def of_unit(self) -> Integers:
        """Of all kinds."""
        total: Integers = self.of_kind.sum(axis=0)
        return total

    @property
    def kept(self) -> Layers:
        """The same layers, none of them recomputed."""
        return replace(self, recomputed_of_kind=np.zeros_like(self.recomputed_of_kind))

    @property
    def recomputed(self) -> Integers:
        """Of all kinds."""
        total: Integers = self.recomputed_of_kind.sum(axis=0)
        return total


@lru_cache(DIVISIONS)
def layers_of_units(
    model: Transformer,
    recomputation: Recomputation,
    cut: tuple[int, ...] | None,
    units_per_stage: tuple[int, ...],
) -> Layers:
    """The layers of each unit, with those of `cut` in each stage: by default as equal as can be.

    Raises `InvalidConfiguration` if there are too few.
    """
    stages, units = len(units_per_stage), np.array(units_per_stage, dtype=np.int32)
    of_stage = np.array(cut or even_cut(model.layers, stages), dtype=np.int32)
    _require_layers(model, cut, of_stage, units)
    stage = np.repeat(np.arange(stages), units)
    number = np.arange(len(stage), dtype=np.int32) - (np.cumsum(units) - units)[stage]
    of_unit = (of_stage // units)[stage] + (number < (of_stage % units)[stage])
    unit = np.repeat(np.arange(len(stage)), of_unit)
    recomputation.require(stages)
    again = np.array(
        [
            recomputation.of_stage(stage).layers_of(count)
            for stage, count in enumerate(of_stage.tolist())
        ]
    )
    first = np.cumsum(of_stage) - of_stage
    recomputed = np.arange(model.layers) < np.repeat(first + again, of_stage)

    def counted(chosen: Flags) -> Integers:
        return np.bincount(unit[chosen], minlength=len(stage)).astype(np.int32)

    kinds = [np.isin(np.arange(model.layers), layers) for layers in model.kinds.values()]
    of_kind = np.array([counted(kind) for kind in kinds])
    again_of_kind = np.array([counted(kind & recomputed) for kind in kinds])
    last = list(model.kinds).index(model.last_kind)
    of_kind[last, -1] += model.prediction_modules
    if recomputation.modules and recomputation.layers is None:
        again_of_kind[last, -1] += model.prediction_modules
    return Layers(of_kind, again_of_kind, model.prediction_modules)


def _require_layers(
    model: Transformer, cut: tuple[int, ...] | None, of_stage: Integers, units: Integers
) -> None:
    """Raise `InvalidConfiguration` where stages or units are not the model's."""
    if len(of_stage) != len(units) or of_stage.sum() != model.layers:
        raise InvalidConfiguration(
            "cut",
            f"{len(of_stage)} stages of {of_stage.sum()} layers are not the {len(units)} "
            f"stages of {model.layers} layers",
        )
    if cut is None and model.layers < units.sum():
        raise InvalidConfiguration(
            "loops" if (units == 1).all() else "units_per_stage",
            f"{model.layers} layers cannot be divided over {units.sum()} stages",
        )
    if (units > np.maximum(of_stage, 1)).any():
        raise InvalidConfiguration(
            "units_per_stage",
            f"{of_stage.min()} layers of a stage cannot be divided into {units.max()} units",
        )
