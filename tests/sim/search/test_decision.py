"""Decisions of a search: objectives, kept results, reasons of the winner, and next steps."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from bfpp.options import shared
from bfpp.schedules import Sharding, build_graph
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.cluster.software_profiles import CURRENT
from bfpp.sim.experiment.experiment import experiment_of
from bfpp.sim.experiment.uncertainty import ENDS, FASTER, SLOWER, Doubt, difference_spread
from bfpp.sim.models.model import load_model
from bfpp.sim.search.decision import (
    COMMUNICATION,
    RECOMPUTATION,
    RIVALS,
    account_of,
    decision,
    distance,
    kind_of,
    parts_of_step,
)
from bfpp.sim.search.enumeration import configurations
from bfpp.sim.search.evaluation import Evaluation, evaluate
from bfpp.sim.search.objectives import Jitter, Objective, robust_step_time
from bfpp.sim.search.outcomes import Outcomes
from bfpp.sim.search.problem import Problem
from bfpp.sim.search.pruning import Request, evaluate_best, most_promising_first
from bfpp.sim.search.ranking import KEYS, pareto, ranked, without_duplicates
from bfpp.sim.search.space import CostSetting
from bfpp.terminal.parser import Parser
from tests.sim.experiment.test_experiment import values

SMALL = replace(load_model("bert-6.6b"), layers=4, name="small")
PROBLEM = Problem(
    SMALL, load_cluster("dgx1-v100"), (8,), (16,), ("gpipe", "1f1b", "depth-first", "breadth-first")
)
TODAY = Problem(
    replace(load_model("llama3-8b"), layers=4, sequence=512), load_cluster("dgx-h100"), (8,), (16,),
    ("1f1b", "zb-h1"), CURRENT, recompute=("none", "full"),
)  # fmt: skip


@pytest.fixture(scope="module")
def outcomes():
    return evaluate(PROBLEM, configurations(PROBLEM))


@pytest.mark.parametrize("problem", [PROBLEM, TODAY], ids=["paper", "current"])
def test_the_parts_of_a_step_are_all_of_it(problem):
    known = Evaluation(problem)
    for each in configurations(problem)[::17]:
        timeline, physical = known.timeline(each), known.physical(CostSetting.of(each))
        parts = parts_of_step(timeline, physical)
        assert sum(parts.values()) == pytest.approx(timeline.step_time, rel=1e-9)
        again = physical.recomputation.modules
        assert (parts[RECOMPUTATION] > 0) == bool(again)
        alone = each.degrees.tp == each.degrees.pp == each.degrees.dp == 1
        assert not alone or parts[COMMUNICATION] == pytest.approx(0, abs=1e-12)
        assert min(parts.values()) > -1e-9


def test_communication_inside_passes_is_told_apart():
    """Without latency, at a bandwidth without end, none is left."""
    known = Evaluation(PROBLEM)
    some = next(each for each in configurations(PROBLEM) if each.degrees.tp == 8)
    inside = parts_of_step(known.timeline(some), known.physical(CostSetting.of(some)))[
        COMMUNICATION
    ]
    assert inside > 0
    slow = replace(PROBLEM.cluster.levels[0], bandwidth=PROBLEM.cluster.levels[0].bandwidth / 2)
    slower = replace(PROBLEM.cluster, levels=(slow, *PROBLEM.cluster.levels[1:]))
    known = Evaluation(replace(PROBLEM, cluster=slower))
    assert (
        parts_of_step(known.timeline(some), known.physical(CostSetting.of(some)))[COMMUNICATION]
        > inside
    )


def test_the_winner_is_compared_with_the_best_of_other_kinds(outcomes):
    best_first = ranked(outcomes)
    shown = best_first[::7]

    def all_of(calls):
        return [call() for call in calls]

    found = decision(PROBLEM, best_first, shown, all_of)
    assert found.winner == best_first[0]
    kinds = [kind_of(each.outcome.configuration) for each in found.rivals]
    assert len({kind_of(found.winner.configuration), *kinds}) == len(kinds) + 1 <= RIVALS + 1
    for rival in found.rivals:
        alike = [each for each in best_first if kind_of(each.configuration) in kinds]
        assert rival.outcome in alike
        assert sum(rival.longer.values()) == pytest.approx(
            rival.outcome.step_time - found.winner.step_time
        )
        share = rival.distance.share
        assert share == pytest.approx(rival.outcome.step_time / found.winner.step_time - 1)
        assert rival.distance.ties == (share < rival.distance.margin)
    assert found.ties.keys() == {each.configuration for each in shown} - {
        best_first[0].configuration
    }
    doubt = account_of(PROBLEM, best_first[0]).doubt
    for each in shown[1:]:
        its = account_of(PROBLEM, each).doubt
        assert found.ties[each.configuration] == distance(best_first[0], each, doubt, its).ties
    assert set(found.ties.values()) == {True, False}
    for each in shown:
        interval = found.intervals[each.configuration]
        assert 0.5 * each.step_time < interval.low < each.step_time < interval.high
    assert decision(PROBLEM, Outcomes.of([]), [], all_of) is None


def test_what_both_depend_on_alike_makes_no_tie():
    changes = np.array([0.1, 0.2])
    one = Doubt({FASTER: -changes, SLOWER: changes}, 0.0)
    other = Doubt({FASTER: -changes, SLOWER: 2 * changes}, 0.0)
    assert [difference_spread(one, one, end) for end in ENDS] == [0, 0]
    assert difference_spread(one, other, FASTER) == 0
    assert difference_spread(one, other, SLOWER) == pytest.approx(np.hypot(0.1, 0.2))
    assert difference_spread(one._replace(residual=0.1), one, SLOWER) == pytest.approx(0.12816)


def test_a_method_is_ranked_once(outcomes):
    best_first = ranked(outcomes)
    once = list(without_duplicates(best_first))
    assert once == [each for each in best_first if each in once]
    assert len(once) < len(best_first)
    alone = [each.configuration for each in once if each.configuration.degrees.pp == 1]
    methods = {
        (of.degrees, of.microbatches, of.microbatch_size, of.communication.sharding) for of in alone
    }
    assert len(methods) == len(alone)
    for each in best_first:
        assert any(
            other.step_time <= each.step_time
            and other.configuration.degrees == each.configuration.degrees
            for other in once
        )


@pytest.mark.parametrize("objective", Objective)
def test_the_best_by_any_objective_are_found_without_the_others(objective):
    problem = replace(PROBLEM, gpus=(4,), batches=(8,), objective=objective, jitter=Jitter(draws=2))
    chosen = configurations(problem)
    every = ranked(evaluate(problem, chosen), objective)
    keys = list(zip(*(key.tolist() for key in KEYS[objective](every)), strict=True))
    assert keys == sorted(keys)
    found = evaluate_best(problem, most_promising_first(problem, chosen), Request(5))
    best = zip(*KEYS[objective](ranked(found.outcomes, objective)[:5]), strict=True)
    assert list(best) == keys[:5]
    assert list(pareto(ranked(found.outcomes))) == list(pareto(ranked(every)))


@pytest.mark.parametrize("objective", [Objective.THROUGHPUT, Objective.MEMORY])
def test_what_was_met_counts_once_in_all_pieces_of_work(objective):
    problem = replace(PROBLEM, objective=objective)
    chosen = configurations(problem)
    every = ranked(evaluate(problem, chosen), objective)
    met, top = every[:4], 7
    missing = most_promising_first(problem, chosen.take(~chosen.are_in(met.space)))
    request, size = Request(top, met), len(missing) // 10
    pieces = [missing[at : at + size] for at in range(0, len(missing), size)]
    found = [evaluate_best(problem, piece, request).outcomes for piece in pieces]
    best = ranked(Outcomes.joined([met, *found]), objective)
    first, _ = KEYS[objective](best[:top])
    assert list(first) == list(KEYS[objective](every[:top])[0])


def test_jitter_is_drawn_alike_each_time():
    known, some = Evaluation(PROBLEM), configurations(PROBLEM)[40]
    graph = build_graph(some.schedule, some.layout, some.communication)
    costs = known.physical(CostSetting.of(some)).costs(graph)
    still = robust_step_time(graph, costs, Jitter(0.0))
    assert still == pytest.approx(known.outcome(some).step_time, rel=1e-12)
    jitter = Jitter(0.1)
    assert robust_step_time(graph, costs, jitter) == robust_step_time(graph, costs, jitter)
    assert robust_step_time(graph, costs, jitter._replace(seed=1)) != robust_step_time(
        graph, costs, jitter
    )
    by_quantile = [
        robust_step_time(graph, costs, jitter._replace(quantile=quantile))
        for quantile in (0.0, 0.5, 1.0)
    ]
    assert by_quantile == sorted(by_quantile)
    if graph.layout.pp > 1:
        assert by_quantile[1] > still  # the slowest rank decides


COMMAND = (
    "search --top all --model bert-6.6b --cluster dgx1-v100 --gpus 4 --batch 8 --workers 1 "
    "--risk 1 --fix layers=4"
)


@pytest.fixture
def search(answer):
    def run(words=""):
        return answer(f"{COMMAND} {words}")

    return run


def test_what_is_fixed_is_what_remains_of_all(search):
    every = search()
    kept = search(
        "--fix tp=2,4 --fix sharding=none,zero1 --fix schedule=1f1b,depth-first --fix pp=2"
    )
    expected = [
        row
        for row in every["configurations"]
        if row["tp"] in (2, 4)
        and row["sharding"] in ("none", "partial")
        and row["schedule"] in ("1f1b", "depth-first")
        and row["pp"] == 2
    ]
    for row in (*expected, *kept["configurations"]):
        for name in ("pareto", "ties", "step_time_low", "step_time_high"):
            del row[name]  # with those that are ranked
    assert kept["configurations"] == expected
    assert 0 < kept["tried"] < every["tried"]


def test_other_values_hold_for_all(search, answer):
    found = search("--fix clipping=true --fix attention=fused --fix microbatch-size=2 --fix pp=2")
    best = found["configurations"][0]
    assert {row["microbatch_size"] for row in found["configurations"]} == {2}
    names = ("pp", "tp", "dp", "loops", "microbatches", "sharding", "microbatch_size")
    words = [word for name in names for word in (f"--{name.replace('_', '-')}", str(best[name]))]
    given = "--model bert-6.6b --cluster dgx1-v100 --layers 4 --clipping --attention fused"
    again = answer("simulate", best["schedule"], *given.split(), *words)
    assert again["step_time"] == pytest.approx(best["step_time"], rel=1e-12)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--fix tp", "--fix: 'tp' is not NAME=VALUE"),
        ("--fix tpp=2", "--fix: there is no 'tpp'; did you mean 'tp'"),
        ("--fix tp=two", "--fix: tp: must be a whole number of at least 1, not 'two'"),
        ("--fix model=gpt-3", "--fix: model: --model says it"),
        ("--fix forward=1", "--fix: forward: is not searched"),
        ("--fix attention=fused,unfused", "--fix: attention takes one value, not 2"),
        ("--fix attention=fuse", "--fix: attention: 'fuse' is not one of"),
        ("--fix tp=3", "cannot be divided"),
        (
            "--gpus 32 --batch 32 --fix tp=16",
            "a batch of 32: tp: 16 is more than the 8 devices that intra_node joins",
        ),
        (
            "--model deepseek-v3 --fix tp=4",
            "a batch of 8: tp: experts with tensor parallelism need --sequence-parallel",
        ),
        ("--max-memory much", "must be a size above 0, as in 60GiB, not 'much'"),
        ("--max-memory 600GB", "--max-memory: a device of dgx1-v100 has 32 GiB"),
        ("--jitter-quantile 2", "--jitter-quantile: must be from 0 to 1, not 2"),
    ],
)
def test_what_cannot_be_kept_is_told(bfpp, words, reason):
    code, _, error = bfpp(f"{COMMAND} {words}")
    assert code == 2
    assert reason in error
    assert error.count("\n") == 1


def test_rules_that_configurations_break_are_counted(bfpp, search, monkeypatch):
    monkeypatch.setenv("COLUMNS", "500")
    words = "--schedule dualpipe --schedule 1f1b"
    broken = search(words)["invalid"]
    rule = "microbatches: dualpipe needs an even number of at least 4 on 2 ranks, not 2"
    assert broken[rule] > 0
    assert f"{rule} ({broken[rule]})" in bfpp(f"{COMMAND} {words}")[1]
    assert search("--schedule 1f1b")["invalid"] == {}


def test_memory_may_be_limited(bfpp, search):
    every = search("--fix pp=2")["configurations"]
    limit = round(sorted(row["memory_reserved_gb"] for row in every)[len(every) // 2], 3) + 0.001
    found = search(f"--fix pp=2 --max-memory {limit}GB")["configurations"]
    assert [row["step_time"] for row in found] == [
        row["step_time"] for row in every if row["memory_reserved_gb"] <= limit
    ]
    assert 0 < len(found) < len(every)
    assert {row["device_memory_gb"] for row in found} == {32}
    said = bfpp(f"{COMMAND} --fix pp=2 --max-memory {limit}GB")[1]
    assert "than a device has" not in said
    assert "needs more memory than may be reserved" in said
    assert f"of {limit:.0f} GiB reserved, up to" in said
    assert "of 32 GiB" not in said


def test_stages_of_one_size_are_not_called_uneven(bfpp):
    said = bfpp(f"{COMMAND} --fix pp=2,8 --cut even")[1]
    assert "Best: " in said
    assert not re.search(r"\b(\d+) to \1 layers", said)


def test_what_is_missing_counts_from_the_limit_or_from_the_device(bfpp, monkeypatch):
    monkeypatch.setenv("COLUMNS", "500")
    large = "search --model bert-52b --cluster dgx1-v100 --gpus 8 --batch 8 --fix pp=8"
    for words, limit, what in (
        (f"{COMMAND} --fix pp=2 --max-memory 1GB", 1, "--max-memory allows"),
        (large, 32, "a device has"),
    ):
        code, out, _ = bfpp(f"{words} --json")
        nearest = json.loads(out)["nearest"]
        reserved, missing = nearest["memory_reserved_gb"], nearest["missing_gb"]
        assert (code, nearest["device_memory_gb"]) == (1, 32)
        assert missing == pytest.approx(reserved - limit)
        needs = f"needs {missing:.1f} GiB more than {what}: {reserved:.1f} GiB reserved of 32 GiB"
        assert needs in bfpp(words)[1]


def test_the_report_says_why_and_what_next(bfpp, monkeypatch):
    monkeypatch.setenv("COLUMNS", "500")
    robust = "--fix pp=2,4 --fix microbatch_size=1 --objective robustness --jitter-draws 2"
    code, out, _ = bfpp(f"{COMMAND} --price 2 {robust}")
    assert code == 0
    assert "Best: " in out
    assert "Against " in out
    assert "With jitter, 90% of steps take at most " in out
    assert " p90 step " in out
    commands = [line.split() for line in out.splitlines() if line.startswith("  bfpp ")]
    assert [words[1] for words in commands] == ["simulate", "run", "experiment"]
    assert "Not launched with torchtitan: " in out
    code, told, _ = bfpp(*commands[0][1:], "--json")
    record = json.loads(told)
    best = json.loads(bfpp(f"{COMMAND} {robust} --json")[1])
    assert record["step_time"] == pytest.approx(best["configurations"][0]["step_time"], rel=1e-12)
    assert bfpp(*commands[2][1:])[0] == 0


@settings(max_examples=40, derandomize=True, deadline=None)
@given(values())
def test_options_say_what_an_experiment_says(given_values):
    experiment = experiment_of(given_values)
    parser = Parser()
    shared.add_schedule_argument(parser)
    shared.add_experiment_arguments(parser)
    assert shared.experiment(parser.parse_args(shared.words(experiment))) == experiment
    assert experiment.sharding in Sharding
