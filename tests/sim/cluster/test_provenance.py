"""Each constant of each preset says where it comes from."""

from __future__ import annotations

import json

import pytest

from bfpp.command_line import main
from bfpp.schedules import InvalidConfiguration
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.cluster.provenance import HowKnown, origin_of
from bfpp.sim.experiment.deviations import constants_of, unit_of
from bfpp.sim.presets.files import leaves, preset_names, read_settings

NAMED = {"bandwidth_per_node": "bandwidth", "port_bandwidth": "bandwidth"}
WITHOUT = {"gpus_per_node", "year", "gpus_per_port"}


def given(name):
    """The numbers that a preset's file gives itself, by their names in a cluster."""
    settings = read_settings("cluster", name)[1]
    for path, value in leaves({key: settings[key] for key in settings if key != "provenance"}):
        path = path[1:] if path[0] == "levels" else path
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and path[-1] not in WITHOUT:
            yield tuple(NAMED.get(part, part) for part in path)


@pytest.mark.parametrize("name", preset_names("cluster"))
def test_every_constant_of_a_preset_has_a_provenance_of_its_own_file(name):
    entries = read_settings("cluster", name)[1]["provenance"]
    own = [tuple(each.split(".")) for entry in entries for each in entry["of"]]
    for path in given(name):
        assert any(path[: len(each)] == each for each in own), path


@pytest.mark.parametrize("name", preset_names("cluster"))
def test_constants_are_listed_with_unit_deviation_and_provenance(name, capsys):
    found = {each.name: each for each in constants_of(load_cluster(name))}
    assert found["device.peak"].unit == "FLOP/s"
    assert found["device.peak"].kind == HowKnown.DATA_SHEET
    assert found["device.peak"].deviation is None
    assert found["device.matmul_efficiency"].deviation > 0
    assert main(["clusters", name]) == 0
    text = capsys.readouterr().out
    assert all(f"# {each}: " in text for each in found)
    assert main(["clusters", name, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in record["constants"]] == [*found]


def test_units():
    assert unit_of(("memory",)) == "bytes"
    assert unit_of(("memory_bandwidth",)) == unit_of(("flag_bandwidth",)) == "bytes/s"
    assert unit_of(("peaks", "fp8")) == "FLOP/s"
    assert unit_of(("transfer_latency",)) == unit_of(("host_seconds",)) == "s"
    assert unit_of(("memory_efficiency",)) == "share"


TEXT = """
like = "dgx-h100"
device.matmul_efficiency = 0.7
[[provenance]]
kind = "measured"
source = "our own"
of = ["device.matmul_efficiency"]
"""


def test_a_file_has_its_own_say_over_the_preset_that_it_is_like(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(TEXT)
    cluster = load_cluster(str(path))
    assert origin_of(cluster.origins, ("device", "matmul_efficiency")).source == "our own"
    assert origin_of(cluster.origins, ("device", "peak")).kind == HowKnown.DATA_SHEET
    assert origin_of(cluster.origins, ("device", "rumour")) is None


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ('"measured"', '"heard"', "kind must be one of data sheet, "),
        ('["device.matmul_efficiency"]', "[]", "of must be names of constants"),
        ('["device.matmul_efficiency"]', '["device.rumour"]', "device.rumour is not a constant"),
        ('source = "our own"', "", "the key 'source' is missing"),
    ],
)
def test_a_malformed_provenance_is_refused_in_a_line(tmp_path, before, after, reason):
    path = tmp_path / "own.toml"
    path.write_text(TEXT.replace(before, after))
    with pytest.raises(InvalidConfiguration, match=reason):
        load_cluster(str(path))


DATA_SHEET = """
gpus_per_node = 8
[device]
peak = 1307.4e12
memory_bandwidth = 5.3e12
memory = 192e9
[intra_node]
bandwidth = 336e9
latency = 5e-6
"""


def test_a_data_sheet_is_enough_for_one_node(tmp_path, capsys):
    path = tmp_path / "sheet.toml"
    path.write_text(DATA_SHEET)
    step = ["simulate", "1f1b", "--model", "llama3-8b", "--cluster", str(path), "--pp", "4"]
    assert main([*step, "--dp", "2"]) == 0
    assert load_cluster(str(path)).device.matmul_efficiency < 1
    capsys.readouterr()
    assert main([*step, "--dp", "4"]) == 2
    assert "sheet has 8 GPUs, not 16" in capsys.readouterr().err
