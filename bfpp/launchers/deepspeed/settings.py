"""DeepSpeed's JSON as flags of Megatron-LM, each with the name that it has in the file.

What DeepSpeed's engine does by its own file is as the file says: sharding, clipping and the
precision of gradients. A program that has a batch and an optimizer of its own keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bfpp.launchers.arguments import (
    COUNT,
    FIELD,
    NUMBER,
    SWITCH,
    TEXT,
    Arguments,
    Flag,
    Ignored,
    Words,
)
from bfpp.launchers.deepspeed.left_out import left_out
from bfpp.launchers.sources.documents import leaves
from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.reading import NotJson, parsed

AUTO = ("auto",)
"""The value of what Hugging Face's trainer fills in."""

BY_PROGRAM, NEEDS_VALUE = (
    "the program that trains says it",
    "needs a value: the program that trains fills it in",
)

BATCH, MICRO, ACCUMULATED = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)
STAGE, OVERLAP = "zero_optimization.stage", "zero_optimization.overlap_comm"
CLIPPING, OPTIMIZER, GRADIENTS = (
    "gradient_clipping",
    "optimizer.type",
    "data_types.grad_accum_dtype",
)
PRECISIONS = {"fp16.enabled": "--fp16", "bf16.enabled": "--bf16", "bfloat16.enabled": "--bf16"}
TENSORS, SEQUENCES = "tensor_parallel.autotp_size", "sequence_parallel_size"

KNOWN: Mapping[str, Flag] = {
    **{name: Flag(COUNT) for name in (BATCH, MICRO, ACCUMULATED)},
    **{name: Flag(COUNT, 1) for name in (TENSORS, SEQUENCES)},
    **{name: Flag(SWITCH, False) for name in PRECISIONS},
    STAGE: Flag(COUNT, 0),
    OVERLAP: Flag(SWITCH),
    CLIPPING: Flag(NUMBER, 0),
    OPTIMIZER: Flag(TEXT),
    GRADIENTS: Flag(TEXT),
}

OPTIMIZERS = {
    **dict.fromkeys(("adam", "adamw", "fusedadam", "muadam", "muadamw"), "adam"),
    "sgd": "sgd",
    "musgd": "sgd",
    "muon": "muon",
}
"""Optimizers of Megatron-LM by DeepSpeed's names, in small letters."""

WHOLE = "fp32"
"""The full precision of gradients, as DeepSpeed names it."""


class NamedWords(NamedTuple):
    """A flag's words, and the name that they have in the file."""

    name: str
    words: Words


def settings_of(source: str, text: str) -> dict[str, Words]:
    """The settings of a file by dotted name; raises `InvalidConfiguration` in one line."""
    try:
        table = parsed(text)
    except NotJson as error:
        raise InvalidConfiguration(FIELD, f"{source} {error.reason}") from None
    if not isinstance(table, dict):
        raise InvalidConfiguration(FIELD, f"{source} holds no table of settings")
    return {name: words for name, words in leaves(source, table).items() if words != ("None",)}


def arguments_of(source: str, settings: Mapping[str, Words]) -> Arguments:
    """The settings that have a value, by their kinds."""
    said = {name: words for name, words in settings.items() if words != AUTO or name not in KNOWN}
    return Arguments(source, said, KNOWN)


def translated(given: Arguments) -> dict[str, NamedWords]:
    """All that DeepSpeed's engine decides by its file, as flags; the batch is not among it."""
    flags = {
        "--zero-stage": NamedWords(STAGE, (str(given[STAGE]),)),
        "--clip-grad": NamedWords(CLIPPING, (str(given[CLIPPING]),)),
    }
    if (overlaps := given[OVERLAP]) is not None:
        flags["--overlap-grad-reduce"] = NamedWords(OVERLAP, () if overlaps else ("false",))
    on = [(name, flag) for name, flag in PRECISIONS.items() if given[name]]
    flags |= {flag: NamedWords(name, ()) for name, flag in on}
    for name, flag in on:
        if flag == "--bf16" and not given[STAGE]:  # its optimizer shards states without ZeRO, too
            flags["--zero-stage"] = NamedWords(name, ("1",))
    flags |= _gradients(given, {flag for _, flag in on})
    for name, flag in (
        (TENSORS, "--tensor-model-parallel-size"),
        (SEQUENCES, "--ds-sequence-parallel-size"),
    ):
        if given[name] > 1:
            flags[flag] = NamedWords(name, (str(given[name]),))
    return flags


def _gradients(given: Arguments, precisions: set[str]) -> dict[str, NamedWords]:
    """The precision that gradients are accumulated in: by default that of the weights."""
    whole = given[GRADIENTS] == WHOLE
    if "--fp16" in precisions:
        return {"--accumulate-allreduce-grads-in-fp32": NamedWords(GRADIENTS, ())} if whole else {}
    if "--bf16" in precisions and given[STAGE] and not whole:
        return {"--grad-reduce-in-bf16": NamedWords(GRADIENTS, ())}
    return {}


def optimizer_of(name: str) -> str:
    """Megatron-LM's name of an optimizer, or the name in small letters, where it has none."""
    plain = name.lower()
    return OPTIMIZERS.get(plain, OPTIMIZERS.get(plain.partition("_")[0], plain))


def others(
    given: Arguments, settings: Mapping[str, Words], filled: Mapping[str, bool]
) -> list[Ignored]:
    """The settings that no flag stands for; and of those that are "auto", whether one is known."""
    auto = [name for name in KNOWN if settings.get(name) == AUTO]
    return [
        *(Ignored(name, *AUTO, False, BY_PROGRAM) for name in auto if filled.get(name)),
        *(Ignored(name, *AUTO, True, NEEDS_VALUE) for name in auto if not filled.get(name)),
        *left_out(settings, given.read),
    ]
