"""Offloading of activations to the host: policies by name and by number."""

from __future__ import annotations

from bfpp.schedules.errors import InvalidConfiguration, did_you_mean

FIELD = "offload"

OFF: int = 0
ALL: int = 1
"""Passes that must run between a forward pass and its backward pass: 0 offloads nothing."""

SELECTIVE = "selective"
"""The number of passes that take as long as a copy to the host and back."""

NAMED: dict[str, int | str] = {"off": OFF, "all": ALL, SELECTIVE: SELECTIVE}

MODULES_FIELD = "offload_modules"

MODULES: dict[str, tuple[str, ...]] = {
    "attn_norm": ("attention norm",),
    "qkv_linear": ("qkv", "q down", "kv down"),
    "core_attn": ("attention", "scores", "softmax", "dropout", "values"),
    "attn_proj": ("projection",),
    "mlp_norm": ("mlp norm",),
    "expert_fc1": ("experts up",),
    "moe_act": ("experts activation",),
}
"""Modules whose inputs can be offloaded by themselves, by Megatron-LM's names: their operators."""

MOST_DIGITS = 9
"""No rank runs more passes than this has digits."""


def require_share(share: float) -> None:
    """Raise `InvalidConfiguration` unless this is a share of a pass's activations."""
    if not 0 < share <= 1:
        raise InvalidConfiguration(
            "offload_share", f"must be more than 0 and at most 1, not {share:g}"
        )


def parse_offload_modules(text: str) -> frozenset[str]:
    """A list of `MODULES`; raises `InvalidConfiguration` for anything else.

    >>> sorted(parse_offload_modules("core_attn,attn_proj"))
    ['attn_proj', 'core_attn']
    """
    modules = text.split(",")
    for module in modules:
        if module not in MODULES:
            raise InvalidConfiguration(
                MODULES_FIELD,
                f"{module!r} is not one of {','.join(MODULES)}{did_you_mean(module, MODULES)}",
            )
    return frozenset(modules)


def parse_offload(value: object) -> int | str:
    """A number of passes, or `selective`; raises `InvalidConfiguration` for anything else.

    >>> parse_offload("all"), parse_offload("4"), parse_offload("selective")
    (1, 4, 'selective')
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    text = str(value).strip()
    if text in NAMED:
        return NAMED[text]
    if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS:
        return int(text)
    raise InvalidConfiguration(
        FIELD,
        f"{text!r} is not one of {', '.join(NAMED)}, or a number of passes"
        f"{did_you_mean(text, tuple(NAMED))}",
    )
