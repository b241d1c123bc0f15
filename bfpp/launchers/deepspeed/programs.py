"""Options of programs that train with DeepSpeed and have no flags of Megatron-LM.

They are those of Hugging Face's trainer, and of scripts after its example.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from bfpp.launchers.arguments import COUNT, NUMBER, SWITCH, TEXT, Flag, Words
from bfpp.launchers.megatron import without_effect

MICRO, ACCUMULATED = "per-device-train-batch-size", "gradient-accumulation-steps"
RECOMPUTES, CLIPPING, OPTIMIZER = "gradient-checkpointing", "max-grad-norm", "optim"
MODEL, SEQUENCE = "model-name-or-path", "max-seq-length"

OTHER_NAMES = {
    "per-gpu-train-batch-size": MICRO,
    "model-name": MODEL,
    "base-model": MODEL,
    "pretrained-model-name-or-path": MODEL,
    "model-max-length": SEQUENCE,
    "max-seq-len": SEQUENCE,
    "max-length": SEQUENCE,
    "block-size": SEQUENCE,
    "cutoff-len": SEQUENCE,
}

KNOWN: Mapping[str, Flag] = {
    **{name: Flag(COUNT) for name in (MICRO, ACCUMULATED, SEQUENCE)},
    **{name: Flag(SWITCH, False) for name in ("bf16", "fp16", RECOMPUTES)},
    CLIPPING: Flag(NUMBER, 1.0),
    **{name: Flag(TEXT) for name in (MODEL, OPTIMIZER)},
}

WITHOUT_EFFECT = {
    "logging": "output-dir logging-* report-to run-name overwrite-output-dir",
    "length of the run": "num-train-epochs epochs do-train do-eval per-device-eval-* *-strategy",
    "learning rate and its like": "learning-rate",
    "data": "train-file validation-file *-data-path data* preprocessing-* cache-dir",
    "how processes meet": "ddp-timeout local-rank",
    "the code's version": "trust-remote-code use-fast-tokenizer",
}


def reason_of(name: str) -> tuple[bool, str]:
    """True for an option that can matter, and the reason why it is left out."""
    bare = name.removeprefix("--").replace("_", "-")
    for reason, patterns in WITHOUT_EFFECT.items():
        if any(fnmatchcase(bare, each) for each in patterns.split()):
            return False, reason
    return without_effect.reason_of(name)


def plain_name(name: str) -> str:
    """The name of an option without dashes before it, as the table has it."""
    bare = name.lstrip("-").replace("_", "-")
    return OTHER_NAMES.get(bare, bare)


def renamed(given: Mapping[str, Words]) -> tuple[dict[str, Words], dict[str, str]]:
    """Options by the names of the table, and those that they have in the command."""
    called = {plain_name(name): name for name in given}
    return {plain_name(name): words for name, words in given.items()}, called
