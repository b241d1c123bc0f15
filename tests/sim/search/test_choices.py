"""Values that a search tries by default, frameworks that it is for, and the risk that it takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from bfpp.launchers.frameworks import framework_config
from bfpp.launchers.limits import TARGETS, launches_of
from bfpp.schedules import Per, Sharding
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.cluster.software_profiles import CURRENT, TORCHTITAN
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.memory.peak_memory import CONTEXT, RESERVED, fits_probability, safe_total
from bfpp.sim.models.model import load_model
from bfpp.sim.search.decision import decision, surer_ties_first
from bfpp.sim.search.defaults import (
    context_sizes,
    replica_groups,
    usual_cut,
    usual_policies,
    usual_ranges,
    usual_schedules,
)
from bfpp.sim.search.enumeration import configurations
from bfpp.sim.search.objectives import Objective
from bfpp.sim.search.outcomes import Outcomes
from bfpp.sim.search.problem import Problem
from bfpp.sim.search.pruning import Request, evaluate_best, most_promising_first
from bfpp.sim.search.ranking import faster_than, ranked, safer_than

H100 = load_cluster("dgx-h100")
SMALL = replace(load_model("llama3-8b"), layers=6)


def problem(target: str = "any", **values):
    """A search of a small model on 16 H100 for a framework."""
    chosen = TARGETS[target]
    software = TORCHTITAN if target == "torchtitan" else CURRENT
    usual = usual_ranges(SMALL, software) | chosen.ranges | {"schedules": usual_schedules(software)}
    return Problem(
        SMALL,
        H100,
        (16,),
        (16,),
        implementation=software,
        **({"limits": chosen.limits} | usual | values),
    )


def test_context_parallelism_leaves_4096_tokens_to_each_device():
    assert context_sizes(load_model("gpt3-175b"), 64) == [1]  # 2,048 tokens
    assert context_sizes(SMALL, 64) == [1, 2]
    assert context_sizes(replace(SMALL, sequence=131072), 64) == [1, 2, 4, 8, 16, 32]


def test_groups_of_replicas_fill_a_node():
    assert replica_groups(H100, 2, 16) == [1, 4]
    assert replica_groups(H100, 8, 16) == [1]
    assert replica_groups(H100, 1, 8) == [1]


def test_layers_are_cut_unevenly_only_where_they_do_not_divide():
    assert usual_cut(80, 16) == "equal"
    assert usual_cut(126, 64) == "fewer-at-ends"
    assert usual_cut(61, 16) == "even"


def test_modules_are_recomputed_that_models_have():
    assert usual_policies(load_model("deepseek-v3"), CURRENT) == (
        "none", "layernorm,moe_act", "mla_up_proj", "mla_up_proj,mlp", "full",
    )  # fmt: skip
    assert "layernorm,mlp" in usual_policies(SMALL, CURRENT)


@pytest.mark.parametrize("target", ["megatron", "torchtitan", "bfpp"])
def test_no_configuration_is_tried_that_its_framework_cannot_launch(target):
    """Each is asked of as a whole, in the words of its launch file; others are counted."""
    broken = Counter()
    space = configurations(problem(target), broken)
    assert len(space) > 50
    assert any(rule.startswith(f"{target}: ") for rule in broken)
    places = np.random.default_rng(1).choice(len(space), 40, replace=False)
    for configuration in space.take(np.sort(places)):
        experiment = _experiment(configuration, "bfpp" if target == "bfpp" else "current")
        [limits] = TARGETS[target].limits
        assert limits.reason(experiment) is None
        if target != "bfpp":
            assert launches_of(experiment)[target] is None
            missing = framework_config(experiment.changed(clipping=True), target).missing
            assert not [each for each in missing if each.startswith(("ZeRO", "replicas"))]


def _experiment(configuration, implementation):
    each, degrees = configuration, configuration.degrees
    return Experiment(
        each.schedule,
        model=SMALL,
        cluster="dgx-h100",
        implementation=implementation,
        pp=degrees.pp,
        dp=degrees.dp,
        tp=degrees.tp,
        cp=degrees.cp,
        dp_replicate=degrees.dp_replicate,
        microbatches=each.microbatches,
        microbatch_size=each.microbatch_size,
        loops=each.loops,
        sharding=each.communication.sharding,
        gather_per=each.communication.gather_per,
        reduce_per=each.communication.reduce_per,
        run_length=each.communication.run_length,
        pp_overlap=each.communication.pp_overlap,
        recompute=str(each.recompute),
        tp_overlap=each.tp_overlap and str(each.tp_overlap),
        cut=each.cut and ",".join(map(str, each.cut)),
    )


def test_what_none_can_launch_is_not_tried_at_all():
    """Zero-bubble schedules with ZeRO-1: Megatron-LM has no such order, torchtitan no ZeRO-1."""
    space = configurations(problem(tp_overlap=("chunked",)))
    assert len(set(space)) == len(space)
    own = [set(configurations(problem(limits=limits))) for limits in _each()]
    assert set(space) == set().union(*own)
    assert all(len(each) < len(space) for each in own)
    split = [each for each in space if each.schedule.name == "zb1p" and each.degrees.tp > 1]
    assert split
    assert Sharding.PARTIAL not in {each.communication.sharding for each in split}


def _each():
    return [TARGETS[name].limits for name in ("megatron", "torchtitan", "bfpp")]


def test_no_way_to_offload_is_tried_that_a_framework_does_not_have():
    """torchtitan offloads nothing, and Megatron-LM modules of every pass."""

    def tried(target, **fixed):
        broken = Counter()
        ways = problem(target, offload=(0, 1), fixed=tuple(fixed.items()))
        space = configurations(ways, broken)
        offloads = {each.communication.offload for each in space}
        return offloads, {rule for rule in broken if "offload" in rule}

    assert tried("torchtitan") == ({0}, {"torchtitan: offloading of activations"})
    every = "megatron: offloading all that a pass saves, or"
    assert tried("megatron") == ({0}, {f"{every} 1 of it"})
    assert tried("megatron", offload_share=0.5) == ({0}, {f"{every} 0.5 of it"})
    assert tried("megatron", offload_modules="core_attn") == ({0, 1}, set())
    assert tried("bfpp") == ({0, 1}, set())


def test_communication_is_as_a_framework_makes_it():
    megatron = configurations(problem("megatron"))
    piped = [each for each in megatron if each.degrees.pp > 1]
    assert {each.schedule.name for each in piped} == {"1f1b", "depth-first"}
    for each in megatron:
        alone = each.degrees.pp > 1 and each.loops == 1
        assert each.communication.pp_overlap is not alone
        runs = each.communication.sharding is Sharding.FULL and each.microbatches > 1
        assert (each.communication.run_length == 1) is runs
    torchtitan = configurations(problem("torchtitan"))
    assert Sharding.PARTIAL not in {each.communication.sharding for each in torchtitan}
    assert len({each.communication.gather_per for each in torchtitan}) == 2
    for each in torchtitan:
        once = each.degrees.pp > 1 and each.communication.sharding is Sharding.FULL
        assert (each.communication.reduce_per is Per.STEP) is once


def test_the_probability_to_fit():
    """Half at all of the memory; a log-normal deviation of a tenth; a share of it is safe."""
    assert fits_probability(np.array([80.0]), 80.0)[0] == pytest.approx(0.5)
    assert fits_probability(np.array([80 / np.exp(0.12816)]), 80.0)[0] == pytest.approx(0.9, 1e-4)
    reserved = RESERVED * safe_total(80 * 2**30, 0.1) + CONTEXT
    assert fits_probability(np.array([reserved]), 80 * 2**30)[0] == pytest.approx(0.9, 1e-9)
    assert (safe_total(1.0, 0.0), safe_total(1.0, 1.0)) == (0.0, float("inf"))


@pytest.fixture(scope="module")
def tight():
    """All outcomes of a search on devices of which some configurations take nearly all."""
    device = replace(H100.device, memory_limit=24 * 2.0**30)
    values = {"cluster": replace(H100, device=device), "schedules": ("1f1b", "breadth-first")}
    asked = replace(problem(dp_replicate=(1,), cp=(1,)), risk=0.1, **values)
    return asked, evaluate_best(asked, configurations(asked)).outcomes


def test_the_best_are_those_that_hold(tight):
    asked, outcomes = tight
    anyhow, best = ranked(outcomes), ranked(outcomes, risk=0.1)
    assert len(anyhow) == len(best)
    safe = best.fits_probability >= 0.9
    assert safe[0]
    assert not safe.all()
    assert list(safe) == sorted(safe, reverse=True)
    for some in (best[: int(safe.sum())], best[int(safe.sum()) :]):
        assert list(some.samples_per_second) == sorted(some.samples_per_second, reverse=True)
    first = surer_ties_first(asked, best)[0]
    assert first.fits_probability >= best[0].fits_probability
    assert first.samples_per_second > 0.93 * best[0].samples_per_second


def test_what_is_left_out_is_none_of_the_best_that_hold(tight):
    asked, outcomes = tight
    best = ranked(outcomes, risk=0.1)
    in_order = most_promising_first(asked, configurations(asked))
    found = evaluate_best(asked, in_order, Request(3))
    assert len(found.outcomes) < len(outcomes)
    kept = ranked(found.outcomes, risk=0.1)
    assert list(kept.samples_per_second[:3]) == list(best.samples_per_second[:3])


def test_what_is_safer_and_what_is_faster(tight):
    _, outcomes = tight
    best = ranked(outcomes, risk=0.1)
    winner = best[0]
    safer = safer_than(winner, best)
    assert safer.memory_reserved_gb <= winner.memory_reserved_gb - 0.05 * 80
    slow = best[len(best) // 2]
    faster = faster_than(slow, best)
    assert faster.samples_per_second > slow.samples_per_second
    assert faster.fits_probability < slow.fits_probability
    assert faster_than(winner, Outcomes.of([winner])) is None


def test_the_best_is_compared_with_what_has_as_many_devices_and_the_batch(tight):
    """By cost, what is fast on more devices is neither a tie nor a rival of the best."""
    asked = replace(tight[0], gpus=(4, 16), batches=(16, 32), objective=Objective.COST)
    ranking = ranked(evaluate_best(asked, configurations(asked)).outcomes, asked.objective)
    devices = ranking.space.devices
    unsure = next(
        each for each in ranking.take(np.flatnonzero(devices == 4)) if each.fits_probability < 0.99
    )
    sure = [
        each
        for each in ranking.take(np.flatnonzero(devices == 16))
        if each.fits_probability > 0.995
    ]
    assert sure
    assert surer_ties_first(asked, Outcomes.of([unsure, *sure]))[0] == unsure
    chosen = decision(asked, ranking, ranking[:3], lambda calls: [call() for call in calls])
    assert chosen.rivals
    compared = [chosen.winner, *(rival.outcome for rival in chosen.rivals)]
    sizes = {(each.configuration.degrees.devices, each.configuration.batch) for each in compared}
    assert len(sizes) == 1
