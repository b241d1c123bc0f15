"""Searches of eight models with the defaults alone, beside the published recipe of each.

The recipe's own configuration has to be among those that are tried, and is predicted with the same
constants and batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from benchmarks.helpers.measure import Results
from bfpp.api.searching import chosen_configurations, search
from bfpp.api.workers import Workers
from bfpp.commands.search import add_arguments
from bfpp.options.search import problem_of
from bfpp.reports.search.table import SHOWN, choices_of, groups
from bfpp.sim.search.decision import kind_of, surer_ties_first
from bfpp.sim.search.evaluation import evaluation_of
from bfpp.sim.search.outcomes import Outcome, Outcomes
from bfpp.sim.search.problem import Problem
from bfpp.sim.search.ranking import ranked
from bfpp.terminal.parser import Parser

CORES = 2
BRIDGE = "Megatron-Bridge"


class Published(NamedTuple):
    """A published recipe for H100 in bf16: whose it is, and its values that are no defaults."""

    model: str
    gpus: int
    batch: int
    by: str
    values: dict[str, Any]


PUBLISHED = (
    Published("llama3-8b", 64, 1024, BRIDGE, {"cp": 2}),
    Published("llama3-70b", 64, 256, BRIDGE, {"tp": 4, "pp": 4, "cp": 2, "loops": 5}),
    Published("llama3-405b", 1024, 1536, BRIDGE, {"tp": 8, "pp": 8, "cp": 2, "loops": 8}),
    Published("mixtral-8x22b", 128, 256, "Megatron-LM", {"tp": 2, "pp": 8, "ep": 8}),
    Published(
        "deepseek-v3", 1024, 16384, BRIDGE,
        {"tp": 2, "pp": 8, "loops": 4, "ep": 64, "recompute": "mla_up_proj,mlp"},
    ),
    Published("qwen3-30b-a3b", 64, 4096, BRIDGE, {"ep": 16}),
    Published(
        "gpt-oss-120b", 64, 1280, BRIDGE, {"pp": 4, "ep": 8, "recompute": "layernorm,moe_act"},
    ),
    Published("gpt3-175b", 128, 256, "NeMo", {"tp": 4, "pp": 8, "loops": 6}),
)  # fmt: skip
"""At these commits: NVIDIA-NeMo/Megatron-Bridge 067f987 (perf_recipes, h100, bf16; of Llama 3 8B
for 8 GPUs, here on eight times as many), NVIDIA/Megatron-LM d98e8a6 (the functional test
mixtral_8x22b_tp2pp8ep8vpp1_release), NVIDIA/NeMo 8cfedd7 (recommended_model_configs)."""

REMARKS = """\
As `bfpp search --model MODEL --cluster dgx-h100 --gpus GPUS --batch BATCH` has it: defaults alone.
Groups are pp x tp x dp, dp in brackets as groups x replicas.
GiB are reserved, of 80, to the upper end of the 80 % interval, with the probability to fit.
Recipes have micro-batches of one sample, ZeRO-1, and interleaved 1F1B where they loop.
Cuts of layers that do not divide are the search's.
"""


def run() -> Results:
    rows = [_row(each) for each in PUBLISHED]
    return Results(
        "Eight models, searched",
        "the recipe is among what is tried; the best fits with at least 90 %",
        rows,
        REMARKS.splitlines(),
    )


def _row(published: Published) -> dict[str, Any]:
    problem = _problem(published)
    chosen = chosen_configurations(problem)
    with Workers(count=CORES) as workers:
        parts = [part.outcomes for part in search(problem, workers, top=SHOWN)]
    best_first = ranked(Outcomes.joined(parts), problem.objective, problem.risk)
    best = surer_ties_first(problem, best_first)[0]
    [recipe] = [each for each in chosen if _is(published, each)]
    known = evaluation_of(problem).outcome(recipe)
    return {
        "model": published.model,
        "GPUs": published.gpus,
        "batch": published.batch,
        "tried": len(chosen),
        "simulated": len(best_first),
        "best": _said(best),
        "MFU (%)": _percent(best.mfu),
        "GiB, fits": _memory(best),
        "published": f"{published.by}: {_said(known)}",
        "its MFU (%)": _percent(known.mfu),
        "its GiB, fits": _memory(known),
    }


def _problem(published: Published) -> Problem:
    parser = Parser(prog="bfpp search")
    add_arguments(parser)
    given = {"model": published.model, "cluster": "dgx-h100"}
    given |= {"gpus": str(published.gpus), "batch": str(published.batch)}
    options = parser.parse_args(
        [word for each in given.items() for word in (f"--{each[0]}", each[1])]
    )
    return replace(problem_of(options), risk=options.risk)


def _is(published: Published, configuration: Any) -> bool:
    """True for the configuration of a recipe, of those that are tried."""
    values = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "dp_replicate": 1} | published.values
    loops, recompute = values.pop("loops", 1), values.pop("recompute", "none")
    each, pp = configuration, values["pp"]
    if loops > 1:
        ordered = each.schedule.name == "depth-first" and each.schedule.parameters["sequence"] == pp
    else:
        ordered = each.schedule.name == "1f1b"
    return (
        ordered
        and (pp == 1 or each.loops == loops)
        and each.microbatch_size == 1
        and str(each.communication.sharding) == "partial"
        and set(str(each.recompute).split(",")) == set(recompute.split(","))
        and all(getattr(each.degrees, name) == value for name, value in values.items())
    )


def _said(outcome: Outcome) -> str:
    each = outcome.configuration
    looped = f", {each.loops} loops" if each.degrees.pp > 1 and each.loops > 1 else ""
    size = f"micro-batches of {each.microbatch_size}"
    return ", ".join([f"{kind_of(each)} {groups(outcome)}{looped}", size, *choices_of(outcome)])


def _percent(share: float) -> float:
    return round(100 * share, 1)


def _memory(outcome: Outcome) -> str:
    reserved, high = outcome.memory_reserved_gb, outcome.memory_reserved_high_gb
    return f"{reserved:.0f} to {high:.0f}, {outcome.fits_probability:.0%}"
