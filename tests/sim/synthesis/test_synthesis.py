"""Orders that are sought: replayed as the engine does, no worse than bounds and rules allow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.schedules import (
    Communication,
    InvalidConfiguration,
    Layout,
    Operation,
    find_schedule,
    lower,
)
from bfpp.schedules.graph.counts import peak_microbatches
from bfpp.schedules.orders.validity import order_violations
from bfpp.sim.engines.cost_model import Costs, fixed_costs
from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.memory.device_memory import rank_memories
from bfpp.sim.search.objectives import USUAL_JITTER, robust_step_time
from bfpp.sim.synthesis import PLACEMENTS, ordering, synthesize
from bfpp.sim.synthesis.bounds import lower_bound
from bfpp.sim.synthesis.cp_sat import exact
from bfpp.sim.synthesis.cp_sat.exact import solve
from bfpp.sim.synthesis.joint.least_memory import peak_bound
from bfpp.sim.synthesis.ordering import problem_of
from bfpp.sim.synthesis.problem.memory_limits import Counted, memory_of
from bfpp.sim.synthesis.problem.objectives import Aim
from bfpp.sim.synthesis.problem.placements import boards
from bfpp.sim.synthesis.problem.problem import (
    HALVES,
    TRANSFERS,
    WHOLE,
    OrderingProblem,
    Words,
    priced,
)
from bfpp.sim.synthesis.problem.registered_schedules import fastest_rule
from bfpp.sim.synthesis.search.annealing import replayed, search
from bfpp.traces.timeline.period import period

pytestmark = pytest.mark.usefixtures("cpu_clock")

SOME = settings(derandomize=True, deadline=None, max_examples=60)
SOON = 0.2
LONGER = (SOON, 2.0, 20.0)
"""Seconds of searches, until one finds it."""


class OfStages:
    """Seconds by operation and stage."""

    def __init__(self, problem: OrderingProblem) -> None:
        rows = zip(problem.operations, problem.seconds, strict=True)
        self.rows = dict([*rows, *zip(TRANSFERS, problem.transfers, strict=True)])
        self.after = problem.after

    def costs(self, graph) -> Costs:
        seconds = np.zeros(len(graph))
        for operation, row in self.rows.items():
            tasks = graph.operation == operation
            seconds[tasks] = row[graph.unit[tasks]]
        updates = graph.operation == Operation.OPTIMIZER
        seconds[updates] = self.after[graph.rank[updates]]
        return fixed_costs(seconds)


@st.composite
def problems(
    draw, ranks: int = 4, microbatches: int = 4, most_stages: int = 8, *, spans: bool = False
) -> OrderingProblem:
    pp = draw(st.integers(1, ranks))
    down = tuple(range(pp))
    places = [down, down + down[::-1], down * 2, down[::-1]]
    placement = draw(st.sampled_from([each for each in places if len(each) <= most_stages]))
    layout = Layout(pp, draw(st.integers(1, microbatches)), placement=placement)
    operations = draw(st.sampled_from([HALVES, WHOLE]))
    number = st.integers(1, 9).map(float)

    def row() -> list[float]:
        return draw(st.lists(number, min_size=layout.stages, max_size=layout.stages))

    rank = layout.rank_of_stage
    apart = rank[1:] != rank[:-1]
    transfers = np.zeros((2, layout.stages))
    transfers[0, :-1] = np.where(apart, draw(st.sampled_from([0.0, 1.0, 4.0])), 0.0)
    transfers[1, 1:] = np.where(apart, draw(st.sampled_from([0.0, 2.0])), 0.0)
    sizes = np.array(row()) if draw(st.booleans()) else np.ones(layout.stages)
    least = (layout.holds * sizes).sum(axis=1)
    limits = least * draw(st.sampled_from([1.0, 1.5, 2.0, 99.0]))
    seconds = np.array([row() for _ in operations])
    after = np.array(draw(st.sampled_from([[0.0] * pp, row()[:pp]])))
    return OrderingProblem(layout, operations, seconds, transfers, after, sizes, limits, spans)


@SOME
@given(problems(), st.integers(0, 9))
def test_what_is_found_is_right(problem: OrderingProblem, seed: int) -> None:
    """It can run, keeps to the limits, and takes as long as the engine says."""
    found = search(problem, [], 0.0, seed=seed)
    assert found
    for each in found:
        orders = problem.orders(each.words)
        assert order_violations(orders) == []
        assert problem.within(each.words)
        assert problem.words(orders) == each.words
        graph = lower(orders, problem.layout, Communication())
        expected = simulate(graph, OfStages(problem)).step_time
        assert each.seconds == pytest.approx(expected, rel=1e-12)
        assert replayed(problem, each.words) == each.seconds
        assert lower_bound(problem).seconds <= each.seconds * (1 + 1e-9)


def rows_of(problem: OrderingProblem, rank: int) -> Iterator[list[int]]:
    """Every word of a rank whose passes can follow one another."""
    stages = np.flatnonzero(problem.layout.rank_of_stage == rank).tolist()
    kinds, count = len(problem.operations), problem.layout.stages
    codes = [kind * count + stage for kind in range(kinds) for stage in stages]

    def further(word: list[int], left: dict[int, int]) -> Iterator[list[int]]:
        if not any(left.values()):
            yield word
        for code in codes:
            before = code - count
            if left[code] and (before < 0 or left[before] < left[code]):
                yield from further([*word, code], {**left, code: left[code] - 1})

    return further([], dict.fromkeys(codes, problem.microbatches))


def all_words(problem: OrderingProblem) -> Iterator[Words]:
    """Every order, those that cannot run among them."""
    rows = product(*(list(rows_of(problem, rank)) for rank in range(problem.layout.pp)))
    return (list(words) for words in rows)


def least(problem: OrderingProblem) -> float:
    """The least step time, of all words that there are."""
    return min(replayed(problem, words) for words in all_words(problem) if problem.within(words))


@settings(SOME, max_examples=20)
@given(problems(spans=True), st.integers(0, 9))
def test_no_period_is_longer_than_the_longest_span(problem: OrderingProblem, seed: int) -> None:
    """And none is shorter than its bound."""
    for each in search(problem, [], 0.0, seed=seed):
        graph = lower(problem.orders(each.words), problem.layout, Communication())
        timeline = simulate(graph, OfStages(problem))
        passes = timeline.graph.is_compute & (timeline.duration > 0)
        first, last = np.full(problem.layout.pp, np.inf), np.zeros(problem.layout.pp)
        received = np.append(0.0, problem.transfers[0])[graph.unit[passes]]
        received[graph.operation[passes] != Operation.FORWARD] = 0.0
        np.minimum.at(first, graph.rank[passes], timeline.start[passes] - received)
        busy = passes | (graph.operation == Operation.OPTIMIZER)
        np.maximum.at(last, graph.rank[busy], timeline.end[busy])
        assert each.seconds == pytest.approx((last - first).max(), rel=1e-12)
        slack = 1e-9 * each.seconds
        assert lower_bound(problem).seconds - slack <= period(timeline) <= each.seconds + slack


@settings(SOME, max_examples=25)
@given(problems(2, 2, 2))
def test_no_order_beats_the_bound_and_the_best_one_is_found(problem: OrderingProblem) -> None:
    """Against all orders of small problems."""
    best = least(problem)
    assert lower_bound(problem).seconds <= best * (1 + 1e-9)
    found = (search(problem, [], seconds)[0].seconds for seconds in LONGER)
    assert any(seconds == pytest.approx(best) for seconds in found)


@pytest.mark.parametrize("limit", [4, 8])
def test_a_bound_that_a_rule_reaches_is_reached(limit: int) -> None:
    """ZB-H1 has no order before it where it may keep what it keeps, and F = I = W."""
    found = synthesize(Experiment("1f1b", pp=4, microbatches=8), memory_limit=limit, seconds=SOON)
    assert found.step_time == found.bound.seconds == 27
    assert found.rule is not None
    assert found.rule.rule.name == "zb-h1"


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "gpipe"])
def test_a_rule_that_keeps_just_as_much_competes(name: str) -> None:
    """On the first of four ranks 1F1B keeps four micro-batches, as does ZB-H1, which is faster."""
    rule = fastest_rule(Experiment(name, pp=4, microbatches=8))
    assert rule is not None
    assert rule.rule.name == "zb-h1"


@pytest.mark.parametrize(
    ("pp", "more"), [(4, {"microbatches": 6}), (2, {"microbatches": 4, "p2p": "deferred"})]
)
def test_schedules_that_cannot_run_do_not_compete(pp: int, more: dict[str, object]) -> None:
    """Depth-first runs whole sequences; with one queue a rank, most schedules wait for ever."""
    experiment = Experiment("gpipe", pp=pp, **more)
    rules = [each.rule.name for each in boards(experiment, "contiguous", split=True)[0].rules()]
    assert "gpipe" in rules
    assert "depth-first" not in rules
    found = synthesize(experiment, seconds=SOON)
    assert found.rule is not None
    assert found.rule.rule.name in rules
    fastest = fastest_rule(found.experiment)
    assert fastest is None or fastest.rule.name in rules


def test_where_all_orders_deadlock_it_says_so() -> None:
    """The order by which stages are priced deadlocks in these queues too, and is not blamed."""
    experiment = Experiment("1f1b", pp=2, microbatches=4, p2p="deferred")
    with pytest.raises(InvalidConfiguration, match="p2p: every candidate order deadlocks"):
        synthesize(experiment, placement="looped", seconds=SOON)


def test_less_memory_than_any_rule_keeps() -> None:
    """27 is the work; the least step time for two micro-batches a rank, by CP-SAT, is 41."""
    experiment = Experiment("1f1b", pp=4, microbatches=8)
    for seconds in LONGER:
        found = synthesize(experiment, memory_limit=2, seconds=seconds)
        assert found.rule is None
        assert 37 <= found.bound.seconds <= 41 + 1e-6
        if found.step_time == 41:
            return
    raise AssertionError(found)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("split", [True, False])
def test_it_is_no_worse_than_the_best_rule(placement: str, split: bool) -> None:
    experiment = Experiment("1f1b", pp=4, microbatches=8, forward=3.0, backward=5.0, transfer=1.0)
    found = synthesize(experiment, memory_limit=9, placement=placement, split=split, seconds=SOON)
    assert found.bound.seconds <= found.step_time <= (found.rule_step_time or np.inf)
    assert (found.rule_step_time is None) is (placement == "vee" and not split)
    graph = found.experiment.graph()
    assert simulate(graph, found.experiment.costs).step_time == found.step_time
    assert (Operation.BACKWARD_INPUT in graph.operation) <= split
    assert found.experiment.configuration.layout.stages == graph.layout.stages


@settings(SOME, max_examples=15)
@given(problems(2, 2, 4))
def test_what_is_proven_holds(problem: OrderingProblem) -> None:
    """On stages of one rank, too, and whole backward passes; within a step of its whole numbers."""
    known = search(problem, [], SOON)[0]
    bound, words = solve(problem, known, 2.0)
    assert problem.within(words)
    best = replayed(problem, words)
    assert bound.seconds <= min(best, known.seconds) * (1 + 1e-9)
    assert (
        best <= known.seconds * 1.01 + len(problem.seconds.ravel()) * problem.seconds.mean() / 100
    )


@settings(SOME, max_examples=15)
@given(problems(2, 4, 2))
def test_what_is_proven_of_few_micro_batches_holds_for_all(problem: OrderingProblem) -> None:
    known = search(problem, [], SOON)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "MOST_PASSES", 1)
        bound, words = solve(problem, known, 2.0)
    assert words == known.words or "micro-batches" not in bound.by
    assert bound.seconds <= known.seconds * (1 + 1e-9)


def test_placements_that_are_compared_divide_a_rank_alike() -> None:
    """Else the one with the least work would be the best."""
    experiment = Experiment("1f1b", pp=2, microbatches=4, loops=4)
    units = [each.layout.units for each in boards(experiment, "free", split=True)]
    assert units == [8, 8, 8]
    for values, field in (({"loops": 3}, "loops"), ({"units_per_stage": 2}, "units_per_stage")):
        with pytest.raises(InvalidConfiguration) as refusal:
            boards(experiment.changed(**values), "free", split=True)
        assert refusal.value.field == field


def test_a_period_needs_no_warm_up_of_other_ranks() -> None:
    """Where memory is no limit, a rank's work is all of its period."""
    experiment = Experiment("1f1b", pp=4, microbatches=16, transfer=0.5)
    for seconds in LONGER:
        found = synthesize(experiment, objective="period", seconds=seconds)
        assert found.bound.seconds == 48 <= found.seconds < found.step_time
        assert found.seconds == period(simulate(found.experiment.graph(), experiment.costs))
        if found.rule_seconds and found.seconds < found.rule_seconds:
            return
    raise AssertionError(found)


