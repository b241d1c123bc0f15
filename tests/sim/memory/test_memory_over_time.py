"""Memory over a step: its peak is the predicted one, and its figure shows it."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest

from bfpp.schedules import find_schedule
from bfpp.schedules.columns import NONE
from bfpp.schedules.operations.operations import Operation
from bfpp.sim.costs.units.activations import activations_of_units
from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.memory.device_memory import rank_memories
from bfpp.sim.memory.memory_over_time import memory_over_time
from bfpp.traces.figures.svg.memory import MOST_ROWS, svg_memory
from bfpp.traces.timeline.memory_curves import curves, fullest
from bfpp.traces.timeline.memory_record import PARTS
from bfpp.traces.timeline.units import GIGABYTE

CASES = {
    "1f1b": {"schedule": "1f1b"},
    "sharded": {"schedule": "breadth-first", "loops": 2, "dp": 2, "sharding": "full"},
    "recomputed": {"schedule": "gpipe", "recompute": "full", "implementation": "megatron"},
    "halves": {"schedule": "zb-h1", "recompute": "full"},
    "halves of the head": {
        "schedule": "v-half",
        "recompute": "full",
        "implementation": "fsdp",
        "pp_overlap": False,
    },
    "gradients that come and go": {
        "schedule": "breadth-first",
        "loops": 2,
        "dp": 2,
        "sharding": "full",
        "implementation": "torchtitan",
    },
    "shards that come": {
        "schedule": "1f1b",
        "pp": 2,
        "microbatches": 1,
        "dp": 4,
        "sharding": "full",
        "implementation": "torchtitan",
    },
    "blocks": {"schedule": "dualpipe-v", "microbatches": 8},
    "copies": {"schedule": "chimera"},
    "slices": {"schedule": find_schedule("seq1f1b", slices=2)},
}


def predicted(**values):
    usual = {"pp": 4, "microbatches": 8, "implementation": "current", "model": "gpt-1.2b"}
    experiment = Experiment(**(usual | {"cluster": "dgx-h100", "layers": 8} | values))
    physical = experiment.require_physical()
    return simulate(experiment.graph(), physical), physical


def curves_of(timeline, physical):
    return curves(timeline, memory_over_time(timeline.graph, physical))


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_the_highest_moment_is_the_peak(values):
    timeline, physical = predicted(**values)
    found = curves_of(timeline, physical)
    for curve, memory in zip(found, rank_memories(timeline.graph, physical), strict=True):
        assert curve.total.max() == pytest.approx(memory.total_gb)
        assert (np.diff(curve.time) >= 0).all()
        at_peak = {name: part[curve.peak] for name, part in curve.parts.items()}
        assert at_peak == pytest.approx(memory.parts_gb)
        assert curve.task[curve.peak] != NONE
        # Before the first step and after the last there are no activations.
        staying = (memory.total - max(memory.saved + memory.transient, memory.update)) / GIGABYTE
        assert curve.total[0] == pytest.approx(staying)
        assert curve.parts["saved activations"][-1] == pytest.approx(0, abs=1e-9)
        assert len(curve.thinned(20).time) <= 20
        assert curve.thinned(20).total.max() == curve.total.max()


def test_what_a_rank_holds_between_steps_is_what_waits_for_its_backward_pass():
    """The last rank of 1F1B holds one micro-batch while it computes, and none while it waits."""
    timeline, physical = predicted(schedule="1f1b", transfer=None)
    found = curves_of(timeline, physical)
    last = found[-1]
    saved = last.parts["saved activations"]
    assert (saved[last.task == NONE] < 1e-9).all()
    assert fullest(found) is found[0]


def test_between_halves_all_that_is_restored_stays():
    """While a backward pass runs, the layer that it restores is transient; then it is saved."""
    timeline, physical = predicted(**CASES["halves"])
    graph, units = timeline.graph, activations_of_units(physical, timeline.graph.layout)
    _, tasks = graph.compute_tasks
    for held in memory_over_time(graph, physical):
        keeps, expected = 0.0, []
        for task in tasks[graph.rank[tasks] == held.rank]:
            unit = graph.unit[task]
            saved, halved = units.saved[unit], units.halved[unit]
            match graph.operation[task]:
                case Operation.FORWARD:
                    keeps += saved
                case Operation.BACKWARD_INPUT:
                    keeps += halved
                case Operation.BACKWARD:
                    keeps -= saved
                case Operation.BACKWARD_WEIGHT:
                    keeps -= saved + halved
            expected.append(keeps)
        found = held.after[PARTS["saved"]][: len(expected)]
        assert found == pytest.approx(expected, abs=1)


def test_the_figure_has_a_row_for_some_ranks_and_the_fullest():
    timeline, physical = predicted(schedule="1f1b", pp=24, layers=24, microbatches=24)
    found = curves_of(timeline, physical)
    drawn = svg_memory(found, "a <title>", timeline.step_time, 0.5)
    tree = ElementTree.fromstring(drawn)
    texts = [each.text for each in tree.iter("{http://www.w3.org/2000/svg}text")]
    ranks = [each for each in texts if each and each.startswith("rank ")]
    assert len(ranks) in (MOST_ROWS, MOST_ROWS + 1)
    assert f"rank {fullest(found).rank}" in ranks
    assert {"rank 0", "rank 23", "device memory: 0.5 GiB", "saved activations"} <= set(texts)


def test_simulate_tells_the_peak_and_draws_the_curve(answer, bfpp, tmp_path):
    words = "1f1b --model gpt-1.2b --cluster dgx-h100 --pp 4 --microbatches 8"
    record = answer(f"simulate {words}")
    peak, curves = record["memory_peak"], record["memory_over_time"]
    assert max(curves[peak["rank"]]["gb"]) == pytest.approx(record["memory_largest_gb"], rel=1e-5)
    assert peak["stage"] == peak["rank"]
    assert 0 < peak["time"] < record["step_time"]
    low, high = record["memory_reserved_low_gb"], record["memory_reserved_high_gb"]
    assert low < record["memory_reserved_gb"] < high
    path = tmp_path / "memory.svg"
    code, out, _ = bfpp("simulate", *words.split(), "--memory-svg", str(path))
    assert code == 0
    assert f"peak memory on rank {peak['rank']}, " in out
    assert ElementTree.parse(path).getroot().tag.endswith("svg")
    code, _, err = bfpp("simulate", "1f1b", "--memory-svg", str(path))
    assert (code, err.count("\n")) == (2, 1)
    assert "--memory-svg: needs --model and --cluster" in err
