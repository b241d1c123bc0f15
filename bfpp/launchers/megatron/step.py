"""The degrees, stages and replicas of a step as flags, and flags as these."""

from __future__ import annotations

from math import lcm
from typing import Any

from bfpp.launchers.arguments import BATCH, GPUS, Arguments
from bfpp.launchers.launch import Launch
from bfpp.launchers.megatron.text import Flags
from bfpp.schedules import Sharding, registered_name
from bfpp.schedules.layout.cut import stages_of
from bfpp.schedules.layout.framework_cuts import layout_text
from bfpp.schedules.settings.attention import ContextExchange
from bfpp.sim.models.model import Transformer

Values = dict[str, Any]
"""Values of an experiment by name."""

EXCHANGES = {
    ContextExchange.RING: "p2p",
    ContextExchange.ALL_TO_ALL: "a2a",
    ContextExchange.ALL_GATHER: "all_gather",
}

STRATEGIES = {
    "no_shard": Sharding.NONE,
    "optim": Sharding.PARTIAL,
    "optim_grads": Sharding.PARTIAL,
    "optim_grads_params": Sharding.FULL,
}
"""Sharding strategies of Megatron-FSDP."""


def group_flags(launch: Launch) -> Flags:
    """Degrees of parallelism, and the batch."""
    contexts, experts = launch.cp > 1, launch.ep > 1
    has_experts = launch.transformer.experts is not None
    return {
        "--tensor-model-parallel-size": launch.tp,
        "--pipeline-model-parallel-size": launch.pp,
        "--sequence-parallel": launch.sequence_parallel,
        "--tp-comm-overlap": launch.overlaps_chunks,
        "--context-parallel-size": launch.cp if contexts else None,
        "--cp-comm-type": EXCHANGES[launch.cp_comm] if contexts else None,
        "--expert-model-parallel-size": launch.ep if experts else None,
        "--expert-tensor-parallel-size": 1 if has_experts and (experts or launch.tp > 1) else None,
        "--micro-batch-size": launch.microbatch_size,
        "--global-batch-size": launch.batch,
    }


def stage_flags(launch: Launch) -> Flags:
    """Virtual stages, or a layout where stages are uneven; and groups of micro-batches."""
    layout = launch.layout
    if layout.pp == 1 or not layout.loops_around:
        return {}
    layers, loops = launch.layers_of_stages, layout.loops > 1
    uneven = len(set(layers)) > 1
    text = layout_text(layers, launch.transformer.prediction_modules) if uneven else None
    name, sequence = registered_name(launch.schedule), None
    if name == "depth-first":
        sequence = launch.schedule.parameters["sequence"]
    elif name == "breadth-first":
        sequence = layout.microbatches
    grouped = loops and sequence not in (None, layout.pp)
    return {
        "--pipeline-model-parallel-layout": text,
        "--num-virtual-stages-per-pipeline-rank": layout.loops if loops and not uneven else None,
        "--microbatch-group-size-per-virtual-pipeline-stage": sequence if grouped else None,
        "--no-overlap-p2p-communication": loops and not launch.pp_overlap,
    }