def test_robustness_is_no_worse_than_that_of_the_best_rule() -> None:
    experiment = Experiment("1f1b", pp=4, microbatches=8, transfer=0.5)
    found = synthesize(experiment, memory_limit=4, objective="robustness", seconds=SOON)
    graph = found.experiment.graph()
    quantile = robust_step_time(graph, experiment.costs.costs(graph), USUAL_JITTER)
    assert found.step_time < found.seconds == quantile <= (found.rule_seconds or 0.0)


@settings(SOME, max_examples=8)
@given(problems(2, 2, 2), st.sampled_from([0.0, 0.1, 0.5]))
def test_no_order_keeps_less_than_the_bound_of_the_peak(
    problem: OrderingProblem, slack: float
) -> None:
    """Against all orders of small problems that are fast enough."""
    problem = replace(problem, sizes=np.ones(problem.layout.stages))
    size = problem.layout.pp / problem.layout.stages
    free = problem.limited(np.full(problem.layout.pp, np.inf))
    memory = Counted(np.full(problem.layout.stages, size), free.limits)
    free = replace(free, sizes=memory.sizes)
    every = [list(words) for words in all_words(free)]
    within = (1 + slack) * min(replayed(free, words) for words in every)
    peaks = [free.kept(words).max() for words in every if replayed(free, words) <= within]
    bound, _ = peak_bound(free, memory, within, max(peaks))
    assert size - 1e-9 <= bound <= min(peaks) + 1e-9


