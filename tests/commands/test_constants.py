"""Output of `fit`, `measure` and `validate` for made-up results, to the letter and the number.

Four rows, whose errors are 10 %, -20 %, 0 % and 2 %: on average 8 %; of table E.1 alone 15 %. With
their methods left out: 30 %, -10 %, 4 % and -4 %, on average 12 %.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bfpp.options.running.measuring import Measured
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.costs.measured.profile_file import as_toml
from bfpp.sim.experiment.uncertainty import Interval
from bfpp.sim.measurements.calibration import Calibration, MeasuredConstant
from bfpp.sim.measurements.fit import Fit, FittedConstant, Parameter
from bfpp.sim.measurements.validation import Comparison, Measurement, compare
from tests.helpers.hand import require_golden
from tests.sim.costs.measured.test_profile import PROFILE

Run = Callable[..., tuple[int, str, str]]

TABLE = """table,model,cluster,schedule,pp,microbatches,step_seconds
E.1,gpt-345m,dgx1-v100,gpipe,2,2,1
E.1,gpt-345m,dgx1-v100,gpipe,2,4,1
E.1,gpt-345m,dgx1-v100,1f1b,2,2,1
,gpt-345m,dgx1-v100,1f1b,2,4,1
"""
ERRORS = [0.10, -0.20, 0.0, 0.02]
LEFT_OUT = [0.30, -0.10, 0.04, -0.04]
TARGET = (("clusters", "dgx1-v100", "device", "matmul_efficiency"),)
FITTED = (
    FittedConstant(Parameter("matmul_efficiency", "share", 0.1, 1, TARGET), 0.54321, 0.0125, True),
    FittedConstant(Parameter("latency", "s", 1e-7, 1e-3, TARGET), 1.5e-5, np.inf, False),
)

# fmt: off
ROWS = [
    {"kind": "product", "pass": "forward", "precision": "bf16", "seconds": 1.0},
    {"kind": "product", "pass": "forward", "precision": "bf16", "seconds": 2.0},
    {"kind": "product", "precision": "fp8", "library": "cutlass", "seconds": 2.0},
    {"kind": "attention", "backward": False, "seconds": 1.0},
    {"kind": "attention", "backward": True, "seconds": 1.0},
    {"kind": "sustained", "seconds": 1.0},
    {"kind": "copy", "way": "to the host", "seconds": 1.0},
    {"kind": "collective", "name": "all_reduce", "seconds": 1.0},
]
RATIOS = (1.1, 0.8, 1.0, 1.25, 0.5, None, 1.0, 0.99)
# fmt: on
MEASURED = Calibration(
    load_cluster("dgx-a100"),
    (
        MeasuredConstant(("device", "matmul_efficiency"), 0.61234, 0.0123),
        MeasuredConstant(("intra_node", "latency"), 2.5e-6, 0.5),
    ),
    RATIOS,
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)  # as wide as in files
    Path("table.csv").write_text(TABLE)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Fits end as above, at once; whether each left out methods."""
    every = []

    def fitted(rows: Any, cross_validate: bool, progress: Any) -> Fit:
        assert len(rows) == len(ERRORS)
        assert progress is None
        every.append(cross_validate)
        return Fit(
            FITTED, np.array([[5e-4]]), np.array(ERRORS),
            np.array(LEFT_OUT) if cross_validate else None,
        )  # fmt: skip

    monkeypatch.setattr("bfpp.commands.fit.fit", fitted)
    monkeypatch.setattr("bfpp.commands.fit.too_few", lambda _: False)
    return every


def test_the_tables_of_a_fit(bfpp: Run, asked: list[bool]) -> None:
    code, out, error = bfpp("fit table.csv")
    assert (code, error, asked) == (0, "", [True])
    require_golden("printed/fit.txt", out)


def test_the_record_of_a_fit(bfpp: Run, asked: list[bool]) -> None:
    code, out, _ = bfpp("fit table.csv --json")
    assert (code, asked) == (0, [True])
    groups = [(("", "1f1b"), 1, 2.0, 4.0), (("E.1", "1f1b"), 1, 0.0, 4.0),
              (("E.1", "gpipe"), 2, 15.0, 20.0)]  # fmt: skip
    assert json.loads(out) == {
        "schema": 1,
        "constants": [
            {"name": "matmul_efficiency", "value": 0.54321, "standard_error": 0.0125,
             "unit": "share", "determined": True},
            {"name": "latency", "value": 1.5e-5, "standard_error": None,
             "unit": "s", "determined": False},
        ],
        "throughput_mape": pytest.approx(8.0),
        "residuals": pytest.approx([10.0, -20.0, 0.0, 2.0]),
        "groups": [
            {"group": list(group), "rows": rows, "error": pytest.approx(error),
             "left_out": pytest.approx(left_out)}
            for group, rows, error, left_out in groups
        ],
        "cross_validated_mape": pytest.approx(12.0),
    }  # fmt: skip


def test_without_cross_validation_nothing_is_left_out(bfpp: Run, asked: list[bool]) -> None:
    code, out, _ = bfpp("fit table.csv --no-cross-validation --json --out constants.toml")
    found = json.loads(out)
    assert (code, asked) == (0, [False])
    assert "cross_validated_mape" not in found
    assert {each["left_out"] for each in found["groups"]} == {None}
    assert "table.csv" in Path("constants.toml").read_text()
    printed = bfpp("fit table.csv --no-cross-validation")[1]
    assert " 20.0 %" in printed
    assert "30.0 %" not in printed


