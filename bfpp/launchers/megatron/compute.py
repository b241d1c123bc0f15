"""Precision, optimizer, recomputation and kernels as flags, and flags as these."""

from __future__ import annotations

from bfpp.launchers.arguments import Arguments
from bfpp.launchers.launch import Launch
from bfpp.launchers.megatron.step import DIST_MUON, Values
from bfpp.launchers.megatron.text import Flags
from bfpp.schedules.settings.attention import Attention
from bfpp.schedules.settings.offloading import MODULES as OFFLOADED
from bfpp.schedules.settings.precision import FULL_PRECISION, Precision
from bfpp.schedules.settings.recomputation import CORE_ATTENTION, LAYER, MODULES
from bfpp.sim.memory.optimizer_states import ADAM, MUON
from bfpp.sim.models.model import Transformer

RECIPES = {
    Precision.FP8_DELAYED: "delayed",
    Precision.FP8_CURRENT: "tensorwise",
    Precision.FP8_BLOCK: "blockwise",
    Precision.MXFP8: "mxfp8",
}
"""Recipes of Transformer Engine for FP8."""

STATES = {
    "moments": "--exp-avg-dtype",
    "master_weights": "--main-params-dtype",
    "main_gradients": "--main-grads-dtype",
}
FULL = "fp32"

RULES = {ADAM: None, MUON: "muon"}
"""Optimizers of update rules; of all others it is SGD."""

DUPLICATED = "duplicated"
"""The mode of Muon in which every tensor-parallel rank makes whole matrices."""

UNFUSED = ("unfused", "local")
"""Attention backends that keep scores in memory."""

WITHOUT_GRAPHS = "none"


def precision_flags(launch: Launch) -> Flags:
    """Precision, and the optimizer."""
    precision = launch.precision
    fp4, half = precision is Precision.NVFP4, precision is Precision.FP16
    fp8 = "e4m3" if precision is Precision.MXFP8 else "hybrid"
    rule, narrow = launch.update_rule, launch.gradient_bytes < FULL_PRECISION
    said = {
        "--exp-avg-dtype": launch.moments,
        "--exp-avg-sq-dtype": launch.moments,
        "--main-params-dtype": launch.master_weights,
        "--main-grads-dtype": launch.main_gradients,
    }
    states = {name: kind for name, kind in said.items() if kind not in (None, FULL)}
    return {
        "--fp16": half,
        "--bf16": precision.is_mixed and not half,
        "--fp8-format": fp8 if precision in RECIPES else None,
        "--fp8-recipe": RECIPES.get(precision),
        "--fp4-format": "e2m1" if fp4 else None,
        f"--{'fp4' if fp4 else 'fp8'}-param-gather": launch.quantised_weights,
        "--optimizer": RULES.get(rule, "sgd"),
        "--sgd-momentum": 0.0 if rule == "sgd" else None,
        "--use-precision-aware-optimizer": bool(states),
        **states,
        "--grad-reduce-in-bf16": narrow and precision.is_mixed and not half,
        "--accumulate-allreduce-grads-in-fp32": half and not narrow,
    }


def compute_flags(launch: Launch) -> Flags:
    """Activation checkpointing and kernels."""
    modules, layers = launch.recompute
    full, of_each = LAYER in modules, layers if isinstance(layers, int) else None
    selected = bool(modules) and not full and modules != {CORE_ATTENTION}
    granularity = "full" if full else "selective" if modules else None
    unfused = launch.attention is Attention.UNFUSED
    offloaded, share = launch.offload_modules, launch.offload_share
    offloads = bool(offloaded)
    return {
        "--recompute-granularity": granularity,
        "--recompute-method": ("uniform" if of_each is None else "block") if full else None,
        "--recompute-num-layers": of_each or 1 if full else None,
        "--recompute-modules": tuple(sorted(modules)) if selected else None,
        "--fine-grained-activation-offloading": offloads,
        "--offload-modules": tuple(sorted(offloaded)) if offloads else None,
        "--activation-offload-fraction": f"{share:g}" if offloads and share < 1 else None,
        "--attention-backend": "unfused" if unfused else None,
        "--cuda-graph-impl": "local" if launch.cuda_graphs else None,
    }


def precision_of(given: Arguments) -> Values:
    """Precision, and the optimizer's rule and states."""
    mixed = [each for each in ("fp16", "bf16") if given[f"--{each}"]]
    fp8, fp4, recipe = given["--fp8-format"], given["--fp4-format"], given["--fp8-recipe"]
    gathers = given["--fp8-param-gather"] or given["--fp4-param-gather"]
    _ = given["--fp4-recipe"]
    values: Values = {"precision": Precision(mixed[0] if mixed else "fp32")}
    if fp4:
        values["precision"] = Precision.NVFP4
    elif fp8:
        recipes = {theirs: ours for ours, theirs in RECIPES.items()}
        if recipe not in recipes:
            given.replace("--fp8-recipe", f"{recipe}: one scale a tensor (tensorwise) is predicted")
        values["precision"] = recipes.get(recipe, Precision.FP8_CURRENT)
    if gathers and (fp8 or fp4):
        values["quantised_weights"] = True
    return values | _rule(given) | _states(given, values["precision"])


