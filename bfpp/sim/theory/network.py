"""Arithmetic intensities, and when the network is fast enough (section Network).

An intensity is FLOP for each byte in or out of a device: those of an operation
and that of the hardware count both directions. A schedule's name is the
registry's; `gpipe` and `1f1b` at one pipeline rank are standard gradient
accumulation.
"""

from __future__ import annotations

from collections.abc import Callable

from bfpp.schedules import Sharding
from bfpp.sim.models.model import Transformer
from bfpp.sim.theory.compute import FLOPS_PER_PARAMETER, layer_parameters
from bfpp.sim.theory.setup import Setup

MUCH = 10.0
"""Assumed factor of "much greater"; the paper does not say."""

TENSOR_BYTES = 48
"""Bytes of tensor parallelism a layer, token and hidden channel: six all-reduces of eight."""

TENSOR_EXPOSED = 2 / 3
"""The share of them that nothing overlaps: four all-reduces of the six."""

PIPELINE_BYTES = 4
"""Bytes of pipeline parallelism a stage, token and hidden channel, over N_TP.

Two sent forward and two backward. Counted in and out, as the other
intensities are, they would be eight, and the intensity half.
"""

FULL_SHARDING = 2 / 3
"""Intensity of full sharding over none: 8 bytes a parameter become 12, a second gather."""


def is_efficient(
    network_time: float, overlapped_time: float, compute_time: float, much: float = MUCH
) -> bool:
    """T_net <= T_overlap or T_net << T_comp (Eq. efficiency)."""
    return network_time <= overlapped_time or much * network_time <= compute_time


def hardware_intensity(peak: float, bandwidth: float) -> float:
    """I_hw, FLOP/byte: FLOP/s over bytes/s, of a link with `bandwidth` in each direction."""
    return peak / (2 * bandwidth)


def compute_over_network(intensity: float, used_intensity: float) -> float:
    """T_comp / T_net = I_op / I_used, about I_op / I_hw."""
    return intensity / used_intensity


def minimum_batch_per_gpu(setup: Setup) -> float:
    """beta_min = 1 / N_TP (Eq. pipeline_efficiency_3d), at N_mb = N_PP and S_mb = 1."""
    return 1 / setup.degrees.tp


def network_batch_per_gpu(model: Transformer, hardware: float) -> float:
    """beta_net = I_hw / S_seq: samples per GPU for which T_comp = T_net, at N_PP = N_TP = 1.

    The paper rounds it up, and prints the fraction upside down (I_op / I_IB).
    """
    return hardware / model.sequence


def _one_microbatch(_: Setup) -> int:
    return 1


def _one_sequence(setup: Setup) -> int:
    return min(setup.degrees.pp, setup.microbatches)


def _whole_batch(setup: Setup) -> int:
    return setup.microbatches


OVERLAPPED: dict[str, Callable[[Setup], int]] = {
    "gpipe": _one_microbatch,
    "1f1b": _one_microbatch,
    "depth-first": _one_sequence,
    "breadth-first": _whole_batch,
}
"""Micro-batches that the data-parallel network operations of a stage overlap with."""


def overlapping_batch_per_gpu(setup: Setup, schedule: str, network_batch: float) -> float:
    """The beta from which on gradient reductions are hidden; `network_batch` is beta_net.

    Not looped, beta >= N_mb beta_net / (N_PP N_TP) (Eq. ddp_efficiency,
    pipeline_efficiency, pipeline_efficiency_3d, by what is one); breadth-first,
    beta >= beta_net / (N_PP N_TP) (Eq. pipeline_efficiency_bf); depth-first, by
    the same reasoning, N_mb / N_PP times the latter.
    """
    repeated = setup.microbatches / OVERLAPPED[schedule](setup)
    return repeated * blocking_batch_per_gpu(setup, network_batch)


def blocking_batch_per_gpu(setup: Setup, network_batch: float) -> float:
    """Bound that beta must far exceed if nothing is hidden: beta_net / (N_PP N_TP).

    The second halves of Eq. ddp_efficiency, pipeline_efficiency and pipeline_efficiency_3d.
    """
    return network_batch / (setup.degrees.pp * setup.degrees.tp)


def smallest_pipeline(setup: Setup, network_batch: float) -> float:
    """The N_PP from which on breadth-first is efficient at beta_min: beta_net / (beta_min N_TP).

    That is beta_net. The paper prints it without N_TP, though Eq.
    pipeline_efficiency_bf has it; the two agree at N_TP = 1.
    """
    return network_batch / (minimum_batch_per_gpu(setup) * setup.degrees.tp)


def data_parallel_intensity(model: Transformer, setup: Setup) -> float:
    """I_0 = I_PS = N_mb S_mb S_seq: 8 bytes a parameter and batch."""
    return setup.microbatches * setup.microbatch_size * model.sequence


def fully_sharded_intensity(model: Transformer, setup: Setup, schedule: str) -> float:
    """I_FS = 2/3 S_mb S_seq, times N_PP depth-first (I_FS-DF), N_mb breadth-first (I_FS-BF)."""
    return FULL_SHARDING * overlapped_intensity(model, setup, schedule)


def overlapped_intensity(model: Transformer, setup: Setup, schedule: str) -> float:
    """Tokens that overlap a reduction: S_mb S_seq, times N_PP depth-first, N_mb breadth-first.

    The left sides of the efficiency conditions of DP_0 and DP_PS. The paper
    prints depth-first without S_mb, here and for DP_FS.
    """
    return OVERLAPPED[schedule](setup) * setup.microbatch_size * model.sequence


def data_parallel_is_efficient(
    model: Transformer, setup: Setup, schedule: str, sharding: Sharding, hardware: float
) -> bool:
    """The efficiency conditions of the schedules, for DP_0 and DP_PS and for DP_FS.

    Hidden: the overlapped intensity is at least `hardware` (I_hw). Short: that
    of the whole batch is `MUCH` greater, which does not help full sharding, as
    it repeats its operations.
    """
    if sharding is Sharding.FULL:
        return fully_sharded_intensity(model, setup, schedule) >= hardware
    hidden = overlapped_intensity(model, setup, schedule) >= hardware
    return hidden or data_parallel_intensity(model, setup) >= MUCH * hardware


def pipeline_intensity(model: Transformer, setup: Setup) -> float:
    """I_PP = 24 S_hidden N_layers / (N_PP N_loop) (Eq. intensity_pipeline).

    The text above the equation has the bytes over N_layers too, which the
    equation rightly has not.
    """
    layer = FLOPS_PER_PARAMETER * layer_parameters(model)
    return layer * (model.layers / setup.stages) / (PIPELINE_BYTES * model.hidden)


def tensor_intensity(model: Transformer, setup: Setup) -> float:
    """I_TP = 2 S_hidden / N_TP: 96 S_hidden^2 / N_TP FLOP over 48 S_hidden bytes a token."""
    layer = FLOPS_PER_PARAMETER * layer_parameters(model) / setup.degrees.tp
    return layer / (TENSOR_BYTES * model.hidden)


def tensor_overhead(model: Transformer, setup: Setup, hardware: float) -> float:
    """Time of tensor parallelism that nothing overlaps, over compute: 2/3 I_hw / I_TP."""
    return TENSOR_EXPOSED / compute_over_network(tensor_intensity(model, setup), hardware)