@pytest.mark.parametrize(("slack", "peak"), [(0.0, 4), (0.2, 3)])
def test_the_least_memory_within_a_step_time(slack: float, peak: float) -> None:
    """ZB-H1 keeps four, and is the fastest within that limit."""
    experiment = Experiment("1f1b", pp=4, microbatches=8)
    for seconds in LONGER:
        found = synthesize(
            experiment, memory_limit=4, objective="memory", slack=slack, seconds=2 * seconds
        )
        assert found.peak is not None
        assert found.peak.bound <= found.peak.amount <= (found.peak.of_rule or np.inf)
        assert found.step_time <= found.peak.within == 27 * (1 + slack)
        assert peak_microbatches(found.experiment.graph()).max() == found.peak.amount
        if found.peak.amount == peak:
            return
    raise AssertionError(found)


def test_the_least_memory_is_bounded_on_all_placements(monkeypatch) -> None:
    """Not only on the one of the order that is found; proofs would be higher on some."""
    monkeypatch.setattr(ordering, "is_available", lambda: False)
    experiment = Experiment("1f1b", pp=2, microbatches=3, forward=1.0, transfer=0.3)
    sought = {"placement": "free", "memory_limit": 4, "seconds": SOON}
    found = synthesize(experiment, objective="memory", slack=0.3, **sought)
    assert found.peak is not None
    for board in boards(experiment, "free", split=True):
        memory = memory_of(board.experiment, 4, None)
        most = found.peak.amount
        bound, _ = peak_bound(problem_of(board, memory), memory, found.peak.within, most)
        assert found.peak.bound <= bound
    assert found.bound.seconds <= min(
        Aim.STEP.seconds(rule) for board in boards(experiment, "free", split=True)
        for rule in board.rules() if peak_microbatches(rule.graph()).max() <= 4
    )  # fmt: skip


