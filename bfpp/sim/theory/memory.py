"""State, activation and checkpoint memory of a device, in bytes (section Memory)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bfpp.sim.models.model import Transformer
from bfpp.sim.theory.compute import parameters
from bfpp.sim.theory.setup import Setup


class Range(NamedTuple):
    """The least and the most, as the implementation has it."""

    low: float
    high: float


STATE_BYTES = Range(12, 20)
"""Bytes a parameter of the training state alone, and with all gradients and buffers."""

BUFFER_BYTES = Range(2, 4)
"""Bytes a parameter in half precision: weights, and weights with gradients."""

GATHERED_LAYERS = 2
"""Layers that are whole at a time: one is computed while another is restored."""


def unsharded_state(model: Transformer, setup: Setup) -> Range:
    """M_0 = (12 to 20) N_params / (N_PP N_TP)."""
    share = _share(model, setup)
    return Range(STATE_BYTES.low * share, STATE_BYTES.high * share)


def partially_sharded_state(model: Transformer, setup: Setup, schedule: str) -> float:
    """M_PS = (2 or 4) N_params / (N_PP N_TP), over many data-parallel devices.

    Two where a gradient is reduced as soon as it is computed: breadth-first, or N_mb = 1.
    """
    at_once = schedule == "breadth-first" or setup.microbatches == 1
    return (BUFFER_BYTES.low if at_once else BUFFER_BYTES.high) * _share(model, setup)


def fully_sharded_state(model: Transformer, setup: Setup) -> float:
    """M_FS = 8 N_params / (N_layers N_TP): two layers' weights and gradients, 4 bytes each."""
    layer = parameters(model) / (model.layers * setup.degrees.tp)
    return BUFFER_BYTES.high * GATHERED_LAYERS * layer


def _share(model: Transformer, setup: Setup) -> float:
    return parameters(model) / (setup.degrees.pp * setup.degrees.tp)


def activation_memory(model: Transformer, setup: Setup) -> float:
    """M_act, activations of one layer and micro-batch (with checkpoints, all that is stored).

    S_seq S_mb S_hidden (10 + 24 / N_TP + 5 S_seq N_heads / (S_hidden N_TP)).
    """
    return model.activation_bytes(setup.microbatch_size, setup.degrees.tp)


def _whole_batch(_: Setup) -> float:
    return float("inf")


def _one_forward_one_backward(setup: Setup) -> float:
    return 2 * setup.degrees.pp - 1


def _depth_first(setup: Setup) -> float:
    return setup.stages + setup.degrees.pp - 1


STAGE_CAPS: dict[str, Callable[[Setup], float]] = {
    "gpipe": _whole_batch,
    "1f1b": _one_forward_one_backward,
    "depth-first": _depth_first,
    "breadth-first": _whole_batch,
}
"""The most (stage, micro-batch) checkpoints on a device, by schedule, where it is capped.

Printed in layers. 1F1B: (2 N_PP - 1) N_layers / N_PP, which is depth-first's
at one loop; 1F1B that runs no further ahead than it must reaches N_PP stages.
Depth-first: N_layers + N_PP - 1, which takes stages to be single layers; with
larger ones it is N_layers + (N_PP - 1) N_layers / N_stage, as here.
"""


def checkpoint_layers(model: Transformer, setup: Setup, schedule: str) -> float:
    """Checkpoints on a device (first ratio of M_ckpt), one a layer and micro-batch, capped."""
    stages = min(setup.microbatches * setup.loops, STAGE_CAPS[schedule](setup))
    return stages * model.layers / setup.stages


def checkpoint_memory(model: Transformer, setup: Setup, schedule: str) -> float:
    """M_ckpt (Eq. mem_ckpt) = N_mb N_layers / N_PP times 2 S_seq S_mb S_hidden / N_TP."""
    each = model.checkpoint_bytes(setup.microbatch_size, setup.degrees.tp)
    return checkpoint_layers(model, setup, schedule) * each
