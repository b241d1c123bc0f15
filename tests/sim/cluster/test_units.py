"""Numbers of a cluster's file that are likely in another unit than the file's."""

import pytest

from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.presets.files import preset_names

FILE = """
gpus_per_node = 8
[device]
peak = 1307e12
memory = 80e9
memory_bandwidth = 900e9
peaks = { fp8 = 2614e12 }
launch_seconds = 4e-6
[levels.wire]
bandwidth = 3e6
latency = 5e-6
[deviations.device]
peak = 0.05
"""


def doubts(folder, old="", new=""):
    path = folder / "mine.toml"
    path.write_text(FILE.replace(old, new))
    return load_cluster(str(path)).doubts


@pytest.mark.parametrize(
    ("old", "new", "doubt"),
    [
        ("1307e12", "1307", "device.peak = 1307 is in FLOP/s: write 1307e12 if TFLOP/s are meant"),
        ("80e9", "80", "device.memory = 80 is in bytes: write 80e9 if GB are meant"),
        ("900e9", "900", "device.memory_bandwidth = 900 is in bytes/s: write 900e9 if GB/s are"),
        ("3e6", "0.5", "levels.wire.bandwidth = 0.5 is in bytes/s: write 0.5e9 if GB/s are meant"),
        ("2614e12", "2614", "device.peaks.fp8 = 2614 is in FLOP/s: write 2614e12"),
        ("5e-6", "5", "levels.wire.latency = 5 is in seconds: write 5e-6 if microseconds"),
        ("4e-6", "4", "device.launch_seconds = 4 is in seconds: write 4e-6 if microseconds"),
    ],
)
def test_another_unit_is_doubted_with_what_to_write(tmp_path, old, new, doubt):
    assert doubts(tmp_path) == ()
    (said,) = doubts(tmp_path, old, new)
    assert said.startswith(f"mine: {doubt}")


def test_presets_are_not_doubted():
    assert not any(load_cluster(name).doubts for name in preset_names("cluster"))


def test_a_doubt_is_said_beside_predictions_searches_and_the_file(tmp_path, bfpp, answer):
    path = tmp_path / "mine.toml"
    path.write_text(FILE.replace("1307e12", "1307"))
    doubt = "mine: device.peak = 1307 is in FLOP/s"
    on = f"--model bert-6.6b --cluster {path}"
    (warning,) = answer(f"simulate 1f1b {on} --microbatches 2 --tp 8")["warnings"]
    assert warning.startswith(doubt)
    assert bfpp(f"clusters {path}")[2].startswith(f"bfpp clusters: {doubt}")
    search = f"search {on} --gpus 8 --batch 8 --schedule 1f1b --fix tp=8 --fix pp=1 --workers 1"
    assert bfpp(search)[2].startswith(f"bfpp search: {doubt}")