def test_the_least_gigabytes_within_a_step_time() -> None:
    """No more than any schedule as fast reserves."""
    experiment = Experiment(
        "1f1b", pp=4, microbatches=8, tp=8, model="bert-6.6b", cluster="dgx1-v100"
    )
    found = synthesize(experiment, objective="memory", slack=0.3, seconds=SOON)
    physical, peak = found.experiment.require_physical(), found.peak
    reserved = [each.reserved_gb for each in rank_memories(found.experiment.graph(), physical)]
    assert peak is not None
    assert peak.bound <= max(reserved) == peak.amount <= (peak.of_rule or np.inf)
    assert found.step_time <= peak.within


def test_limits_one_a_rank_are_kept_to() -> None:
    limits = [3.0, 2.0, 4.0, 1.0]
    found = synthesize(Experiment("1f1b", pp=4, microbatches=8), memory_limit=limits, seconds=SOON)
    assert (peak_microbatches(found.experiment.graph()) <= limits).all()


def test_gigabytes_are_what_is_reserved() -> None:
    experiment = Experiment(
        "1f1b", pp=8, microbatches=8, tp=8, model="bert-52b", cluster="dgx1-v100"
    )
    for limit in (None, 20.0):
        found = synthesize(experiment, memory_gb=limit, seconds=SOON)
        physical = found.experiment.require_physical()
        reserved = [each.reserved_gb for each in rank_memories(found.experiment.graph(), physical)]
        assert max(reserved) <= (limit or 32.0)


def test_gigabytes_that_one_micro_batch_exceeds_are_told() -> None:
    experiment = Experiment("1f1b", pp=8, microbatches=8, model="bert-52b", cluster="dgx1-v100")
    with pytest.raises(InvalidConfiguration) as caught:
        synthesize(experiment, seconds=SOON)
    least = float(caught.value.reason.split()[-4])
    assert str(caught.value).endswith("of 32 GiB")
    synthesize(experiment, memory_gb=least + 0.1, seconds=SOON)
    with pytest.raises(InvalidConfiguration, match=f" {least} of "):
        synthesize(experiment, memory_gb=least - 0.1, seconds=SOON)


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        (0.5, "one micro-batch alone keeps more on rank 0: 1 of 0.5 micro-batches"),
        ([1, 2], "needs 1 number or 4, not 2"),
    ],
)
def test_a_limit_that_cannot_be(limit: float, reason: str) -> None:
    with pytest.raises(InvalidConfiguration, match=reason):
        synthesize(Experiment("1f1b", pp=4, microbatches=8), memory_limit=limit, seconds=SOON)


