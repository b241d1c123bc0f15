"""Studies as files: the cells that they mean, and one line for each fault."""

from __future__ import annotations

import re

import pytest

from bfpp.api.study.hosts.study_hosts import HostKind
from bfpp.api.study.study import BACKENDS
from bfpp.api.study.study_file import AS_IT_IS, read_study
from bfpp.schedules import P2P, InvalidConfiguration
from tests.helpers.studies import written


def test_cells_are_all_combinations_on_all_networks(tmp_path):
    hosts = {"where": "namespaces", "count": 2}
    networks = {"fast": 1e9, "slow": 2.5e7}
    study = read_study(str(written(tmp_path / "grid.toml", hosts=hosts, networks=networks)))
    assert [(each.network, *each.values.values()) for each in study.cells] == [
        (network, schedule, 2, microbatches)
        for schedule in ("gpipe", "1f1b")
        for microbatches in (2, 4)
        for network in ("fast", "slow")
    ]
    assert study.varied == ("schedule", "microbatches")
    assert (study.hosts.where, study.hosts.count) == (HostKind.NAMESPACES, 2)
    assert len({cell.key for cell in study.cells}) == 8


def test_schedules_that_loop_and_others_divide_a_rank_alike(tmp_path):
    grid = {"schedule": ["1f1b", "breadth-first"], "pp": 2, "loops": 2, "microbatches": 4}
    study = read_study(str(written(tmp_path / "grid.toml", experiment=grid)))
    layouts = [cell.experiment.configuration.layout for cell in study.cells]
    assert [(each.loops, each.units) for each in layouts] == [(1, 4), (2, 4)]


def test_several_grids_are_added_up_and_values_that_a_cell_has_not_differ_too(tmp_path):
    common = {"pp": 2, "loops": 2, "microbatches": 4}
    grids = [
        {"schedule": ["depth-first", "breadth-first"], **common},
        {"schedule": "depth-first", **common, "sequence": [2, 4]},
        {"schedule": "depth-first", **common, "pp_overlap": False},
    ]
    study = read_study(str(written(tmp_path / "grid.toml", experiment=grids)))
    assert study.varied == ("schedule", "sequence", "pp_overlap")
    assert [cell.schedule for cell in study.cells] == [
        "depth-first", "breadth-first", "depth-first, sequence 2", "depth-first, sequence 4",
        "depth-first",
    ]  # fmt: skip
    assert [cell.others.get("pp_overlap") for cell in study.cells] == [None] * 4 + [False]
    graphs = [cell.experiment.communication.pp_overlap for cell in study.cells]
    assert graphs == [True] * 4 + [False]


def test_the_same_order_by_two_runtimes_is_two_cells(tmp_path):
    grid = {"schedule": "1f1b", "pp": 2, "microbatches": 4, "backend": ["cpu", "torch-pipelining"]}
    study = read_study(str(written(tmp_path / "grid.toml", experiment=grid)))
    assert [cell.backend for cell in study.cells] == [*BACKENDS]
    assert [cell.times_tasks for cell in study.cells] == [True, False]
    posts = [cell.predicted.communication.p2p for cell in study.cells]
    assert posts == [P2P.CHANNELS, P2P.POSTED]
    assert study.varied == ("backend",)
    ((_, cells),) = study.sessions.items()
    assert len(cells) == 2


def test_timelines_keep_their_names_when_cells_are_added(tmp_path):
    grid = {"schedule": ["depth-first"], "pp": 2, "loops": 2, "microbatches": 4, "sequence": [2, 4]}
    study = read_study(str(written(tmp_path / "grid.toml", experiment=grid)))
    names = [cell.timeline for cell in study.cells]
    others = "loops=2-microbatches=4-pp=2"
    assert names[1] == f"as-it-is-2x1x1-depth-first-sequence-4-{others}.json.gz"
    more = [{"schedule": "gpipe", "pp": 2, "microbatches": 4}, grid]
    study = read_study(str(written(tmp_path / "grid.toml", experiment=more)))
    assert [cell.timeline for cell in study.cells][1:] == names


def test_cells_that_one_profile_prices_share_a_session(tmp_path):
    grid = {
        "schedule": ["gpipe", "1f1b"],
        "pp": 2,
        "microbatches": [2, 4],
        "microbatch_size": [1, 2],
    }
    study = read_study(str(written(tmp_path / "grid.toml", experiment=grid)))
    assert [(each.microbatch_size, len(cells)) for each, cells in study.sessions.items()] == [
        (1, 4), (2, 4)
    ]  # fmt: skip


def test_a_range_has_both_ends(tmp_path):
    grid = {"schedule": "1f1b", "pp": 2, "microbatches": {"from": 2, "to": 8, "by": 3}}
    study = read_study(str(written(tmp_path / "grid.toml", experiment=grid)))
    assert [cell.values["microbatches"] for cell in study.cells] == [2, 5, 8]


