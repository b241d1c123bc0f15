"""The command that trains an experiment with torchtitan 0.3 and later, which read no TOML.

A configuration in Python (`--module`, `--config`) has the model; options say all that an experiment
decides. After 0.3 batches are counted in tokens, and the micro-batches of a pipeline by number.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from bfpp.launchers.launch import FrameworkConfig, Launch
from bfpp.launchers.torchtitan.configurations import CONFIGURATIONS, configuration_of
from bfpp.launchers.torchtitan.flavors import flavor_of
from bfpp.launchers.torchtitan.settings import TABLES, settings
from bfpp.schedules.settings.attention import ContextExchange

SINCE, COUNTS_TOKENS = (0, 3), (0, 4)
"""The first releases without TOML, and with batches in tokens."""

GONE = {
    "model.name", "model.flavor", "model.converters", "parallelism.context_parallel_rotate_method",
    "parallelism.expert_tensor_parallel_degree", "parallelism.expert_parallel_comm_backend",
    "parallelism.enable_async_tensor_parallel", "activation_checkpoint.mode",
}  # fmt: skip
"""Settings of 0.2 that are said otherwise, or by configurations alone."""

OF_SAMPLES = {
    "training.local_batch_size", "training.global_batch_size", "training.seq_len",
    "parallelism.pipeline_parallel_microbatch_size",
}  # fmt: skip
"""Settings that releases have which count samples."""


def of_samples(launch: Launch) -> FrameworkConfig:
    """The command of 0.3."""
    return _command(launch, tokens=False)


def of_tokens(launch: Launch) -> FrameworkConfig:
    """The command of later releases."""
    return _command(launch, tokens=True)


def _command(launch: Launch, *, tokens: bool) -> FrameworkConfig:
    """The command, an option a line, and the values that it cannot express."""
    devices, node = launch.devices, launch.node
    program = f"torchrun --nnodes={-(-devices // node)} --nproc-per-node={min(devices, node)}"
    flavor = flavor_of(launch.transformer)
    name = configuration_of(*flavor) if flavor else ""
    lines = [f"{program} -m torchtitan.train"]
    if flavor and name in CONFIGURATIONS:
        lines.append(f"--module {flavor[0]} --config {name}")
    lines += [
        shlex.join((f"--{key}", *_words(value))) for key, value in _options(launch, tokens=tokens)
    ]
    lines.append(f"activation-checkpoint:{TABLES['activation_checkpoint'](launch)['mode']}")
    text = " \\\n    ".join(lines) + "\n"
    return FrameworkConfig(text, (*settings(launch).missing, *_missing(launch, name)))


def _options(launch: Launch, *, tokens: bool) -> Iterator[tuple[str, Any]]:
    for section, table in TABLES.items():
        for key, value in table(launch).items():
            name = f"{section}.{key}"
            left_out = GONE | OF_SAMPLES if tokens else GONE
            if name not in left_out and not section.startswith("quantize"):
                yield name, value
    if tokens:
        sample = launch.transformer.sequence
        yield "training.max_context_length", sample
        yield "training.num_tokens_per_microbatch_per_dp_rank", launch.microbatch_size * sample
        yield "training.num_tokens_per_train_step", launch.batch * sample
        if launch.pp > 1:
            yield "parallelism.num_pp_microbatches", launch.microbatches
    if launch.overlaps_chunks:
        yield "compile.enable_async_tensor_parallel", True
        yield "compile.components", "model,loss"
    if not (launch.cuda_graphs and launch.pp == launch.ep == 1):
        yield "training.disable_cuda_graphs", True


def _words(value: Any) -> tuple[str, ...]:
    """The words of a value: a list of lists has commas within each."""
    if value is True:
        return ()
    if isinstance(value, list):
        return tuple(",".join(each) for each in value)
    return (str(value),)


def _missing(launch: Launch, name: str) -> Iterator[str]:
    """Values without an option, in releases whose configurations say them."""
    theirs = CONFIGURATIONS.get(name, {})
    if name and not theirs:
        yield f"a configuration {name}: write one, with torchtitan's sizes of it"
    converters = tuple(TABLES["model"](launch).get("converters", ()))
    if converters != theirs.get("model.converters", ()):
        yield f"training in {launch.precision}: a configuration of your own has the converters"
    if launch.ep > 1 and launch.dispatch == "deduplicated":
        yield "tokens that are sent once a device: configurations with another dispatcher have it"
    if launch.cp > 1 and launch.cp_comm is ContextExchange.RING:
        yield "keys and values around a ring: they are gathered"
    if launch.cuda_graphs and (launch.pp > 1 or launch.ep > 1):
        yield "CUDA graphs of a pipeline, or of experts that wait for the host"
    elif launch.cuda_graphs and "training.disable_cuda_graphs" in theirs:
        yield f"CUDA graphs: {name} turns them off"
