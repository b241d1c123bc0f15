"""Output of a search for made-up outcomes, to the letter.

Their numbers are round, and fit each other: 1F1B makes 32 samples of 512 tokens in 0.5 s, on 16
GPUs: 64 samples a second, 2,048 tokens a second on each. Breadth-first takes 0.64 s.
"""

from __future__ import annotations

import csv
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bfpp.commands.tradeoff import _chart, _print, _record
from bfpp.reports.search.costs import cost
from bfpp.reports.search.gains import Gain
from bfpp.reports.search.results import write_table
from bfpp.reports.search.summary import Answer, print_answer, record_of_answer
from bfpp.reports.search.table import print_outcomes
from bfpp.schedules import Communication, Configuration, Sharding, find_schedule
from bfpp.schedules.settings.degrees import Degrees
from bfpp.schedules.settings.precision import Precision
from bfpp.schedules.settings.recomputation import parse_recomputation
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.experiment.uncertainty import Interval
from bfpp.sim.search.decision import Decision, Distance, Rival
from bfpp.sim.search.objectives import Jitter
from bfpp.sim.search.outcomes import Outcome, Outcomes
from bfpp.sim.search.ranking import nearest, pareto, ranked
from bfpp.sim.search.tradeoff import tradeoff, training
from bfpp.terminal.formats import FOUND_CSV, FOUND_PARQUET
from bfpp.terminal.outputs import Output
from tests.helpers.hand import require_golden


def outcome(
    configuration: Configuration, step_time: float, largest: float, **more: float
) -> Outcome:
    samples, gpus = configuration.batch / step_time, configuration.degrees.devices
    return Outcome(
        configuration, "current", step_time, bubble=0.25, tflops_per_gpu=300.0,
        model_tflops_per_gpu=250.0, mfu=0.25, hfu=0.3, samples_per_second=samples,
        tokens_per_second_per_gpu=512 * samples / gpus, memory_reserved_gb=largest + 2,
        memory_reserved_low_gb=largest + 1, memory_reserved_high_gb=largest + 4,
        memory_largest_gb=largest, memory_parts_gb={"weights": largest - 8, "saved": 8.0},
        device_memory_gb=80.0, missing_gb=more.pop("missing", 0.0), memory_gb=largest - 1,
        fits_probability=more.pop("fits", 1.0), memory_min_gb=largest / 2, **more,
    )  # fmt: skip


WINNER = outcome(
    Configuration(
        find_schedule("1f1b"), Degrees(pp=4, dp=2, tp=2), 16,
        precision=Precision("fp8-current"), recompute=parse_recomputation("full"), cut=(9, 8, 8, 7),
    ),
    0.5, 40.0, robust_step_time=0.55,
)  # fmt: skip
RIVAL = outcome(
    Configuration(
        find_schedule("breadth-first"), Degrees(pp=2, dp=8, tp=1, dp_replicate=2), 2, 2, loops=4,
        communication=Communication(Sharding.FULL, hybrid=True),
    ),
    0.64, 20.0, robust_step_time=0.7, fits=0.85,
)  # fmt: skip
TOO_LARGE = outcome(
    Configuration(find_schedule("gpipe"), Degrees(pp=8, dp=2), 16), 0.4, 90.0, missing=12.0
)
BOTH = [WINNER, RIVAL]
DECISION = Decision(
    WINNER,
    {"operations at the peak": 0.3, "kernel efficiency": 0.1, "bubble": 0.099, "optimizer": 0.001},
    [
        Rival(
            RIVAL, {"bubble": 0.2, "recomputation": -0.06, "optimizer": 0.001}, Distance(0.28, 0.05)
        )
    ],
    {RIVAL.configuration: True},
    {WINNER.configuration: Interval(0.45, 0.6), RIVAL.configuration: Interval(0.6, 0.75)},
)
STEP = Experiment(
    "1f1b", pp=4, microbatches=16, model="llama3-8b", cluster="dgx-h100", implementation="current"
)
ANSWER = Answer(
    DECISION,
    80.0,
    STEP,
    RIVAL,
    None,
    [
        Gain("batch", 64, 1.05, 1.0),
        Gain("cluster", "dgx-h200", 0.99, 1.0),
        Gain("cluster", "dgx-b200", 1.9, 1.0),
    ],
    {"megatron": None, "torchtitan": "torchtitan: no such sharding"},
)
PROBLEM: Any = SimpleNamespace(risk=0.1, batches=(32,), jitter=Jitter())


def test_rates() -> None:
    assert (WINNER.samples_per_second, WINNER.tokens_per_second_per_gpu) == (64.0, 2048.0)
    assert (RIVAL.samples_per_second, RIVAL.tokens_per_second_per_gpu) == (50.0, 1600.0)


def test_cost() -> None:
    """A million tokens at 2,048 a second are 488.28125 s, 0.13563368 hours; at 3 each, 0.406901."""
    hours = pytest.approx(0.135633681)
    assert cost(WINNER, None) == {"gpu_hours_per_million_tokens": hours}
    assert cost(WINNER, 3.0)["price_per_million_tokens"] == pytest.approx(0.406901042)