def test_combinations_that_cannot_be_are_named_and_those_that_are_the_same_are_one(tmp_path):
    grid = {"schedule": ["depth-first"], "pp": 2, "loops": 2, "microbatches": [3, 4, 4]}
    study = read_study(str(written(tmp_path / "grid.toml", experiment=grid)))
    assert [cell.values["microbatches"] for cell in study.cells] == [4]
    ((values, reason),) = study.refused
    assert values["microbatches"] == 3
    assert "3 in sequences of 2 leave 1 for the last" in reason


def test_more_stages_than_layers_are_a_combination_that_cannot_be(tmp_path):
    grid = {"schedule": "breadth-first", "pp": 2, "loops": [1, 2, 4], "microbatches": 4}
    study = read_study(str(written(tmp_path / "grid.toml", experiment=grid)))
    assert [cell.values["loops"] for cell in study.cells] == [1, 2]
    ((_, reason),) = study.refused
    assert "4 layers cannot be divided over 8 stages" in reason


def test_the_halves_of_a_backward_pass_take_as_long_as_the_whole(tmp_path):
    study = read_study(str(written(tmp_path / "grid.toml")))
    assert study.mocked == {
        "forward": 0.002, "backward": 0.004, "backward_input": 0.002, "backward_weight": 0.002,
    }  # fmt: skip
    assert study.networks == {AS_IT_IS: None}
    assert read_study(str(written(tmp_path / "real.toml", compute=None))).mocked is None


def test_how_often_cells_are_run_does_not_change_what_was_measured(tmp_path):
    one = read_study(str(written(tmp_path / "one.toml")))
    other = read_study(str(written(tmp_path / "other.toml", measuring={"least": 5, "most": 9})))
    longer = read_study(str(written(tmp_path / "l.toml", compute={"forward": 1, "backward": 2})))
    assert one.digest == other.digest != longer.digest


FAULTS = [
    ({"experiment": None}, "the key 'experiment' is missing"),
    ({"experiment": {"pp": 2}}, "experiment: the key 'schedule' is missing"),
    ({"experiment": {"schedule": "gpipe", "model": "gpt-1t"}}, "model: a study does not vary it"),
    ({"experiment": [{"schedule": "gpipe"}, 3]}, "experiment: must be a table, or several"),
    ({"experiment": [{"schedule": "gpipe"}, {"pp": 2}]}, "the key 'schedule' is missing"),
    ({"experiment": {"schedule": "gpipe", "backend": "cuda"}}, "backend: 'cuda' is not one of cpu"),
    ({"experiment": {"schedule": []}}, "experiment: schedule must hold at least one value"),
    (
        {"experiment": {"schedule": "gpipe", "pp": {"from": 4, "to": 2, "by": 2}}},
        "to must be at least 4",
    ),
    ({"experiment": {"schedule": "fifo"}}, "no cell can be run; the first: .*fifo"),
    ({"experiment": {"schedule": "1f1b", "loop": 2}}, "no cell can be run; the first: loop"),
    ({"experiment": {"schedule": "1f1b", "pp": [*range(1, 10_002)]}}, "at most 10,000"),
    ({"model": {"layer": 3}}, "model: unknown key 'layer'.* layers?"),
    ({"compute": {"forward": 1.0}}, "compute: the key 'backward' is missing"),
    ({"compute": {"forward": 1.0, "backward": -1}}, "compute: backward must be positive"),
    ({"hosts": {"where": "moon"}}, "hosts: where: .*moon"),
    ({"hosts": {"where": "namespaces"}}, "hosts: the key 'count' is missing"),
    ({"hosts": {"where": "namespaces", "count": 3}}, "2 processes do not fill 3 namespaces"),
    ({"hosts": {"count": 3}}, "hosts: unknown key 'count'"),
    ({"hosts": {"where": "ssh", "names": ["a", 3]}}, "hosts: names must be a list of words"),
    ({"hosts": {"where": "ssh", "names": ["a"]}}, "hosts: 1 x 1 processes, and its cells need 2"),
    ({"hosts": {"where": "kubernetes", "count": 2}}, "hosts: the key 'image' is missing"),
    (
        {
            "hosts": {"where": "namespaces", "count": 2},
            "networks": {"a b": 1e6, "c": 2e6, "a-b": 3e6},
        },
        "networks: 'a b' and 'a-b' have the same files",
    ),
    ({"networks": {"slow": 1e6}}, "only namespaces have networks"),
    ({"measuring": {"least": 4, "most": 3}}, "measuring: most must be at least 4"),
    ({"measuring": {"step": 4}}, "measuring: unknown key 'step'"),
    ({"machine": {}}, "unknown key 'machine'"),
    ({"format": "bfpp search 1"}, "is a search, not a study; bfpp search"),
]


@pytest.mark.parametrize(("tables", "reason"), FAULTS, ids=[reason for _, reason in FAULTS])
def test_a_fault_is_one_line(tmp_path, tables, reason):
    path = written(tmp_path / "grid.toml", **tables)
    with pytest.raises(InvalidConfiguration) as caught:
        read_study(str(path))
    assert re.search(reason, str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)