def test_passes_that_take_no_time_have_no_best_order() -> None:
    nothing = Experiment("1f1b", pp=2, microbatches=4, forward=0.0, backward=0.0)
    with pytest.raises(InvalidConfiguration, match="forward: no order is better"):
        synthesize(nothing, seconds=SOON)


def test_stages_are_priced_by_their_units() -> None:
    experiment = Experiment("1f1b", pp=2, microbatches=3, units_per_stage=2, transfer=0.5)
    graph = experiment.graph()
    passes, transfers, after = priced(graph, experiment.costs.costs(graph), WHOLE)
    assert passes.tolist() == [[2, 2], [4, 4]]
    assert transfers.tolist() == [[0.5, 0], [0, 0.5]]
    assert after.tolist() == [0, 0]


def test_the_words_of_a_rule_are_its_order() -> None:
    layout = Layout(3, 5)
    orders = find_schedule("1f1b").orders(layout)
    problem = OrderingProblem(
        layout, WHOLE, np.ones((2, 3)), np.zeros((2, 3)), np.zeros(3), np.ones(3), np.full(3, 9.0)
    )
    words = problem.words(orders)
    assert words is not None
    assert [order.tolist() for order in problem.orders(words)] == [o.tolist() for o in orders]
    assert problem.kept(words).tolist() == [3, 2, 1]


@pytest.mark.usefixtures("one_process")
def test_the_command_writes_what_simulate_reads(tmp_path, bfpp, answer) -> None:
    path = tmp_path / "best.csv"
    given = ("--pp", "4", "--microbatches", "8", "--forward", "2", "--transfer", "0.5")
    limited = ("--memory-limit", "3,3,2,1", "--seconds", str(SOON))
    code, out, err = bfpp("schedule", *given, *limited, "--out", path, "--json")
    assert (code, err) == (0, f"wrote {path}\n")
    record = json.loads(out)
    assert record.keys() >= {
        "step_time", "lower_bound", "gap", "best_rule", "best_rule_step_time", "placement",
    }  # fmt: skip
    assert record["gap"] == record["step_time"] / record["lower_bound"] - 1
    assert answer("simulate", str(path))["step_time"] == record["step_time"]
    assert answer("run", str(path), "--backend", "local", "--steps", "2", "--layers", "4",
                  "--hidden", "16", "--context", "8", "--verify", "--precision", "float64",
                  "--recompute", "1,0,1,0")[
        "max_weight_error"
    ] < 1e-10  # fmt: skip
    against = answer("explain", str(path))["fastest_rule"]
    assert (against or {}).get("schedule") == record["best_rule"]
    code, out, _ = bfpp("schedule", *given, *limited, "--out", path)
    assert code == 0
    assert f"bfpp simulate {path}" in out


def test_the_command_says_the_peak_and_its_bound(bfpp, answer) -> None:
    given = "schedule --pp 2 --microbatches 4 --objective memory --slack 30% --seconds 0.5"
    record = answer(*given.split())
    assert record["peak_memory"] == record["peak_memory_bound"] * (1 + record["gap"])
    assert record["step_time"] <= record["within"]
    code, out, _ = bfpp(given)
    assert code == 0
    assert "best schedule within the step time" in out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--memory-limit x", "--memory-limit: 'x' must be a number above 0, or a size as in 40GiB"),
        (
            "--memory-limit 3B",
            "--memory-limit: '3B' must be a number above 0, or a size as in 40GiB",
        ),
        (
            "--memory-limit 2,3GB",
            "--memory-limit: must be in micro-batches or in gigabytes, not both",
        ),
        ("--memory-limit 40GB", "--memory-limit: in gigabytes needs --model and --cluster"),
        ("--slack 5%", "--slack: goes with --objective memory, not step"),
        ("--placement vee --loops 3", "--loops: vee has 2 stages a rank"),
    ],
)
def test_the_command_refuses_in_one_line(words, error, bfpp) -> None:
    code, out, err = bfpp(f"schedule --pp 2 --microbatches 4 {words}")
    assert (code, out) == (2, "")
    assert err == f"bfpp schedule: {error}\n"
