"""Printed explanations of made-up numbers, which depend on no model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bfpp.api.predictions import Prediction, predict
from bfpp.reports.differences import difference_record, print_difference
from bfpp.reports.memory_tables import print_memory
from bfpp.reports.prediction_notes import print_cautions, print_not_modelled, print_peak
from bfpp.reports.tables import print_result
from bfpp.sim.experiment.experiment import Experiment
from bfpp.traces.explain.difference import difference
from bfpp.traces.timeline.memory_record import MemoryRecord
from bfpp.traces.timeline.timeline import MEASURED
from tests.helpers.hand import COSTS, require_golden

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _as_wide_as_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


MODEL = Experiment("1f1b", pp=2, microbatches=2, model="gpt-345m", cluster="dgx-h100")
STEP = Experiment("1f1b", pp=2, microbatches=2, **COSTS)
FOUND = {
    "step_time": 2.0, "bubble": 0.5, "bubble_fraction": 1 / 3, "span": 1.75, "period": 1.9,
    "tasks": 12345, "implementation": "current", "step_time_low": 1.5, "step_time_high": 2.5,
    "model_tflops_per_gpu": 123.46, "tflops_per_gpu": 164.61, "mfu": 0.12345, "hfu": 0.16461,
    "tokens_per_second_per_gpu": 12345.6, "samples_per_second": 0.0123456, "missing_gb": 4.25,
    "memory_reserved_gb": 84.25, "memory_reserved_low_gb": 80.0, "memory_reserved_high_gb": 90.0,
    "device_memory_gb": 80.0, "memory_largest_gb": 70.5, "memory_gb": 60.25,
    "memory_min_gb": 30.75, "host_memory_gb": 3.25, "host_memory_node_gb": 26.0,
    "memory_parts_gb": {"weights": 20.5, "saved activations": 50.0, "workspaces": 0.01},
    "memory_peak": {
        "rank": 1, "time": 0.75, "operation": "backward", "stage": 1, "microbatch": 0,
    },
    "not_modelled": ["what the weather does", "strikes"],
    "without_effect": {"capacity_factor": "a model with experts"},
    "warnings": ["too few micro-batches"],
}  # fmt: skip


@pytest.fixture(scope="module")
def made_up() -> Prediction:
    """A prediction of a model whose numbers are replaced."""
    step = predict(STEP)
    found = replace(predict(MODEL), timeline=step.timeline)
    found.__dict__["record"] = FOUND
    found.__dict__["ranks"] = step.ranks
    return found


def test_a_prediction(made_up: Prediction, capsys: pytest.CaptureFixture[str]) -> None:
    print_result(made_up)
    print_peak(made_up)
    print_cautions([made_up])
    print_not_modelled(made_up)
    require_golden("printed/prediction.txt", capsys.readouterr().out)
    assert made_up.shortage == "84.2 of 80 GiB"


def test_measured_memory(capsys: pytest.CaptureFixture[str]) -> None:
    """The fullest rank decides the unit; of the parts those that any rank has; a part that is not
    predicted is a question mark.
    """
    common = {"replica": 0, "tp_rank": 0, "operation": "backward", "host": 0, "predicted_host": 0}
    first = {
        "rank": 0, **common, "peak": 3 << 20, "predicted_peak": 2 << 20,
        "parts": {"weights": 1 << 20, "saved activations": 2 << 20},
        "predicted_parts": {"weights": 1 << 20, "saved activations": 1 << 20},
    }  # fmt: skip
    second = first | {
        "rank": 1, "peak": 1 << 20, "predicted_peak": None, "predicted_parts": {},
        "parts": {"weights": 1 << 20, "saved activations": 0},
    }  # fmt: skip
    other = first | {"replica": 1, "peak": 9 << 30}
    print_memory([first, second, other])
    print_memory([first | {"host": 5 << 19, "predicted_host": None}])
    require_golden("printed/memory.txt", capsys.readouterr().out)


def test_a_trace_that_does_not_show_all(capsys: pytest.CaptureFixture[str]) -> None:
    """Tasks without a time in the trace are said, and are not among those that differ most.

    The second forward pass of rank 1 (#8) takes 0.5 s less, all transfers are not in the trace.
    """
    simulated = predict(STEP).timeline
    graph = simulated.graph
    end = simulated.end.copy()
    end[8] -= 0.5
    end[graph.is_transfer] = simulated.start[graph.is_transfer]
    weights = np.full(5, 2.0**30)
    saved = np.array([[1, 2, 3, 2, 1], [1, 1, 1, 1, 1]]) * 2.0**30
    parts = [{"weights": weights, "saved activations": of_rank} for of_rank in saved]
    held = [MemoryRecord(rank, of_rank, of_rank) for rank, of_rank in enumerate(parts)]
    measured = replace(
        simulated, end=end, source=MEASURED, about={"not_measured": "4 transfers"}, memory=held
    )
    found = difference(replace(simulated, memory=held), measured)
    assert found.not_measured == "4 transfers"
    assert [each.task.number for each in found.worst] == [8]
    assert found.drifted == []
    assert difference_record(found)["not_measured"] == "4 transfers"
    print_difference(found, "A step")
    _, title, tables = capsys.readouterr().out.partition("Seconds of a task")
    require_golden("printed/not-measured.txt", title + tables)
    all_known = difference(simulated, replace(measured, about={"not_measured": "none"}))
    assert all_known.not_measured is None
    assert [each.task.number for each in all_known.worst][:5] == [1, 4, 6, 8, 10]


def test_orders_that_stop(bfpp: Run, tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text("0F0,0B0,0F1,0B1\n1F1,1F0,1B1,1B0\n")
    code, out, _ = bfpp("check", tmp_path / "orders.csv")
    assert code == 1
    assert out == (
        "deadlock: rank 0 stops before 0B0, which waits for 1B0 on rank 1\n"
        "deadlock: rank 1 stops before 1F1, which waits for 0F1 on rank 0\n"
        "invalid\n"
    )


# By the models' reports and their configurations; GPUs by NVIDIA's data sheets.
PRESETS = {
    "models": [
        "deepseek-v3     671 (38)      61   7,168         8/256  128/128   4,096  129,280  untied",
        "gpt3-175b          174.6      96  12,288        49,152    96/96   2,048   50,257    tied",
        "llama3-8b            8.0      32   4,096  14,336 gated     32/8   8,192  128,256  untied",
    ],
    "clusters": [
        "dgx-a100               8      312   80  2,039     227      25   6,240",
        "dgx1-v100              8      125   32    900     136    6.25  10,000",
    ],
}


@pytest.mark.parametrize("command", PRESETS)
def test_presets(bfpp: Run, command: str) -> None:
    code, out, _ = bfpp(command)
    assert code == 0
    assert {" ".join(line.split()) for line in PRESETS[command]} <= {
        " ".join(line.split()) for line in out.splitlines()
    }
