"""Flags that releases of Megatron-LM lack, and the older ones that stand for them.

By their own parsers, from megatron-core 0.14 to 0.20: flags, their choices, and what they refuse
to combine; defaults of what is written are the same in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from bfpp.launchers.megatron.text import Flags
from bfpp.launchers.releases import Number

WRITTEN = (0, 14), (0, 15), (0, 16), (0, 18), (0, 19)
"""The releases whose commands differ from those of the one before; the first is the oldest."""

PRESENT = {
    **dict.fromkeys(
        (
            "--activation-func-clamp-value", "--cuda-graph-impl", "--fp4-format",
            "--fp4-param-gather", "--glu-linear-offset", "--quick-geglu", "--softmax-type",
            "--window-size", "--window-attn-skip-freq",
        ),
        (0, 15),
    ),
    **dict.fromkeys(
        (
            "--fine-grained-activation-offloading", "--offload-modules",
            "--moe-flex-dispatcher-backend",
        ),
        (0, 16),
    ),
    **dict.fromkeys(
        ("--activation-offload-fraction", "--yarn-original-max-position-embeddings"), (0, 19)
    ),
}  # fmt: skip
"""Flags by the first release that has them, where that is none of the oldest."""

OLDER = {
    "--cuda-graph-impl": "--enable-cuda-graph",
    "--moe-flex-dispatcher-backend": "--moe-enable-deepep",
}
"""Flags alone that say the same in releases before."""

YARN = (0, 18)
"""The first release with positions of YaRN, but for latents."""


class Combined(NamedTuple):
    """Flags that releases from `since`, and before `until`, do not take together.

    The `flag` is left out where the command's flags are so.
    """

    since: Number
    until: Number
    flag: str
    are_so: Callable[[Flags], bool]
    reason: str


def _divides_experts(flags: Flags) -> bool:
    return flags["--expert-model-parallel-size"] not in (None, 1)


REFUSED = (
    Combined(
        (0, 0), (0, 16), "--moe-grouped-gemm", lambda flags: not flags["--bf16"],
        "grouped GEMMs of experts in another precision than bf16",
    ),
    Combined(
        (0, 0), (0, 16), "--cuda-graph-impl",
        lambda flags: flags["--recompute-granularity"] == "full",
        "CUDA graphs with whole layers recomputed",
    ),
    Combined(
        (0, 16), (0, 18), "--cuda-graph-impl", _divides_experts,
        "CUDA graphs with expert parallelism",
    ),
    Combined((0, 0), (0, 16), "--fp16", _divides_experts, "expert parallelism in fp16"),
)  # fmt: skip


def of_release(flags: Flags, release: Number) -> tuple[dict[str, Any], list[str]]:
    """The flags that a release takes, and a sentence for each that it does not support."""
    written = dict(flags)
    missing = [*_refused(written, release), *_absent(written, release)]
    return written, missing


def _refused(written: dict[str, Any], release: Number) -> Iterator[str]:
    for each in REFUSED:
        is_meant = each.since <= release < each.until and written.get(each.flag)
        if is_meant and each.are_so(written):
            written[each.flag] = None
            yield f"{each.reason}: {_since(each.until)} takes that"


def _absent(written: dict[str, Any], release: Number) -> Iterator[str]:
    if written["--position-embedding-type"] == "yarn" and release < YARN:
        written["--position-embedding-type"] = "rope"
        yield f"--position-embedding-type yarn: {_since(YARN)} has it"
    for flag, since in PRESENT.items():
        if not written.get(flag) or release >= since:
            continue
        written[flag] = None
        if flag in OLDER:
            written[OLDER[flag]] = True
        else:
            yield f"{flag}: {_since(since)} has it"


def _since(release: Number) -> str:
    return f"megatron-core {release[0]}.{release[1]}"