@pytest.fixture
def calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements of a system file, and what is fitted to them, are those above."""
    about = {"SimuMax": "ours", "like": "dgx-a100"}
    measured = Measured(MEASURED.cluster, ROWS, about)
    monkeypatch.setattr("bfpp.commands.measure.of_system", lambda *_: measured)
    monkeypatch.setattr("bfpp.commands.measure.calibrate", lambda *_: MEASURED)


@pytest.mark.usefixtures("calibrated")
def test_the_tables_of_a_measurement(bfpp: Run) -> None:
    code, out, error = bfpp("measure --simumax system.json --out my.toml")
    assert (code, error) == (0, "wrote my.toml\n")
    require_golden("printed/measure.txt", out)
    head = Path("my.toml").read_text().split("\n\n")[0]
    assert "SimuMax ours" in head
    assert "like dgx-a100" not in head
    assert "dgx-a100." in head


@pytest.mark.usefixtures("calibrated")
def test_the_record_of_a_measurement(bfpp: Run) -> None:
    code, out, _ = bfpp("measure --simumax system.json --out my.toml --json")
    assert code == 0
    assert json.loads(out) == {
        "schema": 1,
        "about": {"SimuMax": "ours", "like": "dgx-a100"},
        "constants": [
            {"name": "device.matmul_efficiency", "value": 0.61234, "deviation": 0.0123},
            {"name": "intra_node.latency", "value": 2.5e-6, "deviation": 0.5},
        ],
        "measurements": [
            {**row, "predicted_over_measured": ratio}
            for row, ratio in zip(ROWS, RATIOS, strict=True)
        ],
    }


MEASUREMENTS = """table,model,cluster,schedule,pp,tp,dp,microbatches,microbatch_size,\
loops,sharding,tflops_per_gpu,memory_gb
E.1,bert-6.6b,dgx1-v100,breadth-first,2,2,4,8,2,4,full,40,20
,bert-6.6b,dgx1-v100,no-pipeline,1,2,8,1,4,,none,50,
"""
PREDICTED = [(44.0, 18.0), (45.0, 24.25)]
INTERVALS = [Interval(0.0, 1e9), Interval(0.0, 1e-9)]


@pytest.fixture
def validated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements above are predicted to be 10 % faster, and 10 % slower."""
    Path("table.csv").write_text(MEASUREMENTS)
    numbers = iter(zip(PREDICTED, INTERVALS, strict=True))

    def compared(row: Measurement) -> Comparison:
        (tflops, memory), interval = next(numbers)
        found = compare(row)
        predicted = {**found.predicted, "tflops_per_gpu": tflops, "memory_gb": memory}
        vars(found).update(predicted=predicted, interval=interval)  # as if they were computed
        return found

    monkeypatch.setattr("bfpp.commands.validate.compare", compared)


@pytest.mark.usefixtures("validated")
def test_the_tables_of_a_validation(bfpp: Run) -> None:
    code, out, error = bfpp("validate table.csv")
    assert (code, error) == (0, "")
    require_golden("printed/validate.txt", out)


@pytest.mark.usefixtures("validated")
def test_the_record_of_a_validation(bfpp: Run) -> None:
    code, out, _ = bfpp("validate table.csv --json --svg errors.svg")
    assert code == 0
    found = json.loads(out)
    first, second = found.pop("rows")
    steps = [abs(row["error_step_time"]) for row in (first, second)]
    assert found == {
        "schema": 1,
        "step_time_mape": pytest.approx(sum(steps) / 2),
        "throughput_mape": pytest.approx(10.0),
        "memory_mape": pytest.approx(10.0),
        "coverage": 0.5,
    }
    assert first["measured"] == {"tflops_per_gpu": 40.0, "memory_gb": 20.0}
    assert first["error"] == pytest.approx({"tflops_per_gpu": 10.0, "memory_gb": -10.0})
    assert second["error"] == pytest.approx({"tflops_per_gpu": -10.0})
    assert first["prediction"]["memory_gb"] == 18.0
    assert first["prediction"]["step_time_high"] == 1e9
    drawn = Path("errors.svg").read_text()
    assert "Throughput of 2 configurations: mean absolute error 10.0 %" in drawn
    assert "TFLOP/s per GPU" in drawn


def test_a_profile_predicts_the_step_time_alone(bfpp: Run) -> None:
    """Of a step that was measured to take 1/0.7 times as long as it is predicted to."""
    Path("machine.toml").write_text(as_toml(PROFILE))
    given = "simulate gpipe --profile machine.toml --pp 2 --dp 2 --microbatches 4 --json"
    step = json.loads(bfpp(given)[1])["step_time"]
    Path("table.csv").write_text(f"schedule,microbatches,step_seconds\ngpipe,4,{step / 0.7}\n")
    words = "validate table.csv --profile machine.toml --svg errors.svg"
    found = json.loads(bfpp(f"{words} --json --force")[1])
    assert found["step_time_mape"] == pytest.approx(30.0)
    assert (found["throughput_mape"], found["coverage"]) == (None, None)
    assert "Step time of 1 configurations: mean absolute error 30.0 %" in (
        Path("errors.svg").read_text()
    )
    _, out, _ = bfpp(f"{words} --force")
    assert "-30.0 %" in out
    assert "TFLOP/s" not in out
    assert "memory" not in out
