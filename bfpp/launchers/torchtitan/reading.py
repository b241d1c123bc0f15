"""The experiment that settings of torchtitan mean: those of its TOML files, and of its command.

Settings have dotted names, as `parallelism.tensor_parallel_degree`. Those of version 0.2 count
samples (`training.local_batch_size`), later ones tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bfpp.launchers.arguments import (
    GPUS,
    LIST,
    NUMBER,
    SWITCH,
    TEXT,
    UNKNOWN,
    Arguments,
    Flag,
    ValueKind,
    Words,
    rows,
)
from bfpp.launchers.torchtitan.flavors import model_named
from bfpp.launchers.torchtitan.limits import ROTATIONS
from bfpp.launchers.torchtitan.settings import FLOAT8, MX, rounds_of
from bfpp.schedules import Per, Sharding, find_schedule
from bfpp.schedules.families.registry import canonical_name
from bfpp.schedules.layout.cut import stages_of
from bfpp.schedules.settings.precision import Precision
from bfpp.schedules.settings.recomputation import MLP, NORM
from bfpp.sim.memory.optimizer_states import MUON
from bfpp.sim.models.model import Transformer

Values = dict[str, Any]

IMPLEMENTATION = "torchtitan"

LEFTOVER = -1
"""The degree that takes all remaining ranks, and the batch size that other values decide."""


def _integer(words: Words) -> int | None:
    text = words[0] if len(words) == 1 else ""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdecimal() and len(digits) < 10 else None


INTEGER = ValueKind("a whole number", _integer)
RAW = ValueKind("a list", lambda words: words)


FLAGS: Mapping[str, Flag] = {
    **rows("model.", TEXT, "name flavor"),
    **rows("model.", LIST, "converters"),
    **rows("launch.", TEXT, "module config"),
    **rows(
        "training.",
        INTEGER,
        "local_batch_size=8 batch_size global_batch_size=-1 seq_len=2048 max_context_length "
        "num_tokens_per_microbatch_per_dp_rank num_tokens_per_train_step=-1",
    ),
    **rows("training.", TEXT, "mixed_precision_param=bfloat16"),
    **rows("training.", SWITCH, "disable_cuda_graphs"),
    **rows("training.", NUMBER, "max_norm=1.0"),
    **rows(
        "parallelism.",
        INTEGER,
        "data_parallel_replicate_degree=1 data_parallel_shard_degree=-1 tensor_parallel_degree=1 "
        "context_parallel_degree=1 expert_parallel_degree=1 expert_tensor_parallel_degree=1 "
        "pipeline_parallel_degree=1 pipeline_parallel_microbatch_size=1 num_pp_microbatches=1 "
        "pipeline_parallel_layers_per_stage pipeline_parallel_first_stage_less_layers=1 "
        "pipeline_parallel_last_stage_less_layers=1",
    ),
    **rows(
        "parallelism.",
        TEXT,
        "pipeline_parallel_schedule=1F1B pipeline_parallel_schedule_csv "
        "fsdp_reshard_after_forward=default context_parallel_rotate_method=allgather "
        "expert_parallel_comm_backend=standard",
    ),
    **rows("parallelism.", SWITCH, "enable_async_tensor_parallel enable_sequence_parallel=true"),
    **rows("optimizer.", TEXT, "name=AdamW"),
    **rows("parallelism.", RAW, "module_fqns_per_model_part"),
    **rows("activation_checkpoint.", TEXT, "mode=selective selective_ac_option=op"),
    **rows("compile.", SWITCH, "enable enable_async_tensor_parallel"),
    **rows("compile.", LIST, "components=model,loss"),
    **rows(f"{FLOAT8}.", TEXT, "recipe_name"),
    **rows(f"{FLOAT8}.", SWITCH, "enable_fsdp_float8_all_gather"),
}

WITHOUT_EFFECT = {
    "job", "profiling", "metrics", "optimizer", "lr_scheduler", "checkpoint", "comm", "debug",
    "validation", "experimental", "fault_tolerance", "profiler", "validator", "dataloader", "loss",
    "tokenizer",
}  # fmt: skip
"""Sections that change neither a step's time nor its memory; an optimizer's name is read."""

WITHOUT_EFFECT_TOO = {
    "training.steps", "training.dataset", "training.dataset_path", "training.seed",
    "training.gc_freq", "training.dump_folder", "model.tokenizer_path", "model.hf_assets_path",
    "training.deterministic", "model.print_after_conversion",
    "training.gc_debug", "hf_assets_path", "dump_folder", "parallelism.spmd_backend",
}  # fmt: skip


def reason_of(name: str) -> tuple[bool, str]:
    """True for a setting that can matter to the prediction, and why it is left out."""
    section = name.partition(".")[0]
    if section in WITHOUT_EFFECT or name in WITHOUT_EFFECT_TOO:
        return False, f"{section}: no part of a step"
    return True, UNKNOWN


def values_of(given: Arguments, gpus: int | None) -> Values:
    """Values of the experiment."""
    model = model_named(given)
    values = _degrees(given, gpus)
    batch, stages = _batch(given, model, values), _stages(given, model, values["pp"])
    return {
        **values,
        **batch,
        **stages,
        **(_sequence(given, values["pp"]) if stages["schedule"] == "depth-first" else {}),
        **_sharding(given, values),
        "model": model,
        "implementation": IMPLEMENTATION,
        "clipping": given["training.max_norm"] > 0,
        "recompute": _recompute(given, model),
        **_precision(given),
        **_rule(given),
        **_tensor(given, values["tp"]),
        **_graphs(given, values),
    }


def _graphs(given: Arguments, values: Values) -> Values:
    """CUDA graphs, which releases that have configurations in Python use unless that is said."""
    disabled, alone = given["training.disable_cuda_graphs"], values["pp"] == values["ep"] == 1
    return {"cuda_graphs": True} if given["launch.config"] and alone and not disabled else {}


def flags_with(settings: Mapping[str, Words]) -> dict[str, Flag]:
    """The settings, with those of a configuration in Python for defaults."""
    own = {
        name: FLAGS[name]._replace(default=FLAGS[name].kind.read(words))
        for name, words in settings.items()
    }
    return {**FLAGS, **own}


def _degrees(given: Arguments, gpus: int | None) -> Values:
    names = ("tensor", "pipeline", "context", "expert")
    tp, pp, cp, ep = (max(given[f"parallelism.{each}_parallel_degree"], 1) for each in names)
    replicas = max(given["parallelism.data_parallel_replicate_degree"], 1)
    shards = given["parallelism.data_parallel_shard_degree"]
    if shards == LEFTOVER:
        rest = (gpus or 0) // (tp * pp * cp * replicas)
        shards = max(rest, 1)
        if not rest:
            sentence = f"{tp * pp * cp * replicas} GPUs, the fewest that the degrees allow"
            given.assume(sentence, *GPUS)
    _ = given["parallelism.expert_tensor_parallel_degree"]
    values: Values = {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "dp": replicas * shards}
    if shards > 1 and replicas > 1:
        values["dp_replicate"] = replicas
    if cp > 1:
        rotations = {theirs: ours for ours, theirs in ROTATIONS.items()}
        values["cp_comm"] = rotations[_one_of(given, "context_parallel_rotate_method", rotations)]
    if ep > 1 and given["parallelism.expert_parallel_comm_backend"] in ("deepep", "hybridep"):
        values["dispatch"] = "deduplicated"
    return values


def _one_of(given: Arguments, name: str, known: Mapping[str, Any]) -> str:
    value = str(given[f"parallelism.{name}"])
    if value not in known:
        given.refuse(f"parallelism.{name}", f"{value!r} is not one of {', '.join(known)}")
    return value


def _batch(given: Arguments, model: Transformer, values: Values) -> Values:
    """Micro-batches: in a pipeline those of a local batch, else one for each local batch."""
    name = "training.num_tokens_per_microbatch_per_dp_rank"
    if (tokens := given[name]) is not None:
        return _batch_of_tokens(given, model, values, tokens)
    local = given["training.batch_size"] or given["training.local_batch_size"]
    pp, dp, whole = values["pp"], values["dp"], given["training.global_batch_size"]
    size = given["parallelism.pipeline_parallel_microbatch_size"] if pp > 1 else local
    whole = local * dp if whole == LEFTOVER else whole
    if dp < 1 or size < 1 or local % size or whole % (size * dp) or whole < 1:
        given.refuse("training.local_batch_size", f"{local} of {whole} over {dp} replicas")
    if pp > 1 and whole != local * dp:
        name = "training.global_batch_size"
        given.replace(name, f"{whole}: one pipeline of all, not several one after the other")
    return {"microbatch_size": size, "microbatches": whole // (size * dp)}


def _batch_of_tokens(given: Arguments, model: Transformer, values: Values, tokens: int) -> Values:
    several = given["parallelism.num_pp_microbatches"] if values["pp"] > 1 else 1
    whole, sequence = given["training.num_tokens_per_train_step"], model.sequence
    of_all = tokens * values["dp"]
    whole = of_all * several if whole == LEFTOVER else whole
    if tokens % sequence or whole % of_all:
        name = "training.num_tokens_per_microbatch_per_dp_rank"
        given.refuse(name, f"{tokens} are no whole sequences of {sequence}, or do not divide all")
    return {"microbatch_size": tokens // sequence, "microbatches": whole // of_all}


def _stages(given: Arguments, model: Transformer, pp: int) -> Values:
    """The schedule, with its stages: by names of modules, or about as many layers in each."""
    theirs, file = (
        given[f"parallelism.pipeline_parallel_{each}"] for each in ("schedule", "schedule_csv")
    )
    each = given["parallelism.pipeline_parallel_layers_per_stage"]
    parts = given["parallelism.module_fqns_per_model_part"]
    ends = [given[f"parallelism.pipeline_parallel_{end}_stage_less_layers"]
            for end in ("first", "last")]  # fmt: skip
    if pp == 1:
        return {"schedule": "1f1b"}
    if file:
        path = Path(given.source).parent / file
        return {"schedule": str(path), "cut": _cut(parts)} if parts else {"schedule": str(path)}
    name = canonical_name(theirs)
    if name == "breadth-first":
        reason = f"{theirs}: backward passes in the order of micro-batches, not in reverse"
        given.replace("parallelism.pipeline_parallel_schedule", reason)
    looped = find_schedule(name).looped
    stages = -(-(model.layers + sum(ends)) // each) if each else 2 * pp
    values: Values = {"schedule": name}
    if parts:
        values["cut"] = _cut(parts)
        stages = stages_of(values["cut"]) or stages
    elif ends == [1, 1]:
        values["cut"] = "fewer-at-ends"
    elif ends != [0, 0]:
        name = "parallelism.pipeline_parallel_first_stage_less_layers"
        given.replace(name, "layers are divided evenly")
    if looped and stages % pp:
        given.refuse("parallelism.pipeline_parallel_degree", f"{stages} stages on {pp} ranks")
    return {**values, "loops": stages // pp} if looped and not parts else values


def _sequence(given: Arguments, pp: int) -> Values:
    """The micro-batches of a round of PyTorch's interleaved schedule, unless one for each rank."""
    size = given["parallelism.pipeline_parallel_microbatch_size"]
    local = given["training.batch_size"] or given["training.local_batch_size"]
    counts_tokens = given["training.num_tokens_per_microbatch_per_dp_rank"] is not None
    microbatches = given["parallelism.num_pp_microbatches"] if counts_tokens else local // size
    rounds = rounds_of(microbatches, pp)
    name, sequence = "parallelism.pipeline_parallel_schedule", microbatches // rounds
    if microbatches % rounds:
        given.refuse(name, f"{rounds} rounds do not divide {microbatches} micro-batches")
    if sequence < pp:
        given.refuse(name, f"{microbatches} micro-batches cannot fill {pp} ranks")
    return {} if sequence == pp else {"sequence": sequence}


