"""The published runs that come with the package."""

from __future__ import annotations

import pytest

from bfpp.sim.measurements.measured_tables import read_measurements
from bfpp.sim.measurements.published import FOLDER, sources, table_path
from bfpp.sim.measurements.validation import compare

ROWS = {
    "korthikanti-2022": 8,
    "vtrain-2023": 54,
    "vtrain-2023-one-node": 360,
    "simumax-2026": 12,
    "simumax-2026-context": 4,
    "simumax-2026-experts": 6,
    "llm-foundry-2023": 139,
    "llm-foundry-2024": 77,
    "narayanan-2021": 10,
    "nemo-2024": 12,
    "torchtitan-2024": 7,
}


def test_every_table_has_a_source():
    assert {path.stem for path in FOLDER.glob("*.csv")} == set(sources()) == set(ROWS)
    assert all(each.source and each.about for each in sources().values())


@pytest.mark.parametrize("name", ROWS)
def test_every_row_can_be_predicted(name):
    rows = read_measurements(table_path(name))
    assert len(rows) == ROWS[name]
    assert len({tuple(row.record.items()) for row in rows}) >= 0.9 * len(rows)
    assert compare(rows[0]).predicted["tflops_per_gpu"] > 0


def test_what_was_fitted_to_a_source_is_another_number_without_it():
    changed = [each for each in sources().values() if each.left_out]
    assert {each.name for each in changed} == {
        "vtrain-2023-one-node",
        "simumax-2026",
        "simumax-2026-experts",
    }
    for each in changed:
        rows = read_measurements(each.path)[:20]
        shipped = [compare(row).error_step_time for row in rows]
        assert shipped != [compare(row, each.left_out).error_step_time for row in rows]


def test_a_name_that_is_no_source_is_a_path(tmp_path):
    assert table_path(str(tmp_path / "vtrain-2023.csv")) == tmp_path / "vtrain-2023.csv"