def replica_flags(launch: Launch) -> Flags:
    """Data parallelism: sharding, and overlap of its communication."""
    full = launch.sharding is Sharding.FULL
    sharded = launch.sharding is not Sharding.NONE
    replicas = launch.dp * launch.cp
    if launch.transformer.experts:  # of which a tensor-parallel group has replicas, too
        replicas = max(replicas, replicas * launch.tp // launch.ep)
    overlaps = launch.dp_overlap and replicas > 1
    instances = launch.dp_replicate if sharded and launch.dp_replicate > 1 else None
    return {
        "--use-megatron-fsdp": full,
        "--data-parallel-sharding-strategy": "optim_grads_params" if full else None,
        "--ckpt-format": "fsdp_dtensor" if full else None,
        "--use-distributed-optimizer": sharded,
        "--num-distributed-optimizer-instances": instances,
        "--overlap-grad-reduce": overlaps,
        "--overlap-param-gather": overlaps and sharded,
    }


def groups_of(given: Arguments, model: Transformer | None, gpus: int | None) -> Values:
    """Degrees and batch on a number of GPUs: by default, the fewest that the degrees allow."""
    tp, pp, contexts, ulysses = (
        max(given[f"--{each}-parallel-size"], 1)
        for each in ("tensor-model", "pipeline-model", "context", "ds-sequence")
    )
    cp = max(contexts, ulysses)
    ep = _expert_devices(given, model, tp)
    least = lcm(tp * cp, ep) // (tp * cp)
    together = tp * pp * cp * least
    dp = least * max((gpus or 0) // together, 1)
    if gpus != tp * pp * cp * dp:
        said = "" if gpus is None else f", not the {gpus} that are said"
        given.assume(
            f"{tp * pp * cp * dp} GPUs, the fewest that the degrees allow{said}: tp {tp}, pp {pp}, "
            f"cp {cp}, ep {ep}",
            *GPUS,
        )
    values: Values = {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "dp": dp}
    values |= _batch(given, dp)
    if tp > 1:
        values["sequence_parallel"] = given["--sequence-parallel"]
        if given["--tp-comm-overlap"]:
            values["tp_overlap"] = "chunked"
    else:
        _ = given["--sequence-parallel"], given["--tp-comm-overlap"]
    return values | _exchange(given, cp)


def _expert_devices(given: Arguments, model: Transformer | None, tp: int) -> int:
    """Devices over which experts are divided; tensor parallelism of experts counts as that."""
    ep, inner = given["--expert-model-parallel-size"], given["--expert-tensor-parallel-size"]
    if model is None or model.experts is None:
        return 1
    inner = tp if inner is None else max(inner, 1)
    ep, name = max(ep, 1), "--expert-tensor-parallel-size"
    if inner == 1:
        return int(ep)
    if model.experts.routed % (ep * inner) == 0:
        given.replace(name, f"{inner}: whole experts on {ep * inner} devices are predicted")
        return int(ep * inner)
    given.replace(name, f"{inner}: whole experts on {ep} devices are predicted")
    return int(ep)


def _batch(given: Arguments, dp: int) -> Values:
    size = max(given.required("--micro-batch-size"), 1)
    batch = given["--global-batch-size"]
    if batch is None and (text := given["--step-batch-size-schedule"]):
        batch = int(text[-1].rpartition(":")[2]) if text[-1].rpartition(":")[2].isdecimal() else 0
        given.assume(f"a batch of {batch}, the last of --step-batch-size-schedule", *BATCH)
    if given["--rampup-batch-size"]:
        given.assume(f"a batch of {batch}, which --rampup-batch-size ends with", *BATCH)
    if batch is None:
        batch = size * dp
        sentence = f"a batch of {batch}, one micro-batch of each replica: no --global-batch-size"
        given.assume(sentence, *BATCH)
    if batch % (size * dp) or not batch:
        given.refuse("--global-batch-size", f"{size} x {dp} replicas do not divide {batch}")
    return {"microbatch_size": size, "microbatches": batch // (size * dp)}


def _exchange(given: Arguments, cp: int) -> Values:
    kinds = {theirs: ours for ours, theirs in EXCHANGES.items()} | {
        "allgather": ContextExchange.ALL_GATHER
    }
    said = given["--cp-comm-type"]
    if cp == 1:
        return {}
    if given["--ds-sequence-parallel-size"] > 1:
        return {"cp_comm": ContextExchange.ALL_TO_ALL}
    if set(said) - kinds.keys() or len(set(said)) != 1:
        given.replace("--cp-comm-type", f"{' '.join(said)}: a ring (p2p) is predicted")
        return {}
    return {"cp_comm": kinds[said[0]]}


def stages_from(given: Arguments, model: Transformer, values: Values) -> Values:
    """The schedule, with its stages and their cut."""
    pp, text = values["pp"], given["--pipeline-model-parallel-layout"]
    loops = _loops(given, model, pp)
    overlaps = not given["--no-overlap-p2p-communication"]
    group = given["--microbatch-group-size-per-virtual-pipeline-stage"]
    if pp == 1:
        return {"schedule": "1f1b"}
    division: Values = {"cut": text} if text else _uneven(given, model, pp, loops)
    if loops == 1:  # Megatron-LM overlaps P2P in interleaved 1F1B only
        return {"schedule": "1f1b", "pp_overlap": False} | division
    if group is not None and group != pp:
        division["sequence"] = group
    return {"schedule": "depth-first", "loops": loops, "pp_overlap": overlaps} | division


def _loops(given: Arguments, model: Transformer, pp: int) -> int:
    """Virtual stages of a rank."""
    if text := given["--pipeline-model-parallel-layout"]:
        stages = stages_of(text) or 0
        if not text.startswith("E") or stages % pp:
            given.refuse(
                "--pipeline-model-parallel-layout", f"{stages} stages are not on {pp} ranks"
            )
        return stages // pp
    loops, each = (
        given["--num-virtual-stages-per-pipeline-rank"],
        given["--num-layers-per-virtual-pipeline-stage"],
    )
    if loops or not each:
        return loops or 1
    layers = model.layers + sum(_ends(given))
    if layers % (pp * each):
        name = "--num-layers-per-virtual-pipeline-stage"
        given.refuse(name, f"{pp} ranks with stages of {each} do not divide {layers} layers")
    return int(layers // pp // each)


def _ends(given: Arguments) -> tuple[bool, bool]:
    """True for the embedding, and for the output layer, if it counts as a layer of its stage."""
    of = ("embedding", "loss")
    first, last = (given[f"--account-for-{each}-in-pipeline-split"] for each in of)
    counted = _counted(given)
    return first or EMBEDDING in counted, last or EMBEDDING in counted


TRANSFORMER, EMBEDDING = "transformer", "embedding"
"""Kinds of layers that DeepSpeed counts; an output layer is an embedding that is tied."""


def _counted(given: Arguments) -> tuple[str, ...]:
    """The kinds of layers of which stages have as many, by DeepSpeed's way to divide them."""
    method = given["--pp-partition-method"] or f"type:{TRANSFORMER}"
    kinds = tuple(method.removeprefix("type:").split("|"))
    if method.startswith("type:") and TRANSFORMER in kinds and {TRANSFORMER, EMBEDDING} >= {*kinds}:
        return kinds
    given.replace("--pp-partition-method", f"{method}: as many layers in each stage are predicted")
    return ()


def _uneven(given: Arguments, model: Transformer, pp: int, loops: int) -> Values:
    """The cut, where the first or the last rank has another number of layers."""
    first, last = (given[f"--decoder-{each}-pipeline-num-layers"] for each in ("first", "last"))
    before, after = _ends(given)
    if first is None and last is None and not before and not after:
        return {}
    within = pp - (first is not None) - (last is not None)
    rest = model.layers + before + after - (first or 0) - (last or 0)
    if within < 1 or rest % (within * loops) or (first or 0) % loops or (last or 0) % loops:
        name = "--decoder-first-pipeline-num-layers"
        given.refuse(name, f"{model.layers} layers cannot be divided so over {pp} x {loops} stages")
    share = rest // within // loops
    round_ = [share] * pp
    round_[0] = share if first is None else first // loops
    round_[-1] = share if last is None else last // loops
    stages = round_ * loops
    stages[0] -= before
    stages[-1] -= after
    return {"cut": ",".join(map(str, stages))}


def replicas_of(given: Arguments, values: Values) -> Values:
    """Sharding, and overlap of data parallelism."""
    sharding = _sharding(given)
    instances, overlaps = (
        given["--num-distributed-optimizer-instances"],
        given["--overlap-grad-reduce"],
    )
    gathers = given["--overlap-param-gather"]
    if "--overlap-grad-reduce" not in given:
        overlaps = given["--zero-stage"] == FULL_STAGE
    replicas: Values = {"sharding": sharding, "clipping": given["--clip-grad"] > 0}
    _ = given["--ckpt-format"]
    if sharding is not Sharding.NONE and instances > 1:
        replicas["dp_replicate"] = instances
    replicas["dp_overlap"] = overlaps
    if values["dp"] * values["cp"] > 1 and sharding is Sharding.PARTIAL and overlaps > gathers:
        reason = "not given: the all-gather of weights is predicted to overlap, too"
        given.replace("--overlap-param-gather", reason)
    return replicas


FULL_STAGE = 3
"""The stage of ZeRO that shards weights, too."""

DIST_MUON = "dist_muon"
"""Muon with a distributed optimizer, by a former name of both."""


def _sharding(given: Arguments) -> Sharding:
    stage = given["--zero-stage"]
    strategy, distributed = (
        given["--data-parallel-sharding-strategy"],
        given["--use-distributed-optimizer"],
    )
    if stage is not None and stage > FULL_STAGE:
        given.refuse("--zero-stage", f"must be at most {FULL_STAGE}, not {stage}")
    if stage:
        return Sharding(f"zero{stage}")
    if given["--use-torch-fsdp2"]:
        return Sharding.FULL
    if given["--use-megatron-fsdp"]:
        if strategy not in STRATEGIES:
            given.refuse("--data-parallel-sharding-strategy", f"{strategy!r} is not known")
        return STRATEGIES[strategy]
    is_sharded = distributed or given["--optimizer"] == DIST_MUON
    return Sharding.PARTIAL if is_sharded else Sharding.NONE