def test_a_training() -> None:
    """With a critical batch of 1,000: 50 million samples, and 1.032 times as many at a batch of 32.

    So 51.6 million at 64 a second: 806,250 s on 16 GPUs, 9.3316 days. On 64 GPUs the batch is 128:
    56.4 million at 256 a second.
    """
    small, large = (training(WINNER, gpus, 1000) for gpus in (16, 64))
    assert (small.batch, small.days) == (32, pytest.approx(9.33159722))
    assert small.gpu_days == pytest.approx(149.305556)
    assert small.price(2.0) == pytest.approx(7166.66667)
    assert (large.batch, large.days) == (128, pytest.approx(56.4e6 / 256 / 86400))
    assert tradeoff([*BOTH, TOO_LARGE], [16, 64], 1000) == [small, large]
    chart = _chart({"1f1b": [small, large]}, "a model")
    assert (chart.x_title, chart.y_title) == ("training time (days)", "cost (1,000 GPU-days)")
    assert chart.series[0].y[0] == pytest.approx(0.149305556)


def test_what_is_best() -> None:
    both = Outcomes.of(BOTH)
    assert list(ranked(Outcomes.of([TOO_LARGE, RIVAL, WINNER]))) == BOTH
    assert nearest(Outcomes.of([TOO_LARGE, WINNER])) == WINNER
    assert list(pareto(both)) == BOTH
    assert list(pareto(both, 0.24)) == BOTH
    assert list(pareto(both, 0.25)) == [WINNER]  # 20 GiB less is no more than a quarter of 80


def test_the_table_and_the_summary(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # as wide as in files
    print_outcomes("Found", Outcomes.of([*BOTH, TOO_LARGE]), BOTH, DECISION, PROBLEM)
    print_outcomes("Nothing", Outcomes.of([TOO_LARGE]), [], None, PROBLEM)
    left_out = {"too large": 1234, "not tried": 0}
    print_answer(ANSWER, left_out, cost(WINNER, 3.0), Jitter())
    require_golden("printed/search.txt", capsys.readouterr().out)


def test_the_record() -> None:
    found = record_of_answer(ANSWER)
    assert (found["safer"], found["faster"]) == (RIVAL.record, None)
    assert found["gains"][0] == {
        "name": "batch", "value": 64, "speedup": 1.05, "fits_probability": 1.0,
    }  # fmt: skip
    assert found["launches"] == ANSWER.launches
    assert (found["kind"], found["parts"]) == ("1f1b", DECISION.parts)
    (rival,) = found["rivals"]
    assert rival.pop("configuration") == RIVAL.record
    assert rival == {
        "kind": "breadth-first", "longer": DECISION.rivals[0].longer, "slower": 0.28,
        "margin": 0.05, "ties": False,
    }  # fmt: skip


@pytest.mark.parametrize("format_", [FOUND_CSV, FOUND_PARQUET], ids=["csv", "parquet"])
def test_the_tables_in_files(format_: object, tmp_path: Path) -> None:
    """Each column and its values; another program reads parquet."""
    path = tmp_path / f"found{format_.suffixes[0]}"  # type: ignore[attr-defined]
    write_table(Output("--out", path, (format_,)), Outcomes.of(BOTH), Outcomes.of([RIVAL]).space)  # type: ignore[arg-type]
    if format_ is FOUND_CSV:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        lines = [f"{name}: {' | '.join(row[name] for row in rows)}" for name in rows[0]]
        require_golden("written/found.csv.txt", "\n".join(lines))
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        found = parquet.read_table(path)
        assert found.schema.metadata == {b"generator": b"bfpp search"}
        rows = found.to_pylist()
        assert [row["samples_per_second"] for row in rows] == [64.0, 50.0]
        assert [row["pareto"] for row in rows] == [False, True]
        assert [row["memory_parts_gb.weights"] for row in rows] == [32.0, 12.0]
        assert [row["cut"] for row in rows] == ["9,8,8,7", None]
        assert [row["sharding"] for row in rows] == ["none", "full"]


def test_the_table_of_a_tradeoff(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the trainings above; on four times as many GPUs there are four times as many replicas."""
    monkeypatch.delenv("COLUMNS", raising=False)
    found = {"1f1b": [training(WINNER, gpus, 1000) for gpus in (16, 64)]}
    problem = SimpleNamespace(
        model=SimpleNamespace(name="a model"),
        cluster=SimpleNamespace(name="a cluster"),
        implementation=SimpleNamespace(name="current"),
    )
    for price in (None, 2.0):
        options = Namespace(sizes=[16, 64], gpus=16, price=price, critical_batch=1000)
        _print(found, options, problem)  # type: ignore[arg-type]
        record = _record(found["1f1b"][0], options)
        assert record["outcome"] == WINNER.record
        assert record.get("price") == (price and pytest.approx(7166.66667))
    require_golden("printed/tradeoff.txt", capsys.readouterr().out)
