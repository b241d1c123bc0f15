"""Models that other projects' checkouts ship, in Megatron-LM's flags: nothing that is a default.

`python -m tests.helpers.shipped_models FOLDER` prints those of torchtitan, as JSON: its
configurations are built, in a process of their own. Those of Megatron-Bridge are the fields of
classes, which are parsed.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.helpers.foreign_modules import answers, imported

Shipped = dict[str, str | None]
"""A model: the values of flags, empty for a flag alone, None for one that is off."""

USUAL = {
    "--rotary-base": "10000", "--norm-epsilon": "1e-05", "--rotary-percent": "1",
    "--moe-router-topk": "2", "--moe-router-score-function": "softmax",
    "--moe-router-topk-scaling-factor": "1", "--mscale": "1", "--mscale-all-dim": "0",
    "--rotary-scaling-factor": "1", "--glu-linear-offset": "0", "--softmax-type": "vanilla",
    "--moe-router-load-balancing-type": "aux_loss", "--moe-router-bias-update-rate": "0.001",
    "--moe-router-num-groups": "1", "--moe-router-group-topk": "1",
    "--yarn-original-max-position-embeddings": "4096", "--rope-scaling-factor": "8",
}  # fmt: skip
"""Defaults of Megatron-LM."""


def plain(flags: dict[str, Any]) -> Shipped:
    """Flags as texts, numbers in one form, without those that say nothing or a default."""
    said = {
        name: "" if value is True else _text(value)
        for name, value in flags.items()
        if value not in (None, False)
    }
    width, heads = said.get("--kv-channels"), said.get("--num-attention-heads")
    if width and heads and int(width) * int(heads) == int(said["--hidden-size"]):
        del said["--kv-channels"]
    return {name: text for name, text in said.items() if USUAL.get(name) != text}


def _text(value: object) -> str:
    text = "".join(str(value).split())
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if number == int(number) else str(number)


def _sizes(hidden: int, heads: int, kv_heads: int | None, width: int | None) -> dict[str, Any]:
    """Flags of attention in heads, with groups if they are fewer."""
    grouped = kv_heads not in (None, heads)
    return {
        "--hidden-size": hidden,
        "--num-attention-heads": heads,
        "--group-query-attention": grouped,
        "--num-query-groups": kv_heads if grouped else None,
        "--kv-channels": width,
    }


def _pattern(dense: int, layers: int) -> str | None:
    return f"([0]*{dense}+[1]*{layers - dense})" if dense else None


RENAMED = {
    "num-moe-experts": "num-experts",
    "layernorm-epsilon": "norm-epsilon", "scale-factor": "rope-scaling-factor",
    "yarn-rotary-scaling-factor": "rotary-scaling-factor",
}  # fmt: skip
KEPT = (
    "num-layers", "ffn-hidden-size", "vocab-size", "num-experts", "moe-router-topk",
    "moe-ffn-hidden-size", "moe-shared-expert-intermediate-size", "mtp-num-layers",
    "moe-router-num-groups", "moe-router-group-topk", "rotary-base", "qk-layernorm",
    "norm-epsilon", "moe-router-score-function", "moe-router-topk-scaling-factor",
    "moe-router-enable-expert-bias", "moe-router-pre-softmax", "moe-router-dtype",
    "moe-router-load-balancing-type", "softmax-type", "glu-linear-offset", "window-attn-skip-freq",
    "activation-func-clamp-value", "multi-latent-attention", "q-lora-rank", "kv-lora-rank",
    "qk-head-dim", "qk-pos-emb-head-dim", "v-head-dim", "add-qkv-bias", "rotary-percent",
)  # fmt: skip
"""Fields of Megatron-Bridge whose names and values are those of flags."""

ROTATED = ("rotary-scaling-factor", "mscale", "mscale-all-dim")
"""Fields that count with latents, or where positions are scaled."""

GATES = {"F.silu": "--swiglu", "quick_gelu": "--quick-geglu", "openai_gelu": "--swiglu"}


def of_bridge(folder: Path) -> dict[str, Shipped]:
    """The models of Megatron-Bridge by the names of their classes."""
    classes: dict[str, ast.ClassDef] = {}
    models = folder / "src/megatron/bridge/models"
    for path in sorted([*models.glob("*provider.py"), *models.glob("*/*provider.py")]):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, node)
    fields = {name: _fields(name, classes) for name in classes}
    return {
        name: _bridge_flags(each)
        for name, each in fields.items()
        if each.get("num_layers") and each.get("hidden_size") and each.get("num_attention_heads")
    }


def of_bridges(folder: Path) -> dict[str, Shipped]:
    """Settings of Megatron-Bridge for families of models, whose sizes are in a `config.json`."""
    found = {}
    for path in sorted((folder / "src/megatron/bridge/models").glob("*/*_bridge.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                set_ = dict(_assigned(node))
                said = plain(set_)
                found[node.name] = {name: said.get(name) for name in set_}
    return found


def _assigned(node: ast.ClassDef) -> Iterator[tuple[str, Any]]:
    """The plain values that a class gives a `provider`, for flags."""
    for line in ast.walk(node):
        plain_value = isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant)
        if plain_value and line.value.value is not None:
            where, _, field = ast.unparse(line.targets[0]).rpartition(".")
            name = RENAMED.get(field.replace("_", "-"), field.replace("_", "-"))
            if where == "provider" and name in KEPT:
                yield f"--{name}", line.value.value


def _fields(name: str, classes: dict[str, ast.ClassDef]) -> dict[str, Any]:
    """The fields of a class with their values, over those of its bases."""
    found: dict[str, Any] = {}
    for base in reversed(classes[name].bases):
        if (named := ast.unparse(base).partition("[")[0]) in classes:
            found |= _fields(named, classes)
    for line in classes[name].body:
        if isinstance(line, ast.AnnAssign) and line.value is not None:
            found[ast.unparse(line.target)] = _value(line.value)
    return found


def _value(node: ast.expr) -> Any:
    """A literal, also that of a factory such as `field(default_factory=lambda: [0] + [1] * 59)`."""
    if isinstance(node, ast.Call) and node.keywords:
        factory = node.keywords[0].value
        node = factory.body if isinstance(factory, ast.Lambda) else node
    match node:
        case ast.BinOp(ast.List() as left, ast.Mult(), ast.Constant(int() as times)):
            return _value(left) * times
        case ast.BinOp(left, ast.Add(), right):
            return _value(left) + _value(right)
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def _bridge_flags(fields: dict[str, Any]) -> Shipped:
    named = {name.replace("_", "-"): value for name, value in fields.items()}
    named |= {ours: named[theirs] for theirs, ours in RENAMED.items() if named.get(theirs)}
    positions, latent = named.get("position-embedding-type"), named.get("multi-latent-attention")
    stretched = bool(named.get("rope-scaling") or named.get("scale-factor"))
    scaled, rotary = positions == "yarn", positions not in (None, "learned_absolute")
    pattern = named.get("moe-layer-freq")
    heads = named["num-attention-heads"]
    groups = None if latent else named.get("num-query-groups")
    width = None if latent else named.get("kv-channels")
    window = named.get("window-size")
    return plain(
        {f"--{name}": named.get(name) for name in (*KEPT, *(ROTATED if latent or scaled else ()))}
        | _sizes(named["hidden-size"], heads, groups, width if isinstance(width, int) else None)
        | {
            "--use-rope-scaling": stretched,
            "--rope-scaling-factor": named.get("rope-scaling-factor") if stretched else None,
            "--position-embedding-type": positions if rotary else None,
            "--normalization": "RMSNorm" if named.get("normalization") == "RMSNorm" else None,
            "--disable-bias-linear": named.get("add-bias-linear") is False,
            "--untie-embeddings-and-output-weights": not named.get(
                "share-embeddings-and-output-weights", True
            ),
            "--moe-layer-freq": _pattern(pattern.count(0), len(pattern)) if pattern else None,
            "--window-size": f"({window[0]},{window[1]})" if isinstance(window, tuple) else None,
            "--squared-relu": named.get("activation-func") == "squared_relu",
            GATES.get(str(named.get("activation-func")), "--swiglu"): named.get(
                "gated-linear-unit", False
            ),
        }
    )


TITAN = {
    "llama3": "llama3_configs", "deepseek_v3": "deepseekv3_configs", "qwen3": "qwen3_configs",
    "gpt_oss": "gptoss_configs",
}  # fmt: skip
"""Modules of torchtitan, and their tables of flavors."""


def of_torchtitan(folder: Path) -> dict[str, Shipped]:
    """The models of torchtitan by module and flavor."""
    (found,) = answers("tests.helpers.shipped_models", [str(folder)], [])
    return dict(found)


def _built(module: str) -> dict[str, Shipped]:
    """The models of a module, except for those to debug."""
    found = {}
    for flavor, builder in getattr(imported(f"torchtitan.models.{module}"), TITAN[module]).items():
        kernels = {"attn_backend": "flex", "moe_comm_backend": "standard"}
        taken = inspect.signature(builder).parameters
        if not flavor.startswith("debug"):
            config = builder(**{name: kernels[name] for name in kernels if name in taken})
            found[f"{module} {flavor}"] = _titan_flags(config)
    return found


def _titan_flags(config: Any) -> Shipped:
    layers, (first, last) = config.layers, (config.layers[0], config.layers[-1])
    attention, rope = last.attention, last.attention.rope
    dense = sum(layer.moe is None for layer in layers) if last.moe else 0
    window = getattr(first.attention, "sliding_window_size", None)
    feed_forward = first.feed_forward
    every = window and [layer.attention.sliding_window_size for layer in layers].index(None) + 1
    biased = bool(attention.wo.bias)
    return plain(
        {
            "--num-layers": len(layers),
            "--ffn-hidden-size": feed_forward.w1.out_features if feed_forward else None,
            "--vocab-size": config.vocab_size,
            "--position-embedding-type": "yarn" if rope.scaling == "yarn" and biased else "rope",
            "--rotary-base": rope.theta,
            "--use-rope-scaling": rope.scaling == "llama",
            "--rotary-scaling-factor": rope.rope_factor if rope.scaling == "yarn" else None,
            "--normalization": "RMSNorm",
            "--norm-epsilon": last.attention_norm.eps,
            "--disable-bias-linear": not biased,
            "--untie-embeddings-and-output-weights": not getattr(
                config, "enable_weight_tying", False
            ),
            "--qk-layernorm": bool(getattr(attention, "qk_norm", None)) or _is_latent(attention),
            "--window-size": f"({window - 1},0)" if window else None,
            "--window-attn-skip-freq": every,
        }
        | _titan_attention(config.dim, attention)
        | (_titan_experts(last.moe, dense, len(layers)) if last.moe else {"--swiglu": True})
    )


def _is_latent(attention: Any) -> bool:
    return hasattr(attention, "kv_lora_rank")


def _titan_attention(hidden: int, attention: Any) -> dict[str, Any]:
    if not _is_latent(attention):
        heads, groups = attention.n_heads, attention.n_kv_heads
        return _sizes(hidden, heads, groups, attention.qkv_linear.head_dim)
    return _sizes(hidden, attention.n_heads, None, None) | {
        "--multi-latent-attention": True,
        "--q-lora-rank": attention.q_lora_rank or None,
        "--kv-lora-rank": attention.kv_lora_rank,
        "--qk-head-dim": attention.qk_nope_head_dim,
        "--qk-pos-emb-head-dim": attention.qk_rope_head_dim,
        "--v-head-dim": attention.v_head_dim,
        "--mscale": attention.mscale,
        "--mscale-all-dim": attention.mscale,
    }


def _titan_experts(moe: Any, dense: int, layers: int) -> dict[str, Any]:
    router, inner, shared = moe.router, moe.routed_experts.inner_experts, moe.shared_experts
    clamp = getattr(inner, "swiglu_limit", None)
    return {
        "--num-experts": moe.num_experts,
        "--moe-router-topk": router.top_k,
        "--moe-ffn-hidden-size": inner.hidden_dim,
        "--moe-shared-expert-intermediate-size": shared.w1.out_features if shared else None,
        "--moe-router-num-groups": router.num_expert_groups,
        "--moe-router-group-topk": router.num_limited_groups,
        "--moe-router-score-function": router.score_func,
        "--moe-router-topk-scaling-factor": router.route_scale,
        "--moe-layer-freq": _pattern(dense, layers),
        "--activation-func-clamp-value": clamp,
        "--quick-geglu" if clamp else "--swiglu": True,
    }


def main(folder: str) -> None:
    """Print the models of a folder of torchtitan."""
    sys.path.append(folder)
    found = {name: model for module in TITAN for name, model in _built(module).items()}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
