"""Write an experiment as the command that trains it with Megatron-LM.

Flags that would only repeat a default are left out. Data, tokenizer and learning rate are no part
of an experiment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bfpp.launchers.launch import UNCLIPPED, FrameworkConfig, Launch
from bfpp.launchers.megatron import limits
from bfpp.launchers.megatron.compute import compute_flags, precision_flags
from bfpp.launchers.megatron.model import expert_flags, groups_of_token, latent_flags, model_flags
from bfpp.launchers.megatron.published import further_flags
from bfpp.launchers.megatron.releases import of_release
from bfpp.launchers.megatron.step import group_flags, replica_flags, stage_flags
from bfpp.launchers.megatron.text import Flags, flag_lines
from bfpp.launchers.releases import Number
from bfpp.schedules import InvalidConfiguration
from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.experiment import Experiment

PROGRAM, PROGRAM_OF_BERT = "pretrain_gpt.py", "pretrain_bert.py"


def command(launch: Launch, release: Number) -> FrameworkConfig:
    """The command for a release, a flag a line, and the values that it cannot express."""
    devices, node = launch.devices, launch.node
    nodes = -(-devices // node)
    program = ["torchrun", f"--nnodes={nodes}", f"--nproc-per-node={min(devices, node)}"]
    every = {name: value for part in PARTS for name, value in part(launch).items()}
    flags, absent = of_release(every, release)
    lines = [" ".join((*program, PROGRAM)), *flag_lines(flags)]
    text = " \\\n    ".join(lines) + "\n"
    return FrameworkConfig(text, (*_missing(launch), *absent))


def _missing(launch: Launch) -> Iterator[str]:
    """Settings without a flag."""
    if not launch.clipping:
        yield UNCLIPPED
    yield from limits.of_setting(launch)
    orders = [*limits.of_pipeline(launch)]
    yield from orders
    layout = launch.layout
    if layout.pp > 1 and layout.loops == 1 and launch.pp_overlap and not orders:
        yield _missing_overlap(launch.experiment)
    yield from _missing_of_model(launch)
    yield from limits.of_communication(launch)
    yield from limits.of_offload(launch)
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


PARTS: tuple[Callable[[Launch], Flags], ...] = (
    model_flags, latent_flags, expert_flags, further_flags, group_flags, stage_flags, replica_flags,
    precision_flags, compute_flags,
)  # fmt: skip
"""The groups of flags, in the order of the command."""