def _cut(parts: Words) -> str:
    """The names of modules as our `--cut` takes them."""
    if all(part.startswith("[") for part in parts):
        inside = ", ".join(parts)
        return inside if inside.startswith("[[") else f"[{inside}]"
    return json.dumps([part.split(",") for part in parts])


def _sharding(given: Arguments, values: Values) -> Values:
    reshard = given["parallelism.fsdp_reshard_after_forward"]
    shards = values["dp"] // max(given["parallelism.data_parallel_replicate_degree"], 1)
    if shards * values["cp"] == 1:
        return {"sharding": Sharding.NONE}
    if shards == 1 and values["dp"] > 1:
        values["dp_replicate"] = values["dp"]
    has_pipeline = values["pp"] > 1
    gathers = reshard == "always" or (reshard == "default" and not has_pipeline)
    once = {"gather_per": not gathers, "reduce_per": has_pipeline}
    return {"sharding": Sharding.FULL} | {name: Per.STEP for name in once if once[name]}


def _recompute(given: Arguments, model: Transformer) -> str:
    """Of `op`, what takes about as much: every second GEMM, and all but attention, runs again.

    Llama 3 8B in BF16 on 8 and 128 H100 is so predicted to take 6,515 and 6,267 tokens a second on
    a GPU, and to reserve 68 and 57 GiB; 6,667 and 6,514, 77 and 62 are published.
    """
    mode, option = (
        given[f"activation_checkpoint.{each}"] for each in ("mode", "selective_ac_option")
    )
    if mode in ("full", "none"):
        return str(mode)
    module, alike = (NORM, "norms") if model.experts or option != "op" else (MLP, "MLPs")
    reason = f"selective ({option}): {alike} are recomputed in the prediction, and nothing else"
    given.replace("activation_checkpoint.mode", reason)
    return module


