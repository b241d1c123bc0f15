"""Remedies of uneven experiments: their gain is that of the experiment that they lead to."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bfpp.api.predictions import predict
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.remedies.remedies import remedies
from bfpp.traces.stragglers.gains import Remedy

LENGTHS = "512:600,2048:250,8192:120,16384:20,32768:10"


def experiment(**values) -> Experiment:
    return Experiment("1f1b", **{"pp": 4, "dp": 4, "microbatches": 8, "reduce": 0.4, **values})


def remedies_of(values: Experiment) -> dict[tuple[str, str], Remedy]:
    found = remedies(values, predict(values).uneven)
    gains = [each.gain for each in found]
    assert gains == sorted(gains, reverse=True)
    return {(each.name, each.change): each for each in found}


def named(found: dict[tuple[str, str], Remedy], name: str) -> list[Remedy]:
    return [each for (own, _), each in found.items() if own == name]


def mean(values: Experiment) -> float:
    uneven = predict(values).uneven
    return uneven.mean if uneven else predict(values).timeline.step_time


def test_devices_that_are_replaced_are_as_fast_as_the_others():
    found = remedies_of(experiment(slow="rank=2,replica=1:1.3 rank=0:1.1"))
    one = found["replace", "devices at rank=2,replica=1 as fast as the others"]
    assert one.step_time == pytest.approx(mean(experiment(slow="rank=0:1.1")))
    other = found["replace", "devices at rank=0 as fast as the others"]
    assert other.step_time == pytest.approx(mean(experiment(slow="rank=2,replica=1:1.3")))
    assert one.gain > 0
    assert one.low is None


def test_what_does_not_apply_is_not_there():
    names = {name for name, _ in remedies_of(experiment(slow="rank=2,replica=1:1.3"))}
    assert names == {"replace", "drop", "schedule", "background-sync"}
    alone = {name for name, _ in remedies_of(experiment(slow="rank=2:1.3", dp=1))}
    assert alone == {"replace", "schedule"}


def test_a_replica_left_out_leaves_its_work_to_the_others():
    [found] = named(remedies_of(experiment(slow="replica=1:3")), "drop")
    even = predict(experiment(dp=1)).timeline.step_time
    assert found.step_time == pytest.approx(even * 4 / 3)


def test_other_schedules_are_simulated_with_the_same_draws():
    uneven = experiment(lengths=LENGTHS, attention_share=0.4, sampled_steps=4)
    for found in named(remedies_of(uneven), "schedule"):
        name = found.change.partition(",")[0]
        assert found.step_time == pytest.approx(mean(uneven.changed(schedule=name)))


def test_micro_batches_of_unequal_length():
    uneven = experiment(lengths=LENGTHS, attention_share=0.6, sampled_steps=8)
    found = remedies_of(uneven)
    [balanced], [both], [shared] = (
        named(found, name) for name in ("balance", "balance, longest-first", "context-parallel")
    )
    assert both.low < both.gain < both.high
    assert min(balanced.gain, both.gain, shared.gain) > 0
    packings = {each.change.rpartition(" ")[2]: each for each in named(found, "packing")}
    assert packings.keys() == {"first-fit", "best-fit"}
    [limit] = named(found, "packing-limit")
    assert limit.gain < 0  # of 4 micro-batches, the bubble is larger


def test_padding_takes_time_and_is_no_work():
    uneven = experiment(lengths="20000:1,13000:1", packing="concatenate", sampled_steps=2)
    for found in named(remedies_of(uneven), "packing"):
        name = found.change.rpartition(" ")[2]
        padded = mean(uneven.changed(packing=name))
        assert found.step_time == pytest.approx(padded * 40 / 33, rel=0.02)


def test_images_move_with_their_samples():
    uneven = experiment(images="0:3,8:1", image_seconds=0.5, sampled_steps=4)
    found = remedies_of(uneven)
    work = {each.name: each.gain for each in found.values() if each.name != "schedule"}
    assert work["balance, longest-first"] > 0
    assert work["context-parallel"] > 0


def test_pauses_in_the_same_steps_cost_less():
    [found] = named(remedies_of(experiment(pauses="gc:4/8", sampled_steps=24)), "pause-together")
    assert found.gain > 0.02


def test_routing_is_capped_and_experts_are_placed():
    routing = "90,80,10,10,50,50,10,20"
    found = remedies_of(experiment(dp=8, ep=4, routing=routing, expert_share=0.5))
    [capped], [placed] = (named(found, name) for name in ("capacity-factor", "expert-placement"))
    # Of 320 tokens, 80 a device: 170 at most as they are placed, 100 with 50 for each expert.
    base = mean(experiment(dp=8, ep=4, routing=routing, expert_share=0.5))
    assert base == pytest.approx(0.4 + 33 * (1 + 0.5 * (170 / 80 - 1)))
    assert capped.step_time == pytest.approx(0.4 + 33 * (1 + 0.5 * (100 / 80 - 1)))
    assert placed.step_time == pytest.approx(capped.step_time)  # 90 + 10, 80 + 10, 50 + 20, ...


def test_layers_move_away_from_a_slow_rank():
    values = {"tp": 4, "model": "llama3-8b", "cluster": "dgx-h100", "slow": "rank=2:1.3"}
    uneven = experiment(reduce=None, **values)
    [found] = named(remedies_of(uneven), "recut")
    cut = found.change.rpartition(" ")[2]
    layers = np.array([int(each) for each in cut.split(",")])
    assert layers.sum() == 32
    assert layers[2] < 8
    assert found.step_time == pytest.approx(mean(uneven.changed(cut=cut)))
    assert found.gain > 0.03


def test_explain_prints_remedies_and_has_them_in_json(bfpp, answer, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    words = "explain 1f1b --pp 2 --dp 2 --microbatches 4 --slow rank=1,replica=0:1.5"
    found = answer(words)["remedies"]
    assert found[0].keys() == {"name", "change", "step_time", "gain", "low", "high"}
    code, out, _ = bfpp(words)
    assert code == 0
    assert "Remedies, by what they would save" in out
    assert "devices at rank=1,replica=0 as fast as the others" in out
    assert "remedies" not in answer("explain 1f1b --pp 2 --microbatches 4")
    assert json.dumps(found)
