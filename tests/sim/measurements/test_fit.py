"""Fitting: constants that are put in come out again, and what a table cannot say is flagged."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace

import numpy as np
import pytest

from bfpp.command_line import main
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.cluster.constants import Constants, read_constants
from bfpp.sim.cluster.software_profiles import with_fitted
from bfpp.sim.measurements.fit import constants_text, fit, fits, fitted, parameters_of
from bfpp.sim.measurements.measured_tables import read_measurements
from bfpp.sim.measurements.validation import case_of
from tests.sim.costs.test_physical import MEASUREMENTS


@pytest.fixture(scope="module")
def small():
    """Measurements whose graphs are small, of two methods."""
    rows = read_measurements(MEASUREMENTS)
    on = {"cluster": "dgx1-v100", "model": "bert-6.6b"}
    chosen = [row for row in rows if on.items() <= row.record.items()]
    return [row for row in chosen if row.schedule in ("no-pipeline", "breadth-first")]


@pytest.fixture(scope="module")
def made_up(small):
    """The same configurations, with the throughput that known constants give them."""
    known = Constants(
        {
            "dgx1-v100": {
                "device": {"matmul_efficiency": 0.7, "sustained_efficiency": 0.45},
                "intra_node": {"synchronisation": 4e-4},
                "inter_node": {"ring_efficiency": 0.4},
            }
        },
        {"paper": {"overlap_slowdown": 0.2}},
    )
    return [with_throughput(row, case_of(row).throughput(known)) for row in small]


def with_throughput(row, tflops):
    return replace(row, measured={**row.measured, "tflops_per_gpu": tflops})


def test_constants_that_are_put_in_come_out_again(made_up):
    found = fit(made_up, cross_validate=False)
    assert np.abs(found.errors).max() < 0.01
    values = {each.parameter.name: each.value for each in found.constants}
    assert values["dgx1-v100: inter_node.ring_efficiency"] == pytest.approx(0.4, rel=0.03)
    assert values["device.sustained_efficiency"] == pytest.approx(0.45, rel=0.03)


def test_some_constants_alone_come_out_of_some_rows(made_up):
    [ring] = [each for each in parameters_of(made_up) if each.name.endswith("ring_efficiency")]
    found = fitted([ring], [case_of(row) for row in made_up]).clusters
    assert list(found) == ["dgx1-v100"]
    assert 0.3 < found["dgx1-v100"]["inter_node"]["ring_efficiency"] < 0.5


def test_what_no_row_depends_on_is_not_determined(small):
    """Without tensor parallelism nothing waits for an all-reduce."""
    rows = [row for row in small if row.experiment.tp == row.experiment.pp == 1]
    rows = [
        with_throughput(row, row.tflops_per_gpu + change) for row in rows * 4 for change in (0, 1)
    ]
    found = fit(rows, cross_validate=False)
    [waiting] = [each for each in found.constants if "synchronisation" in each.parameter.name]
    assert waiting.standard_error == np.inf
    assert not waiting.determined
    assert waiting.value == load_cluster("dgx1-v100").level("intra_node").synchronisation
    assert "not determined" in constants_text(found, "a table")


def test_leaving_out_a_group_predicts_it_by_the_others(made_up):
    told = []
    found = fit(made_up, progress=told.append)
    assert len(told) == fits(made_up) == 3
    assert np.abs(found.left_out).mean() < 0.05


def test_a_profile_is_read_as_it_was_written(made_up):
    found = fit(made_up, cross_validate=False)
    table = tomllib.loads(constants_text(found, "a table"))
    profile = read_constants("profile", table)
    determined = [each for each in found.constants if each.determined]
    deviations = [each.standard_error / each.value for each in determined]
    covariance = np.array(table["uncertainty"]["covariance"])
    assert np.sqrt(covariance.diagonal()) == pytest.approx(deviations, rel=0.01)
    assert len(table["uncertainty"]["constants"]) == len(determined)
    ring = load_cluster("dgx1-v100", profile.clusters).level("inter_node").ring_efficiency
    slowdown = with_fitted(profile.implementations)["paper"].overlap_slowdown
    values = {each.parameter.name: each.value for each in found.constants}
    assert ring == pytest.approx(values["dgx1-v100: inter_node.ring_efficiency"], rel=1e-3)
    assert slowdown == pytest.approx(values["paper: overlap_slowdown"], rel=1e-3)


def test_the_constants_of_all_the_tables_are_few_and_bounded():
    parameters = parameters_of(read_measurements(MEASUREMENTS))
    assert len(parameters) == 8
    assert all(each.low < each.high for each in parameters)
    assert {each.unit for each in parameters} == {"s", "share"}


def test_the_shipped_constants_are_the_fit_of_the_measurements():
    constants = Constants()
    parameters = parameters_of(read_measurements(MEASUREMENTS))
    settings = {"clusters": constants.clusters, "implementations": constants.implementations}
    for parameter in parameters:
        for path in parameter.targets:
            value = settings
            for name in path:
                value = value[name]
            assert parameter.low <= value <= parameter.high


def test_too_few_rows_are_refused(small):
    with pytest.raises(ValueError, match="2 rows cannot determine 5 constants"):
        fit(small[:2])


def test_the_command_writes_a_profile_and_reports(capsys, tmp_path, made_up):
    names = MEASUREMENTS.read_text().splitlines()[0]
    table, out = tmp_path / "table.csv", tmp_path / "profile.toml"
    cells = [{**row.record, **row.measured} for row in made_up]
    lines = [",".join(str(row[name]) for name in names.split(",")) for row in cells]
    table.write_text("\n".join([names, *lines]))
    arguments = ["fit", str(table), "--out", str(out), "--no-cross-validation"]
    assert main([*arguments, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["throughput_mape"] < 0.5
    assert len(record["residuals"]) == len(made_up)
    assert tomllib.loads(out.read_text())["implementations"]["paper"]
    assert main(arguments) == 0
    assert "Constants" in capsys.readouterr().out
