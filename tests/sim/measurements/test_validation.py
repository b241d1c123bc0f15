"""Measured configurations: reading, predicting, comparing, drawing."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import numpy as np
import pytest

from bfpp.command_line import main
from bfpp.sim.cluster.constants import Constants
from bfpp.sim.measurements.measured_tables import read_measurements
from bfpp.sim.measurements.validation import case_of, compare
from bfpp.traces.figures.svg.scatter import Point, scatter
from tests.sim.costs.test_physical import MEASUREMENTS


@pytest.fixture(scope="module")
def rows():
    return read_measurements(MEASUREMENTS)


@pytest.fixture(scope="module")
def comparisons(rows):
    return [compare(row) for row in rows]


def test_throughput_is_near_the_papers_measurements(comparisons):
    errors = np.array([each.error("tflops_per_gpu") for each in comparisons])
    assert len(errors) == 69
    assert np.abs(errors).mean() < 3
    assert (np.abs(errors) > 10).sum() <= 1
    assert np.abs(errors).max() < 20


def test_no_method_is_far_off_on_the_whole(comparisons):
    for group in {each.measured.group for each in comparisons}:
        errors = [
            each.error("tflops_per_gpu") for each in comparisons if each.measured.group == group
        ]
        assert np.abs(errors).mean() < 6.5


def test_without_a_pipeline_only_sharded_weights_make_accumulation_breadth_first(comparisons):
    """Depth-first, two micro-batches need the memory of one (table E.3, batches 256 and 512)."""
    alone = [each for each in comparisons if each.measured.schedule == "no-pipeline"]
    experiments = [each.measured.experiment for each in alone]
    names = {(str(each.sharding), each.rule.name) for each in experiments}
    assert names == {("none", "1f1b"), ("full", "breadth-first")}
    one, two = (
        each.predicted["memory_gb"]
        for each in alone
        if each.measured.experiment.microbatch_size > 16
    )
    assert two == pytest.approx(one, rel=0.01)


def test_configurations_that_differ_in_costs_share_a_graph(rows):
    alone = [row for row in rows if row.schedule == "no-pipeline"]
    alike = [row for row in alone if row.experiment.microbatches == 1]
    graphs = {
        id(case_of(row).graph)
        for row in alike
        if (row.experiment.sharding, row.experiment.model) == ("none", alike[-1].experiment.model)
    }
    assert len(graphs) == 1


def test_the_throughput_alone_is_that_of_the_whole_prediction(rows):
    case = case_of(rows[0])
    prediction = case.compare(Constants()).predicted
    assert case.throughput(Constants()) == pytest.approx(prediction["tflops_per_gpu"])


def test_validate_reports_every_row_as_json(capsys, tmp_path):
    figure = tmp_path / "scatter.svg"
    assert main(["validate", str(MEASUREMENTS), "--json", "--svg", str(figure)]) == 0
    record = json.loads(capsys.readouterr().out)
    assert len(record["rows"]) == 69
    assert record["throughput_mape"] < 4
    assert record["memory_mape"] < 5
    row = record["rows"][0]
    assert (row["schedule"], row["pp"]) == ("breadth-first", 8)
    for name in ("tflops_per_gpu", "memory_gb", "memory_min_gb"):
        expected = 100 * (row["prediction"][name] / row["measured"][name] - 1)
        assert row["error"][name] == pytest.approx(expected)
    root = ElementTree.parse(figure).getroot()
    assert sum(element.tag.endswith("circle") for element in root.iter()) == 69 + 5


def test_validate_prints_a_table(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    lines = MEASUREMENTS.read_text().splitlines()
    table = tmp_path / "some.csv"
    table.write_text("\n".join(lines[:3]))
    assert main(["validate", str(table)]) == 0
    printed = capsys.readouterr().out
    assert "E.1 breadth-first" in printed
    assert "Mean absolute error" in printed


HEADER, FIRST = MEASUREMENTS.read_text().splitlines()[:2]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the column 'model' is missing"),
        (HEADER.replace("dp", "ranks"), "the column 'ranks' is unknown"),
        (HEADER, "has no rows"),
        (
            f"{HEADER}\n{FIRST.replace('36.28', 'fast')}",
            "line 2: tflops_per_gpu must be a positive",
        ),
        (f"{HEADER}\n{FIRST.replace('36.28', 'nan')}", "tflops_per_gpu must be a positive number"),
        (f"{HEADER}\n{FIRST.replace('36.28', '')}", "line 2: must give one of tflops_per_gpu"),
        (f"{HEADER}\n{FIRST},1", "line 2: has more cells than there are columns"),
        (f"{HEADER},step_seconds\n{FIRST},1", "tflops_per_gpu and step_seconds"),
        (HEADER.replace("tflops_per_gpu", "layers"), "there is none of the columns"),
        (f"{HEADER}\n{FIRST.replace(',8,8,8,', ',7,8,8,')}", "line 2: batch: is 7, but"),
        (f"{HEADER}\n{FIRST.replace('bert-52b', 'bert')}", "line 2: model: 'bert'"),
        (f"{HEADER}\n{FIRST.replace('breadth', 'width')}", "line 2: schedule: "),
        (f"{HEADER}\n{FIRST.replace('breadth-first', 'no-pipeline')}", "line 2: pp: must be 1"),
        (f"{HEADER}\n{FIRST.replace('none', 'some')}", "line 2: sharding: "),
        (f"{HEADER}\n{FIRST.replace('8,4,none', '8,9,none')}", "line 2: loops: "),
        (f'{HEADER}\n"{FIRST}', "is not CSV"),
    ],
)
def test_a_malformed_table_is_one_line_with_its_reason(capsys, tmp_path, text, reason):
    path = tmp_path / "table.csv"
    path.write_text(text)
    assert main(["validate", str(path)]) == 2
    captured = capsys.readouterr()
    assert not captured.out
    assert captured.err.count("\n") == 1
    assert reason in captured.err


def test_a_file_replaces_the_shipped_constants(capsys, tmp_path):
    table, constants = tmp_path / "one.csv", tmp_path / "constants.toml"
    table.write_text(f"{HEADER}\n{FIRST}")
    constants.write_text("[clusters.dgx1-v100.device]\nmatmul_efficiency = 0.1\n")
    predictions = []
    for options in ([], ["--constants", str(constants)]):
        assert main(["validate", str(table), "--json", *options]) == 0
        [row] = json.loads(capsys.readouterr().out)["rows"]
        predictions.append(row["prediction"]["tflops_per_gpu"])
    assert predictions[1] < predictions[0] / 4
    constants.write_text("clusters =")
    assert main(["validate", str(table), "--constants", str(constants)]) == 2
    assert "--constants" in capsys.readouterr().err


SLOW = "[clusters.dgx1-v100.device]\nmatmul_efficiency = 0.1\n"


def with_constants(tmp_path):
    """A table of the same row twice, with and without a file of constants."""
    table, constants = tmp_path / "two.csv", tmp_path / "constants.toml"
    constants.write_text(SLOW)
    table.write_text(f"{HEADER},constants\n{FIRST},{constants}\n{FIRST},\n")
    return table, constants


def test_a_column_of_constants_acts_on_its_row(capsys, tmp_path):
    table, constants = with_constants(tmp_path)
    assert main(["validate", str(table), "--json"]) == 0
    slow, usual = json.loads(capsys.readouterr().out)["rows"]
    assert slow["prediction"]["tflops_per_gpu"] < usual["prediction"]["tflops_per_gpu"] / 4
    assert slow["constants"] == str(constants)


def test_constants_of_a_row_are_not_those_of_an_option_too(capsys, tmp_path):
    table, constants = with_constants(tmp_path)
    assert main(["validate", str(table), "--constants", str(constants)]) == 2
    captured = capsys.readouterr()
    assert "line 2: constants is given here and by --constants" in captured.err
    assert captured.err.count("\n") == 1


def test_what_is_fitted_is_not_given_too(capsys, tmp_path):
    table, _ = with_constants(tmp_path)
    assert main(["fit", str(table)]) == 2
    assert "column constants" in capsys.readouterr().err


def test_a_scatter_has_a_dot_for_each_point_on_one_scale():
    points = [Point("one & only", 10, 12), Point("other", 40, 38)]
    root = ElementTree.fromstring(scatter(points, "Title", "TFLOP/s"))
    circles = [element for element in root.iter() if element.tag.endswith("circle")]
    assert len(circles) == 2 + 2
    across = float(circles[1].get("cx")) - float(circles[0].get("cx"))
    up = float(circles[0].get("cy")) - float(circles[1].get("cy"))
    assert across / 30 == pytest.approx(up / 26, rel=0.01)
    with pytest.raises(ValueError, match="no points"):
        scatter([], "Title", "TFLOP/s")


def test_a_table_needs_only_what_it_is_used_for(capsys, tmp_path, monkeypatch):
    """A throughput, a time or a rate of tokens; no table, no memory, no batch."""
    monkeypatch.setenv("COLUMNS", "200")
    one = {
        "model": "bert-52b", "cluster": "dgx1-v100", "schedule": "breadth-first", "pp": 8,
        "tp": 8, "loops": 4, "microbatches": 8,
    }  # fmt: skip
    tokens = 8 * 1024 / 64
    times = {"step_seconds": 2.0, "tokens_per_second_per_gpu": tokens / 2.0}
    found = []
    for name, value in times.items():
        path = tmp_path / f"{name}.csv"
        row = {**one, name: value}
        path.write_text(f"{','.join(row)}\n{','.join(map(str, row.values()))}\n")
        assert main(["validate", str(path), "--json"]) == 0
        record = json.loads(capsys.readouterr().out)
        assert record["memory_mape"] is None
        found.append(record["rows"][0])
        assert main(["validate", str(path)]) == 0
        assert "breadth-first" in capsys.readouterr().out
    assert found[0]["error_step_time"] == pytest.approx(found[1]["error_step_time"])
    predicted = found[0]["prediction"]["step_seconds"]
    assert found[0]["error_step_time"] == pytest.approx(100 * (predicted / 2.0 - 1))


def test_reserved_memory_is_compared_where_that_is_what_was_measured(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    one = {"model": "llama3-8b", "cluster": "dgx-h100", "schedule": "1f1b", "dp": 8}
    one |= {"implementation": "torchtitan", "sharding": "full", "step_seconds": 1.0}
    path, records = tmp_path / "measured.csv", {}
    for name in ("memory_largest_gb", "memory_reserved_gb"):
        row = {**one, name: 50.0}
        path.write_text(f"{','.join(row)}\n{','.join(map(str, row.values()))}\n")
        assert main(["validate", str(path), "--json"]) == 0
        records[name] = record = json.loads(capsys.readouterr().out)
        (only,) = record["rows"]
        assert only["error"][name] == pytest.approx(100 * (only["prediction"][name] / 50.0 - 1))
        assert record["memory_mape"] == pytest.approx(abs(only["error"][name]))
        assert main(["validate", str(path)]) == 0
        assert f"50.0 / {only['prediction'][name]:.1f}" in capsys.readouterr().out
    allocated, reserved = (each["rows"][0]["prediction"][name] for name, each in records.items())
    assert allocated < reserved


def test_a_row_may_leave_its_micro_batches_to_its_batch(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(
        "model,cluster,schedule,pp,dp,batch,step_seconds,seq_length,layers\n"
        "bert-6.6b,dgx-a100,1f1b,4,2,32,1.5,256,8\n"
    )
    [row] = read_measurements(path)
    assert (row.experiment.microbatches, row.batch, row.step_seconds) == (16, 32, 1.5)
    assert (row.experiment.transformer.sequence, row.experiment.transformer.layers) == (256, 8)
