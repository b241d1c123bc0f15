"""Time and cost, compute per GPU, and the bubble."""

from __future__ import annotations

from bfpp.sim.models.model import Transformer, hardware_flops
from bfpp.sim.theory.setup import Setup

FLOPS_PER_PARAMETER = 8
"""Operations a parameter and token: 2 forward, 2 to recompute it, 4 backward."""


def training_cost(total_compute: float, peak: float, utilization: float) -> float:
    """GPU-seconds to train (Cost of Eq. time_cost): total compute over a GPU's throughput.

    `total_compute` in FLOP, `peak` in FLOP/s a GPU, `utilization` the share of it in use.
    """
    return total_compute / (peak * utilization)


def training_time(cost: float, gpus: int) -> float:
    """Seconds to train (Time of Eq. time_cost): GPU-seconds over N_GPU."""
    return cost / gpus


def layer_parameters(model: Transformer) -> float:
    """Parameters in the matrices of one layer: 12 S_hidden^2 where S_mlp = 4 S_hidden.

    What is left of two FLOP a parameter and token without attention's 4 S_seq S_hidden.
    """
    per_token = model.layer_flops(1) / model.sequence
    return (per_token - 4 * model.sequence * model.hidden) / 2


def parameters(model: Transformer) -> float:
    """N_params, about 12 N_layers S_hidden^2 (section Setup): the matrices of the layers alone."""
    return model.layers * layer_parameters(model)


def compute_per_gpu(model: Transformer, setup: Setup) -> float:
    """C_GPU (Eq. compute), FLOP of a step on a GPU.

    96 N_mb S_mb S_seq N_layers S_hidden / (N_PP N_TP) times
    (S_hidden + S_seq / 6 + S_voc / (16 N_layers)); the paper prints it without S_seq.
    """
    samples = setup.microbatches * setup.microbatch_size
    return hardware_flops(model, samples) / (setup.degrees.pp * setup.degrees.tp)


def approximate_compute_per_gpu(model: Transformer, setup: Setup) -> float:
    """C_GPU (Eq. compute_approx), FLOP of a step on a GPU, without attention and vocabulary.

    96 N_mb S_mb S_seq N_layers S_hidden^2 / (N_PP N_TP): eight FLOP a parameter and token.
    """
    tokens = setup.microbatches * setup.microbatch_size * model.sequence
    share = parameters(model) / (setup.degrees.pp * setup.degrees.tp)
    return FLOPS_PER_PARAMETER * tokens * share


def bubble(setup: Setup) -> float:
    """Overhead of the idle pipeline over the compute (Eq. bubble and bubble_looped).

    (N_PP - 1) / (N_mb N_loop); N_loop = 1 is the standard pipeline.
    """
    return (setup.degrees.pp - 1) / (setup.microbatches * setup.loops)