def _rule(given: Arguments) -> Values:
    name = given["optimizer.name"]
    if name in ("Muon", "DistMuon"):
        return {"update_rule": MUON}
    if name not in ("Adam", "AdamW"):
        given.replace("optimizer.name", f"{name}: AdamW's states are predicted")
    return {}


def _precision(given: Arguments) -> Values:
    converters, recipe = given["model.converters"] or (), given[f"{FLOAT8}.recipe_name"]
    gathers = given[f"{FLOAT8}.enable_fsdp_float8_all_gather"]
    if given["training.mixed_precision_param"] == "float32":
        return {"precision": Precision.FP32}
    if MX in converters:
        return {"precision": Precision.MXFP8}
    if FLOAT8 in converters or "float8" in converters:
        if recipe not in (None, "tensorwise"):
            given.replace(f"{FLOAT8}.recipe_name", f"{recipe}: one scale a tensor is predicted")
        weights = {"quantised_weights": True} if gathers else {}
        return {"precision": Precision.FP8_CURRENT, **weights}
    return {"precision": Precision.BF16}


def _tensor(given: Arguments, tp: int) -> Values:
    sequence, components = (
        given["parallelism.enable_sequence_parallel"],
        given["compile.components"],
    )
    compiled = given["compile.enable"] and "model" in components
    chunks = [given[f"{section}.enable_async_tensor_parallel"] for section in SECTIONS]
    if tp == 1:
        return {}
    overlap = {"tp_overlap": "chunked"} if any(chunks) and compiled else {}
    return {"sequence_parallel": sequence, **overlap}


SECTIONS = ("parallelism", "compile")
"""Sections that may have the switch of asynchronous tensor parallelism."""
