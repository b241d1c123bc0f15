"""What calibration makes of measured times, and what a run that sleeps is predicted to take."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bfpp.commands.calibrate import inline  # noqa: E402
from executor.calibration.communication import lags  # noqa: E402
from executor.calibration.fitting import fit_line, least_squares  # noqa: E402
from executor.measured import END, READY  # noqa: E402
from schedules import Layout, build_graph  # noqa: E402
from sim.costs import AbstractCosts  # noqa: E402
from sim.engines import simulate  # noqa: E402


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
    graph = build_graph("gpipe", Layout(2, 3, placement="contiguous"))
    timeline = simulate(graph, AbstractCosts(transfer=0.25))
    columns = np.zeros((4, len(graph)))
    columns[END] = timeline.end
    columns[READY] = timeline.start + 0.01
    found = list(lags(graph, columns))
    assert all(lag == pytest.approx(0.01) for _, lag in found)
    assert {wakes for wakes, _ in found} == {True, False}


def bfpp(*words):
    command = [sys.executable, "-m", "bfpp.command_line", *map(str, words), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_run_that_sleeps_takes_as_long_as_predicted(tmp_path):
    """With sleeps so long that a busy machine does not matter much."""
    measured, profile = tmp_path / "measured.toml", tmp_path / "profile.toml"
    bfpp("calibrate", "--quick", "--out", measured)
    lines = measured.read_text().splitlines()
    layers = next(number for number, line in enumerate(lines) if line == "layers = [")
    sizes = {"parameters": 50_000, "bytes": 65_536}
    nothing = {"count": 1, "forward": 0, "backward": 0, **sizes}
    layer = {"count": 8, "forward": 0.01, "backward": 0.03, **sizes}
    lines[layers + 1 : layers + 4] = [f"{inline(each)}," for each in (nothing, layer, nothing)]
    profile.write_text("\n".join(lines))
    words = ["breadth-first", "--pp", 4, "--loops", 2, "--microbatches", 4]
    predicted = bfpp("simulate", *words, "--profile", profile)["step_time"]
    runs = bfpp("run", *words, "--sleep", profile, "--steps", 5)["step_times"]
    assert predicted > 8 * (0.01 + 0.03)
    assert 0.8 * predicted < min(runs) < 1.5 * predicted
