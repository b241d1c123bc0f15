"""The division of ranks into stages, and of stages into units, that a schedule gets by default."""

from __future__ import annotations

from bfpp.schedules.layout.cut import even_cut
from bfpp.schedules.orders.steps import Schedule


def default_division(
    schedule: Schedule, layers: int, pp: int, loops: int = 1, cut: tuple[int, ...] | None = None
) -> tuple[int, int | tuple[int, ...]]:
    """The number of stages of a rank, and of units of each stage.

    Into its loops where it loops; without a pipeline, a loop is a layer. Else a stage is
    divided into its layers, so that each layer is gathered and reduced by itself, overlapped
    with the compute of the others.
    """
    if schedule.looped:
        return (loops if pp > 1 or loops > 1 else layers), 1
    stages = len(schedule.placement(pp, schedule.loops))
    units = tuple(max(count, 1) for count in cut or even_cut(layers, stages))
    return schedule.loops, units[0] if len(set(units)) == 1 else units
