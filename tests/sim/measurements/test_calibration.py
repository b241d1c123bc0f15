"""Calibration from measured times, and the prediction of a run with mocked compute."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bfpp.command_line import main  # noqa: E402
from bfpp.executor.measure.passes.communication import lags  # noqa: E402
from bfpp.executor.measure.passes.fitting import fit_line, least_squares  # noqa: E402
from bfpp.executor.train.measured_timeline import END, READY  # noqa: E402
from bfpp.schedules import Layout, build_graph  # noqa: E402
from bfpp.sim.costs.abstract import AbstractCosts  # noqa: E402
from bfpp.sim.costs.measured.profile import PASSES, load_profile  # noqa: E402
from bfpp.sim.costs.measured.profile_file import inline  # noqa: E402
from bfpp.sim.engines.engines import simulate  # noqa: E402
from tests.helpers.run_program import started_here  # noqa: E402


def test_a_line_is_found_whatever_the_scale():
    line = fit_line([(amount, 2e-4 + 3e-9 * amount) for amount in (1e3, 1e4, 1e5, 1e6, 1e7)])
    assert line.fixed == pytest.approx(2e-4)
    assert line.slope == pytest.approx(3e-9)


def test_the_cost_of_each_kind_of_layer_is_found():
    rows = [(1, 1, 0, 0), (1, 0, 1, 0), (1, 0, 3, 0), (1, 0, 0, 1), (1, 1, 2, 0), (1, 0, 2, 1)]
    costs = np.array([0.5, 1.0, 4.0, 2.0])
    found = least_squares(rows, [float(costs @ row) for row in rows])
    assert found == pytest.approx(costs.tolist())


def test_nothing_costs_less_than_nothing():
    assert min(least_squares([(1, 1), (1, 2)], [2.0, 1.0])) == 0.0


def test_lags_are_told_by_the_task_that_ended_last():
    graph = build_graph("gpipe", Layout(2, 3))
    timeline = simulate(graph, AbstractCosts(transfer=0.25))
    columns = np.zeros((4, len(graph)))
    columns[END] = timeline.end
    columns[READY] = timeline.start + 0.01
    found = list(lags(graph, columns))
    assert all(lag == pytest.approx(0.01) for _, lag in found)
    assert {wakes for wakes, _ in found} == {True, False}


@pytest.mark.usefixtures("one_process")
def test_a_run_that_sleeps_takes_as_long_as_predicted(tmp_path, profile, answer):
    """With sleeps so long that neither a busy machine nor communication matters much."""
    lines = Path(profile).read_text().splitlines()
    layers = next(number for number, line in enumerate(lines) if line == "layers = [")
    sizes = {"parameters": 50_000, "bytes": 65_536}
    seconds = {"forward": 0.01, "backward": 0.03, "backward_input": 0.02, "backward_weight": 0.01}
    nothing = {"count": 1, **dict.fromkeys(seconds, 0), **sizes}
    layer = {"count": 8, **seconds, **sizes}
    lines[layers + 1 : layers + 4] = [f"{inline(each)}," for each in (nothing, layer, nothing)]
    slow = tmp_path / "slow.toml"
    slow.write_text("\n".join(lines))
    for schedule, ranks, backend in (("breadth-first", 2, "cpu"), ("zb1p", 4, "local")):
        words = [schedule, "--pp", ranks, "--loops", 2, "--microbatches", 4]
        predicted = answer("simulate", *words, "--profile", slow)["step_time"]
        sleeping = ("--backend", backend, "--sleep", slow, "--steps", 3)
        runs = answer("run", *words, *sleeping)["step_times"]
        assert predicted > 8 * (0.01 + 0.03)
        assert 0.8 * predicted < min(runs) < 1.5 * predicted


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    """Measurements with all ranks in one process."""
    path = str(tmp_path_factory.mktemp("measured") / "profile.toml")
    size = ("--layers", "3", "--hidden", "16", "--context", "8")
    with started_here():
        assert main(["calibrate", "--quick", "--backend", "local", *size, "--out", path]) == 0
    return path


def test_all_ranks_in_one_process_are_measured(profile, answer):
    costs = load_profile(profile)
    assert len(costs.layers) == 5
    for kind in PASSES:
        assert costs.pass_seconds(Layout(1, 1), kind).min() > 0
    assert len(costs.channels) == 2
    assert all(line["fixed"] + line["per_parameter"] > 0 for line in costs.data.values())
    assert answer("simulate", "gpipe", "--pp", 2, "--profile", profile)["step_time"] > 0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--layers", 4), "profile is of 5 layers and micro-batches of 4, not 6 and 4, or "),
        (("--layers", 3, "--microbatch-size", 2), "profile is of 5 layers and micro-batches of 4,"),
        (("--layers", 3, "--ends", "own", "--pp", 3), "profile is of 5 layers"),
        (("--layers", 3, "--verify"), "--verify has no meaning with mocked compute"),
    ],
)
def test_sleeps_are_those_of_the_same_model(profile, bfpp, words, error):
    code, out, err = bfpp("run", "gpipe", "--pp", 2, "--sleep", profile, *words)
    assert (code, out) == (2, "")
    assert err.startswith(f"bfpp run: --mock-compute: {error}")
    assert err.count("\n") == 1
