"""Write an experiment as the command that trains it with Megatron-LM.

Flags that would only repeat a default are left out. Data, tokenizer and learning rate are no part
of an experiment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bfpp.launchers.launch import (
    UNCLIPPED,
    FrameworkConfig,
    Launch,
    loops_around,
    missing_without_pipeline,
)
from bfpp.launchers.megatron.compute import compute_flags, precision_flags
from bfpp.launchers.megatron.model import expert_flags, groups_of_token, latent_flags, model_flags
from bfpp.launchers.megatron.published import further_flags
from bfpp.launchers.megatron.step import group_flags, replica_flags, stage_flags
from bfpp.launchers.megatron.text import Flags, flag_lines
from bfpp.schedules import InvalidConfiguration, Per, Sharding, registered_name
from bfpp.schedules.settings.offloading import ALL, OFF
from bfpp.schedules.settings.precision import Precision
from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.experiment import Experiment

OWN = "1f1b", "depth-first"
"""Megatron-LM's schedules: 1F1B, and interleaved 1F1B."""

PROGRAM, PROGRAM_OF_BERT = "pretrain_gpt.py", "pretrain_bert.py"


def command(launch: Launch) -> FrameworkConfig:
    """The command, a flag a line, and the values that it cannot express."""
    devices, node = launch.devices, launch.node
    nodes = -(-devices // node)
    program = ["torchrun", f"--nnodes={nodes}", f"--nproc-per-node={min(devices, node)}"]
    lines = [line for part in PARTS for line in flag_lines(part(launch))]
    text = " \\\n    ".join([" ".join((*program, PROGRAM)), *lines]) + "\n"
    return FrameworkConfig(text, tuple(_missing(launch)))


def _missing(launch: Launch) -> Iterator[str]:
    """Settings without a flag."""
    layout, recompute = launch.layout, launch.recompute
    name, parallel = registered_name(launch.schedule), layout.pp > 1
    yield from missing_without_pipeline(launch)
    if not launch.clipping:
        yield UNCLIPPED
    if isinstance(recompute.layers, tuple):
        yield f"--recompute {recompute}; here all layers are recomputed"
    if parallel and layout.loops > 1 and layout.microbatches < layout.pp:
        yield "fewer micro-batches than pipeline ranks: interleaved 1F1B takes no fewer"
    elif parallel and name == "breadth-first" and layout.loops > 1:
        yield (
            "breadth-first; a group of all micro-batches runs their forward passes in its order, "
            "and backward passes begin as soon as the last stage has one to run"
        )
    elif parallel and (name not in OWN or (name == "depth-first" and layout.loops == 1)):
        runs = "interleaved 1F1B" if loops_around(layout) and layout.loops > 1 else "1F1B"
        yield f"the schedule {launch.schedule.reference}; these flags run {runs}"
    elif parallel and layout.loops == 1 and launch.pp_overlap:
        yield _missing_overlap(launch.experiment)
    if launch.offload != OFF:
        yield from _missing_of_offload(launch)
    yield from _missing_of_model(launch)
    full = launch.sharding is Sharding.FULL
    if full and Per.STEP in (launch.gather_per, launch.reduce_per):
        yield "gathering or reducing once a step: Megatron-FSDP does for each micro-batch"
    elif full and layout.microbatches > 1:
        yield "gathering once for a run of micro-batches: Megatron-FSDP does for each"
    if launch.precision is Precision.FP64:
        yield "training in fp64"
    if launch.quantised_dispatch:
        yield "dispatch in the precision of GEMMs (--moe-dispatch-fwd-dtype has mxfp8 alone)"


def _missing_of_model(launch: Launch) -> Iterator[str]:
    model = launch.transformer
    if not model.causal:
        yield "attention to later tokens: pretrain_gpt.py masks them"
    if model.head_layers:
        yield "layers of the hidden size between the last layer and the output layer"
    experts = model.experts
    if experts is not None and experts.share_of_nodes < 1 and not groups_of_token(experts):
        yield f"tokens that go to {experts.share_of_nodes:.0%} of the nodes"
    if model.tied_embeddings and launch.pp > 1 and not launch.tied_embeddings:
        yield (
            "two copies of the embedding whose gradients are not summed: the framework sums them, "
            "and --tied-embeddings predicts that"
        )
    if launch.quantised_activation:
        yield "--quantised-activation: activation_func_fp8_input_store has no flag"


def _missing_overlap(experiment: Experiment) -> str:
    """The loss without P2P overlap, if that can be predicted."""
    reason = "P2P overlap in 1F1B: Megatron-LM overlaps P2P in interleaved 1F1B only"
    try:
        without = _step_time(experiment.changed(pp_overlap=False))
    except InvalidConfiguration:  # of posts in the order of queues, which overlap
        return reason
    longer = without / _step_time(experiment) - 1
    return f"{reason}; without it (--no-pp-overlap) the step takes {longer:.1%} longer"


def _step_time(experiment: Experiment) -> float:
    return simulate(experiment.graph(), experiment.costs).step_time


def _missing_of_offload(launch: Launch) -> Iterator[str]:
    modules = launch.offload_modules
    if not modules:
        yield f"offloading all that a pass saves, or {launch.offload_share:g} of it"
    elif launch.offload != ALL:
        yield f"--offload {launch.offload}; here every pass is offloaded"
    if "attn_proj" in modules and "core_attn" not in modules:
        yield "attn_proj without core_attn, which needs the same tensor"


PARTS: tuple[Callable[[Launch], Flags], ...] = (
    model_flags, latent_flags, expert_flags, further_flags, group_flags, stage_flags, replica_flags,
    precision_flags, compute_flags,
)  # fmt: skip
"""The groups of flags, in the order of the command."""
