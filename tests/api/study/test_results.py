"""Results of a study, of step times that are known."""

from __future__ import annotations

import pytest

from bfpp.api.study.results import results_of
from bfpp.api.study.study_file import read_study
from tests.helpers.studies import measured, written


@pytest.fixture
def result(tmp_path):
    """Cells 0 and 1 are GPipe's, with 2 and 4 micro-batches; 2 and 3 are 1F1B's."""
    file = written(tmp_path / "grid.toml")
    journal = measured(file, tmp_path, {0: [1.0, 1.2], 1: [3.0], 2: [2.0], 3: [2.5]})
    return results_of(read_study(str(file)), journal)


def test_a_cell_has_its_mean_and_the_error_of_its_prediction(result):
    first = result.results[0]
    assert first.measured.mean == pytest.approx(1.1)
    assert first.predicted == pytest.approx(1.32)
    assert first.error == pytest.approx(0.2)
    assert first.why == ("transfer", pytest.approx(1.32 - 1.1))


def test_groups_differ_in_their_schedule_alone(result):
    by_batch = {group.values["microbatches"]: group for group in result.groups}
    assert {batch: len(group.results) for batch, group in by_batch.items()} == {2: 2, 4: 2}
    assert by_batch[2].record["best"] == by_batch[2].record["predicted_best"] == "gpipe"
    assert by_batch[4].record["best"] == "1f1b"
    assert [group.tau for group in result.groups] == pytest.approx([1.0, 1.0])


def test_a_schedule_wrongly_predicted_best_costs_what_it_is_slower(tmp_path):
    file = written(tmp_path / "grid.toml")
    study = read_study(str(file))
    journal = measured(file, tmp_path, {0: [1.0], 2: [1.5]})
    journal.of(study.cells[2])[0]["predicted"] = 0.9
    (group,) = results_of(study, journal).groups
    assert (group.tau, group.loss) == (pytest.approx(-1.0), pytest.approx(0.5))


def test_a_summary_counts_what_is_close(result):
    summary = result.summary
    assert (summary["all_cells"], summary["measured"]) == (4, 4)
    assert summary["median_error"] == pytest.approx(0.1)
    assert summary["within_10_percent"] in (0.75, 0.0)  # 10 % but for rounding
    assert summary["largest_loss"] == 0


def test_of_nothing_there_is_nothing_to_say(tmp_path):
    file = written(tmp_path / "grid.toml")
    result = results_of(read_study(str(file)), measured(file, tmp_path, {}))
    assert result.record["cells"] == result.record["groups"] == []


def test_a_schedule_with_parameters_of_its_own_is_another_schedule(tmp_path):
    common = {"pp": 2, "loops": 2, "microbatches": 4}
    grids = [
        {"schedule": "depth-first", **common},
        {"schedule": "depth-first", **common, "sequence": 4},
        {"schedule": "depth-first", **common, "pp_overlap": False},
    ]
    file = written(tmp_path / "grid.toml", experiment=grids)
    result = results_of(
        read_study(str(file)), measured(file, tmp_path, {0: [2.0], 1: [1.0], 2: [1.0]})
    )
    (group,) = result.groups
    assert (group.record["best"], len(group.results)) == ("depth-first, sequence 4", 2)


def test_what_one_grid_says_and_another_leaves_out_is_one_group(tmp_path):
    common = {"pp": 2, "loops": 2, "microbatches": 4}
    said = {"pp_overlap": True, "backend": "cpu"}
    grids = [
        {"schedule": ["1f1b", "breadth-first"], **common, **said},
        {"schedule": "depth-first", **common, "sequence": 4},
    ]
    file = written(tmp_path / "grid.toml", experiment=grids)
    journal = measured(file, tmp_path, {0: [2.0], 1: [1.0], 2: [1.5]})
    (group,) = results_of(read_study(str(file)), journal).groups
    assert len(group.results) == 3
