"""Experiments that other frameworks can say: nothing of them is missing in a launch file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from bfpp.schedules.settings.recomputation import CORE_ATTENTION, EXPERT_ACTIVATION, MLP, NORM
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.models.model import load_model

DENSE = ("llama3-8b", "llama2-7b", "gpt3-5b", "gpt-1.2b", "nemotron3-8b")
SPARSE = ("deepseek-v2", "qwen3-30b-a3b", "gpt-oss-120b", "mixtral-8x22b")


@st.composite
def of_megatron(draw: st.DrawFn) -> Experiment:
    """Experiments of Megatron-LM."""
    few = st.sampled_from([1, 2, 4])
    sparse = draw(st.booleans())
    pp, tp, cp, dp = draw(few), draw(few), draw(st.sampled_from([1, 2])), draw(few)
    loops = draw(st.sampled_from([1, 2])) if pp > 2 else 1
    layers = pp * loops * draw(st.integers(1, 3))
    model = load_model(draw(st.sampled_from(SPARSE if sparse else DENSE)))
    model = replace(model, layers=layers, sequence=2048, dense_layers=min(model.dense_layers, 1))
    tied = model.tied_embeddings and pp > 1
    values: dict[str, Any] = {
        "model": model, "cluster": draw(st.sampled_from(["dgx-h100", "dgx-b200"])),
        "implementation": "current", "pp": pp, "tp": tp, "cp": cp, "dp": dp,
        "microbatches": pp * draw(st.integers(1, 3)), "microbatch_size": draw(st.integers(1, 2)),
        "schedule": "depth-first" if loops > 1 else "1f1b", "clipping": True,
        "sharding": draw(st.sampled_from(["none", "partial"])), "tied_embeddings": tied,
        "dp_overlap": draw(st.booleans()) if dp * cp > 1 else True,
        "pp_overlap": draw(st.booleans()) if loops > 1 else pp == 1,
        "precision": draw(st.sampled_from(["bf16", "fp16", "fp32", "fp8-current", "fp8-delayed"])),
        "recompute": draw(_recomputations(layers // pp // loops, sparse=sparse)),
        "attention": "fused" if cp > 1 else draw(st.sampled_from(["fused", "unfused"])),
        "cuda_graphs": draw(st.booleans()),
    }  # fmt: skip
    if loops > 1:
        values["loops"] = loops
    if values["sharding"] == "partial" and dp > 1 and draw(st.booleans()):
        values["dp_replicate"] = 2
    if tp > 1:
        values["sequence_parallel"] = sparse or draw(st.booleans())
    if tp > 1 and values["sequence_parallel"] and draw(st.booleans()):
        values["tp_overlap"] = "chunked"
    if cp > 1:
        values["cp_comm"] = draw(st.sampled_from(["ring", "all-to-all", "all-gather"]))
    if values["precision"] not in ("fp32", "fp16"):
        values["moments"] = draw(st.sampled_from([None, "bf16", "fp8"]))
        values["main_gradients"] = draw(st.sampled_from([None, "bf16"]))
    values["update_rule"] = draw(st.sampled_from(["adam", "momentum"]))
    if pp > 1 and draw(st.booleans()):
        values["cut"] = _uneven(layers, pp * loops)
    return Experiment(values["schedule"]).changed(
        **values, **(draw(_of_experts(tp * cp * dp)) if sparse else {})
    )


def _uneven(layers: int, stages: int) -> str:
    cut = [layers // stages] * stages
    cut[0] += 1
    cut[-1] -= 1
    return ",".join(map(str, cut))


def _recomputations(of_stage: int, *, sparse: bool) -> st.SearchStrategy[str]:
    modules = st.sets(st.sampled_from([CORE_ATTENTION, NORM, EXPERT_ACTIVATION if sparse else MLP]))
    return st.one_of(
        st.sampled_from(["none", "full", "selective", str(max(of_stage - 1, 1))]),
        modules.map(lambda chosen: ",".join(sorted(chosen)) or "none"),
    )


@st.composite
def _of_experts(draw: st.DrawFn, devices: int) -> dict[str, Any]:
    ep = draw(st.sampled_from([each for each in (1, 2, 4, 8) if devices % each == 0]))
    found: dict[str, Any] = {"ep": ep}
    if ep > 1:
        found["dispatch"] = draw(st.sampled_from(["all-to-all", "deduplicated"]))
        found["microbatch_overlap"] = draw(st.booleans())
    if draw(st.booleans()):
        found["capacity_factor"] = 1.25
    return found | {"fused_router": draw(st.booleans())}


@st.composite
def of_torchtitan(draw: st.DrawFn, *, toml: bool = True) -> Experiment:
    """Experiments of torchtitan: its models, whole, and its schedules.

    Without TOML, configurations in Python have precisions and exchanges of their own.
    """
    name = draw(st.sampled_from(["llama3-8b", "qwen3-30b-a3b", "deepseek-v3"]))
    sparse = name != "llama3-8b"
    pp, tp, cp = (draw(st.sampled_from([1, 2])) for _ in range(3))
    dp, sharding = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from(["none", "full"]))
    if cp > 1 or dp == 1:
        sharding = "full" if cp * dp > 1 else "none"
    schedule = draw(st.sampled_from(["1f1b", "gpipe", "depth-first", "zb1p", "zb-v", "dualpipe-v"]))
    schedule = "1f1b" if pp == 1 else schedule
    values: dict[str, Any] = {
        "model": name, "prediction": name != "deepseek-v3", "cluster": "dgx-b200",
        "implementation": "torchtitan",
        "seq_length": 4096, "pp": pp, "tp": tp, "cp": cp, "dp": dp, "clipping": True,
        "microbatches": 2 * pp * draw(st.integers(1, 2)),
        "microbatch_size": draw(st.integers(1, 2)), "sharding": sharding,
        "gather_per": draw(st.sampled_from(["run", "step"])) if sharding == "full" else "run",
        "reduce_per": "step" if sharding == "full" and pp > 1 else "run",
        "precision": draw(st.sampled_from(["bf16", "fp32", *(["fp8-current", "mxfp8"] * toml)])),
        "recompute": draw(st.sampled_from(["none", "full"])),
    }  # fmt: skip
    if schedule in ("depth-first", "zb1p"):
        values["loops"] = draw(st.sampled_from([2, 3]))
    if cp > 1:
        values["cp_comm"] = draw(st.sampled_from([*(["ring"] * toml), "all-gather"]))
    if sharding == "full" and dp == 4 and draw(st.booleans()):
        values["dp_replicate"] = 2
    if tp > 1:
        values["tp_overlap"] = draw(st.sampled_from([None, "chunked"]))
    if sparse:
        values["ep"] = draw(st.sampled_from([1, tp * cp * dp // values.get("dp_replicate", 1)]))
    if not toml and values.get("ep", 1) == pp == 1 and name != "deepseek-v3":
        values["cuda_graphs"] = draw(st.booleans())
    return Experiment(schedule).changed(**values)
