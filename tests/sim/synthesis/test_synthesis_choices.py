"""Layers of stages and recomputation that are chosen together with an order."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from itertools import product
from math import inf, nan

import numpy as np
import pytest

from bfpp.schedules import InvalidConfiguration, Sharding
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.memory.device_memory import rank_memories
from bfpp.sim.models.model import load_model
from bfpp.sim.synthesis import synthesize
from bfpp.sim.synthesis.bounds import lower_bound
from bfpp.sim.synthesis.joint.descent import Choosing
from bfpp.sim.synthesis.joint.joint_bound import bound_of_any_cut
from bfpp.sim.synthesis.joint.least_memory import least_memory, peak_of_any
from bfpp.sim.synthesis.ordering import BoardSearch, problem_of
from bfpp.sim.synthesis.problem.memory_limits import memory_of
from bfpp.sim.synthesis.problem.objectives import Aim
from bfpp.sim.synthesis.problem.placements import Board, boards
from tests.sim.synthesis.test_synthesis import LONGER, SOON, least

pytestmark = pytest.mark.usefixtures("cpu_clock")

TINY = replace(load_model("bert-6.6b"), layers=4, vocabulary=30_000 * 16)
"""Its head takes as long as several layers."""


def experiment(pp: int, microbatches: int, **values: object) -> Experiment:
    return Experiment(
        "1f1b", pp=pp, microbatches=microbatches, model=TINY, cluster="dgx1-v100", recompute="none"
    ).changed(**values)


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize(("sharding", "spans"), [("none", False), ("full", False), ("none", True)])
def test_no_cut_beats_the_bound_of_any(split: bool, sharding: str, spans: bool) -> None:
    """Against the bounds of all cuts; where the optimizer takes no time, against all orders."""
    bounds, steps, passes = [], [], []
    for first in range(1, TINY.layers):
        given = experiment(2, 2, dp=2, sharding=sharding, cut=f"{first},{TINY.layers - first}")
        [board] = boards(given, "contiguous", split=split)
        problem = problem_of(board, memory_of(board.experiment, 9.0, None))
        problem = replace(problem, spans=spans)
        steps.append(lower_bound(problem).seconds)
        quick = replace(problem, after=np.zeros(2))
        passes.append(least(quick))
        bounds.append(
            [
                bound_of_any_cut(given.require_physical(), each, Sharding(sharding)).seconds
                for each in (problem, quick)
            ]
        )
    of_steps, of_passes = zip(*bounds, strict=True)
    assert 0.75 * min(steps) < min(of_steps) <= max(of_steps) <= min(steps)
    assert 0.75 * min(passes) < min(of_passes) <= max(of_passes) <= min(passes)


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("microbatches", [2, 8])
def test_where_stages_turn_back_no_cut_beats_the_mean_of_all_work(
    split: bool, microbatches: int
) -> None:
    """All layers and both ends are on some rank, whatever the cut; the optimizer comes after."""
    given = experiment(2, microbatches, dp=2)
    [board] = boards(given, "vee", split=split)
    problem = problem_of(board, memory_of(board.experiment, 9.0, None))
    bound = bound_of_any_cut(given.require_physical(), problem, Sharding.NONE)
    mean = microbatches * problem.seconds.sum() / 2
    assert bound.by == "the mean of all ranks' work"
    assert mean < bound.seconds <= mean + problem.after.mean()


@pytest.mark.parametrize(
    ("loops", "objective"), [(1, "step"), (2, "step"), (2, "period"), (1, "robustness")]
)
def test_a_cut_that_is_chosen_is_no_slower_than_a_rule_on_the_given_one(
    loops: int, objective: str
) -> None:
    placement = "contiguous" if loops == 1 else "vee"
    given = experiment(2, 4)
    sought = {"placement": placement, "memory_limit": 4, "objective": objective, "seconds": SOON}
    found = synthesize(given, choose=["cut"], **sought)
    ruled = synthesize(given, **sought)
    assert found.rule_seconds is not None
    assert ruled.rule_seconds is not None
    assert found.bound.seconds <= found.seconds <= found.rule_seconds <= ruled.rule_seconds
    assert sum(found.experiment.layers_of_stages) == TINY.layers


@pytest.mark.parametrize("objective", ["step", "period"])
def test_a_balanced_cut_is_found(objective: str) -> None:
    given = experiment(2, 4)
    sought = {"memory_limit": 4, "objective": objective, "seconds": SOON}
    found = synthesize(given, choose=["cut"], **sought)
    assert found.experiment.cut in ("3,1", "4,0")
    assert found.seconds < synthesize(given, **sought).seconds


def test_a_cut_is_found_for_which_no_order_is_known() -> None:
    """Within 70 GB, what a dispatch finds at once with these layers takes 4.27 s."""
    given = Experiment(
        "1f1b", pp=4, microbatches=16, model="llama3-8b", cluster="dgx-h100",
        implementation="current",
    )  # fmt: skip
    found = (synthesize(given, memory_gb=70, choose=["cut"], seconds=each) for each in LONGER)
    assert any(each.experiment.cut == "7,9,9,7" and each.seconds < 3.4 for each in found)


def test_only_what_has_no_room_is_recomputed() -> None:
    """Between what fits without recomputation and with that of all layers."""
    given = experiment(4, 8, microbatch_size=4, model="bert-6.6b", layers=8, tp=2)
    reserved = [
        max(each.reserved_gb for each in rank_memories(of.graph(), of.require_physical()))
        for of in (given.changed(recompute="full"), given)
    ]
    limit = sum(reserved) / 2
    found = synthesize(given, memory_gb=limit, choose=["recompute"], seconds=1.0)
    again = found.experiment.require_physical().layers(found.experiment.configuration.layout)
    assert 0 < again.recomputed.sum() < 8
    memories = rank_memories(found.experiment.graph(), found.experiment.require_physical())
    assert max(each.reserved_gb for each in memories) <= limit
    all_again = synthesize(given.changed(recompute="full"), memory_gb=limit, seconds=SOON)
    assert found.bound.seconds <= found.seconds < all_again.seconds


@pytest.mark.parametrize(
    ("sharding", "limit"), [("full", {"memory_gb": 200}), ("none", {"memory_limit": 9})]
)
@pytest.mark.parametrize("names", [["recompute"], ["cut"], ["cut", "recompute"]])
def test_no_choice_keeps_less_than_the_bound_of_any(sharding, limit, names) -> None:
    """Against all schedules in time, of all cuts, with none, some or all layers recomputed."""
    given = experiment(2, 4, dp=2, sharding=sharding, cut="2,2")
    cuts = [f"{first},{TINY.layers - first}" for first in range(TINY.layers + 1)]
    policies = ["none", "full", "1,0", "0,1", "1,1"] if "recompute" in names else ["none"]

    def on(board: Board) -> BoardSearch:
        memory = memory_of(board.experiment, *map(limit.get, ("memory_limit", "memory_gb")))
        return BoardSearch(board, memory, Aim.MEMORY, problem_of(board, memory))

    [board] = boards(given, "contiguous", split=True)
    rules = []
    for cut, policy in product(cuts if "cut" in names else ["2,2"], policies):
        with suppress(InvalidConfiguration):
            search = on(board.changed(board.experiment.changed(cut=cut, recompute=policy)))
            peaks = (search.memory.peaks(each.experiment).max() for each in search.fitting_rules)
            rules += zip((each.seconds for each in search.fitting_rules), peaks, strict=True)
    for slack in (0.0, 0.1, 0.5):
        within = (1 + slack) * min(seconds for seconds, _ in rules)
        least = min(peak for seconds, peak in rules if seconds <= within)
        bound, _ = peak_of_any(Choosing(on, names), on(board), within, 999.0)
        assert 0.2 * least < bound <= least


@pytest.mark.parametrize(("names", "most"), [(["recompute"], 68.0), (["cut"], 61.0)])
def test_choices_leave_the_fullest_rank_with_less(names: list[str], most: float) -> None:
    """Within a limit that the given layers do not fit in, too: 68.9 GB is their least."""
    given = experiment(2, 4, microbatch_size=4)
    sought = {"objective": "memory", "slack": 0.4, "seconds": 5 * SOON}
    assert synthesize(given, memory_gb=200, **sought).peak.amount > 68.5
    for limit in (200, 68.5):
        found = synthesize(given, memory_gb=limit, choose=names, **sought)
        peak = found.peak
        assert peak is not None
        assert peak.bound <= peak.amount < most
        memories = rank_memories(found.experiment.graph(), found.experiment.require_physical())
        assert max(each.reserved_gb for each in memories) == peak.amount
        assert found.step_time <= peak.within * (1 + 1e-9)


def test_a_stage_without_layers_keeps_nothing() -> None:
    given = experiment(3, 4, cut="2,0,2")
    found = synthesize(given, memory_gb=200, seconds=SOON)
    assert found.bound.seconds <= found.seconds
    peak = synthesize(given, memory_gb=200, objective="memory", slack=0.4, seconds=SOON).peak
    assert peak is not None
    assert peak.bound <= peak.amount


def test_a_rank_without_layers_leaves_the_bound_of_any_cut_as_it_is() -> None:
    given = experiment(4, 4, layers=2)
    found = synthesize(given, memory_gb=200, placement="vee", choose=["cut"], seconds=SOON)
    assert 0 < found.bound.seconds <= found.seconds


def test_a_choice_never_keeps_more_than_the_rule_that_it_begins_with() -> None:
    """Recomputed layers keep more in halves, which orders of rules become in the search."""
    given = experiment(4, 16, microbatch_size=4, recompute="full", model="bert-6.6b", layers=8)
    [board] = boards(given, "contiguous", split=True)

    def on(board: Board) -> BoardSearch:
        memory = memory_of(board.experiment, None, 200)
        return BoardSearch(board, memory, Aim.MEMORY, problem_of(board, memory))

    fastest, choosing = on(board).best(0.0), Choosing(on, ["cut"])
    peak = least_memory([(board, fastest)], 0.3, 0.0, None, choosing).peak
    assert peak is not None
    assert peak.of_rule is not None
    assert peak.amount <= peak.of_rule


def test_backward_passes_stay_whole_where_halves_keep_too_much() -> None:
    """All that is recomputed is kept between them; with halves alone, it takes 5 % longer."""
    given = experiment(4, 8, microbatch_size=8, tp=8, model="bert-6.6b", layers=8, recompute="full")
    sought = {"memory_gb": 6, "placement": "vee"}
    assert any(synthesize(given, seconds=each, **sought).gap < 0.01 for each in LONGER)


def test_the_file_says_what_was_chosen(tmp_path, bfpp, answer) -> None:
    path = tmp_path / "best.csv"
    given = (
        "schedule --model bert-6.6b --cluster dgx1-v100 --tp 8 --pp 2 --microbatches 4 --layers 4 "
        "--seconds 0.3 --choose cut,recompute --memory-limit 9"
    )
    code, out, _ = bfpp(*given.split(), "--out", str(path), "--json")
    record = json.loads(out)
    assert code == 0
    assert answer("simulate", str(path))["step_time"] == pytest.approx(record["step_time"])
    assert f"# recompute = {record['recompute']}" in path.read_text()


@pytest.mark.parametrize(
    ("values", "more", "error"),
    [
        ({}, {"choose": ["cuts"]}, "choose: 'cuts' is not one of cut, recompute"),
        ({"recompute": "selective"}, {"choose": ["recompute"]}, "choose: recomputes whole layers"),
        ({}, {"placement": "circular"}, "placement: 'circular' is not one of contiguous, vee,"),
        ({}, {"seconds": inf}, "seconds: must be a number of seconds, .* not inf"),
        ({}, {"seconds": nan}, "seconds: must be a number of seconds, .* not nan"),
        ({}, {"seconds": -1}, "seconds: must be a number of seconds, at least 0 .* not -1"),
    ],
)
def test_what_cannot_be_chosen(values, more, error) -> None:
    with pytest.raises(InvalidConfiguration, match=error):
        synthesize(experiment(2, 4, **values), **{"seconds": SOON, **more})


def test_abstract_costs_have_no_layers() -> None:
    with pytest.raises(InvalidConfiguration, match="choose: needs --model and --cluster"):
        synthesize(Experiment("1f1b", pp=2, microbatches=4), choose=["cut"], seconds=SOON)