def _rule(given: Arguments) -> Values:
    name, momentum = given["--optimizer"], given["--sgd-momentum"]
    if name == ADAM:
        return {}
    if name in (MUON, DIST_MUON):
        if (mode := given["--muon-tp-mode"]) != DUPLICATED:
            reason = f"{mode}: every tensor-parallel rank is predicted to make whole matrices"
            given.replace("--muon-tp-mode", reason)
        return {"update_rule": MUON}
    if name == "sgd":
        return {"update_rule": "momentum" if momentum else "sgd"}
    given.replace("--optimizer", f"{name}: the states of SGD with momentum, and no other work")
    return {"update_rule": "momentum"}


def _states(given: Arguments, precision: Precision) -> Values:
    """Precisions of the optimizer's states; of gradients in half precision, bf16 stands for both.

    Gradients in FP16 are accumulated in it, unless they are said to be in full precision.
    """
    said = {name: given[flag] for name, flag in STATES.items()}
    second, narrow = given["--exp-avg-sq-dtype"], given["--grad-reduce-in-bf16"]
    whole, aware = (
        given["--accumulate-allreduce-grads-in-fp32"],
        given["--use-precision-aware-optimizer"],
    )
    if not precision.is_mixed:
        return {}
    states = {name: kind for name, kind in said.items() if aware and kind != FULL}
    if aware and second != said["moments"]:
        given.replace("--exp-avg-sq-dtype", f"{second}: both moments in {said['moments']}")
    if narrow or (precision is Precision.FP16 and not whole):
        states["main_gradients"] = "bf16"
    return dict(states)


def compute_of(given: Arguments, model: Transformer | None) -> Values:
    """Activation checkpointing, offloading and kernels."""
    backend, local = given["--attention-backend"], given["--transformer-impl"] == "local"
    local = local or ("--deepspeed" in given and "--transformer-impl" not in given)
    flash = given["--use-flash-attn"]
    unfused = backend in UNFUSED or (local and not flash and backend == "auto")
    values: Values = {
        "recompute": _recompute(given, model),
        "attention": Attention.UNFUSED if unfused else Attention.FUSED,
        "cuda_graphs": _has_graphs(given),
    }
    return values | _offload(given)


def _has_graphs(given: Arguments) -> bool:
    kind = given["--cuda-graph-impl"]
    older = given["--enable-cuda-graph"] or given["--external-cuda-graph"]
    parts = given["--cuda-graph-modules"] or given["--cuda-graph-scope"]
    graphs = kind != WITHOUT_GRAPHS or bool(older)
    if graphs and parts and set(parts) - {"full", "full_iteration"}:
        name = "--cuda-graph-modules" if "--cuda-graph-modules" in given else "--cuda-graph-scope"
        given.replace(name, f"{' '.join(parts)}: graphs of all kernels are predicted")
    return graphs


def _recompute(given: Arguments, model: Transformer | None) -> str:
    """The policy as our options name it."""
    kind, method = given["--recompute-granularity"], given["--recompute-method"]
    layers, modules = given["--recompute-num-layers"], given["--recompute-modules"]
    if given["--moe-layer-recompute"]:
        kind, modules = kind or "selective", (*(modules or ()), "moe")
    if given["--recompute-activations"]:
        kind = "selective"
    older = given["--activations-checkpoint-method"]
    if given["--checkpoint-activations"] or older:
        kind, method = "full", method or older
    if kind == "full":
        if method == "block":
            return str(layers or (model.layers if model else 1))
        if layers and layers > 1:
            reason = f"{layers}: a checkpoint of each layer is predicted"
            given.replace("--recompute-num-layers", reason)
        return "full"
    if kind != "selective":
        return "none"
    modules = modules or (CORE_ATTENTION,)
    if unknown := sorted(set(modules) - set(MODULES)):
        given.replace("--recompute-modules", f"{' '.join(unknown)}: kept in the prediction")
    return ",".join(sorted(set(modules) & set(MODULES))) or "none"


def _offload(given: Arguments) -> Values:
    modules, share = given["--offload-modules"], given["--activation-offload-fraction"]
    if not given["--fine-grained-activation-offloading"] or not modules:
        return {}
    known = sorted(set(modules) & set(OFFLOADED))
    if unknown := sorted(set(modules) - set(OFFLOADED)):
        given.replace("--offload-modules", f"{' '.join(unknown)}: stays on the device")
    if not known or not share:
        return {}
    return {"offload": "all", "offload_modules": ",".join(known), "offload_share": share}
