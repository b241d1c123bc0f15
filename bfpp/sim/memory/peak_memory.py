"""Bytes of a device at its peak, by part: of one device, and as columns."""

from __future__ import annotations

from collections.abc import Sequence
from math import erfc, exp, inf, sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from bfpp.schedules.columns import Seconds as Numbers
from bfpp.sim.presets.numbers import QUANTILE
from bfpp.traces.timeline.memory_record import PARTS
from bfpp.traces.timeline.units import GIGABYTE

RESERVED = 1.05
"""Reserved over allocated memory; in published runs on B200, from 1.03 to 1.08."""

CONTEXT = 0.75 * GIGABYTE
"""Bytes of a CUDA context and its modules, outside the allocator: assumed, from 0.5 to 1 GiB."""

DEVIATION = 0.1
"""Standard deviation of the logarithm of reserved memory over its prediction.

That of software that nobody has measured: by it, published runs fit as often as they are said to
(docs/fits.md).
"""


class Memories(NamedTuple):
    """Bytes on devices at their peak, as columns: over pipeline ranks, or over configurations.

    `state` is what data-parallel sharding divides, `weights` and `gradients` the
    buffers of training's precision, `saved` what passes keep until their backward
    pass, `transient` what the running part needs in addition, `update` what the
    optimizer's step allocates once activations are freed, `workspace` what
    libraries and communication keep for good.
    """

    state: Numbers
    weights: Numbers
    gradients: Numbers
    saved: Numbers
    transient: Numbers
    update: Numbers
    workspace: Numbers

    @property
    def total(self) -> Numbers:
        """Bytes allocated at the peak: in the backward pass or in the optimizer's step."""
        passing = np.maximum(self.saved + self.transient, self.update)
        total: Numbers = self.state + self.weights + self.gradients + passing + self.workspace
        return total

    @property
    def total_gb(self) -> Numbers:
        """The total in units of 2^30 bytes."""
        return self.total / GIGABYTE

    @property
    def reserved(self) -> Numbers:
        """Bytes that the process takes of the device: the allocator's, and the context's."""
        return RESERVED * self.total + CONTEXT

    @property
    def reserved_gb(self) -> Numbers:
        """Reserved memory in units of 2^30 bytes."""
        return self.reserved / GIGABYTE

    @property
    def reserved_range_gb(self) -> tuple[Numbers, Numbers]:
        """The ends of the 80 % interval of what this reserves."""
        reserved, factor = self.reserved_gb, exp(QUANTILE * DEVIATION)
        return reserved / factor, reserved * factor

    @property
    def parts_gb(self) -> dict[str, Numbers]:
        """The parts of the total, in its units; zero for those not allocated at the peak."""
        updating = self.update > self.saved + self.transient
        gone = {"saved": updating, "transient": updating, "update": ~updating}
        return {
            title: np.where(gone.get(name, False), 0.0, size / GIGABYTE)
            for (name, title), size in zip(PARTS.items(), self, strict=True)
        }

    @property
    def minimum(self) -> Memories:
        """The same over infinitely many data-parallel ranks, as the paper counts it.

        The state is gone, and the rest is as it was.
        """
        return self._replace(state=np.zeros_like(self.state))

    def of(self, place: int) -> PeakMemory:
        """The memory of one rank, or configuration."""
        return PeakMemory(*[part.item(place) for part in self])

    @property
    def fullest(self) -> PeakMemory:
        """The memory of the fullest one."""
        return self.of(int(self.total.argmax()))


class PeakMemory(NamedTuple):
    """Bytes on one device of a rank, at its peak, by the parts of `Memories`."""

    state: float
    weights: float
    gradients: float
    saved: float
    transient: float
    update: float
    workspace: float

    @property
    def total(self) -> float:
        """Bytes allocated at the peak."""
        return self._column.total.item()

    @property
    def total_gb(self) -> float:
        """The total in units of 2^30 bytes."""
        return self._column.total_gb.item()

    @property
    def reserved(self) -> float:
        """Bytes that the process takes of the device."""
        return self._column.reserved.item()

    @property
    def reserved_gb(self) -> float:
        """Reserved memory in units of 2^30 bytes."""
        return self._column.reserved_gb.item()

    @property
    def reserved_range_gb(self) -> tuple[float, float]:
        """The ends of the 80 % interval of what this reserves."""
        low, high = self._column.reserved_range_gb
        return low.item(), high.item()

    @property
    def parts_gb(self) -> dict[str, float]:
        """The parts of the total, in its units; zero for those not allocated at the peak."""
        return {title: size.item() for title, size in self._column.parts_gb.items()}

    @property
    def minimum(self) -> PeakMemory:
        """The same over infinitely many data-parallel ranks."""
        return self._column.minimum.of(0)

    @property
    def _column(self) -> Memories:
        return Memories(*np.array(self)[:, np.newaxis])


def fullest_of(memories: Sequence[Memories]) -> Memories:
    """Of several configurations, the memory of each one's fullest rank."""
    with_ranks: dict[int, list[int]] = {}
    for place, each in enumerate(memories):
        with_ranks.setdefault(len(each.state), []).append(place)
    fullest = np.empty((len(Memories._fields), len(memories)))
    for places in with_ranks.values():
        parts = np.array([memories[place] for place in places])
        ranks = Memories(*parts.swapaxes(0, 1)).total.argmax(axis=1)
        fullest[:, places] = parts[np.arange(len(parts)), :, ranks].T
    return Memories(*fullest)


def first_of(memories: Sequence[Memories]) -> Memories:
    """Of several configurations, the memory of each one's first rank."""
    first = np.array([[part.item(0) for part in each] for each in memories])
    return Memories(*first.reshape(-1, len(Memories._fields)).T)


def fits_probability(reserved: Numbers, usable: float) -> Numbers:
    """The probability that a job that is predicted to reserve so many bytes may have as many.

    `usable` is what it may reserve on a device.
    """
    deviations = np.log(usable / reserved) / DEVIATION
    found: Numbers = 0.5 * _complementary_error(-deviations / sqrt(2))
    return found


def safe_total(usable: float, risk: float) -> float:
    """Bytes that a job may allocate to run out of `usable` ones with a probability of `risk`."""
    if not 0 < risk < 1:
        return inf if risk else 0.0
    deviations = NormalDist().inv_cdf(1 - risk)
    return (usable * exp(-deviations * DEVIATION) - CONTEXT) / RESERVED


_complementary_error = np.vectorize(erfc, otypes=[float])
