"""Hosts in network namespaces: made, limited and removed, whatever happens to the study."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bfpp.api.study.hosts.namespaces import namespaces
from bfpp.api.study.journal import NAME
from bfpp.schedules import InvalidInput
from bfpp.traces.formats.timeline_json import load_timeline
from tests.helpers.studies import written

CAN_HOLD_HOSTS = os.geteuid() == 0 and shutil.which("ip") and shutil.which("tc")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CAN_HOLD_HOSTS, reason="needs root, ip and tc"),
]

BITS = 50e6


@pytest.fixture(autouse=True)
def _can_be_made(tmp_path):
    try:
        with namespaces(1, BITS, tmp_path):
            pass
    except InvalidInput as error:
        pytest.skip(f"no network namespaces here: {error}")


def made():
    """Everything that studies have made and not removed."""
    listed = [["ip", "netns", "list"], ["ip", "-o", "link"]]
    texts = [subprocess.run(each, capture_output=True, text=True, check=True) for each in listed]
    return {word for text in texts for word in text.stdout.split() if word.startswith("bf")}


def test_hosts_are_there_and_gone_again(tmp_path):
    before = made()
    with namespaces(3, BITS, tmp_path) as hosts:
        assert len(hosts.names) == 3
        assert {*hosts.names} <= made()
        for name in hosts.names:
            words = [*hosts.enter, name, "ip", "-br", "addr", "show", hosts.interface]
            said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
            assert said.split()[1] == "UP"
    assert made() == before


def test_hosts_are_gone_after_a_failure_and_those_of_a_study_that_was_killed_are_replaced(tmp_path):
    before = made()
    with pytest.raises(ZeroDivisionError), namespaces(2, BITS, tmp_path):
        raise ZeroDivisionError
    assert made() == before
    killed = f"""
import os
from pathlib import Path
from bfpp.api.study.hosts.namespaces import namespaces
with namespaces(2, 5e7, Path({str(tmp_path)!r})):
    os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", killed], check=False).returncode == 9
    assert made() != before
    with namespaces(2, BITS, tmp_path):
        pass
    assert made() == before


def grid(folder: Path, **tables: Any) -> Path:
    known = {
        "experiment": {"schedule": ["gpipe", "1f1b"], "pp": 2, "microbatches": 4},
        "model": {"layers": 4, "hidden": 64, "context": 256},
        "compute": {"forward": 0.01, "backward": 0.02},
        "hosts": {"where": "namespaces", "count": 2},
        "networks": {"slow": BITS},
        "measuring": {"steps": 2, "least": 2, "most": 2},
    }
    return written(folder / "grid.toml", **known | tables)


def begun(folder: Path, *options: str, **tables: Any) -> subprocess.Popen[str]:
    words = ["study", str(grid(folder, **tables)), "--out", str(folder / "out"), "--json", *options]
    command = [sys.executable, "-P", "-m", "bfpp", *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder
    )


def kept(folder: Path) -> list[str]:
    path = folder / "out" / NAME
    return path.read_text().splitlines()[1:] if path.exists() else []


def test_a_study_that_is_killed_goes_on_and_loses_nothing(tmp_path):
    before = made()
    first = begun(tmp_path)
    deadline = time.monotonic() + 240
    while not kept(tmp_path) and time.monotonic() < deadline and first.poll() is None:
        time.sleep(0.1)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    rows = kept(tmp_path)
    assert rows
    out, errors = begun(tmp_path, "--resume").communicate(timeout=240)
    assert kept(tmp_path)[: len(rows)] == rows
    record = json.loads(out)
    assert [cell["repetitions"] for cell in record["cells"]] == [2, 2], errors
    assert made() == before
    # 64 KiB at 50 Mbit/s take 10.5 ms, a tenth of a pass of two layers and more.
    for cell in record["cells"]:
        assert abs(cell["error"]) < 0.15


def test_a_study_goes_on_when_a_process_of_a_host_is_killed(tmp_path):
    study = begun(tmp_path)
    deadline = time.monotonic() + 240
    while not kept(tmp_path) and time.monotonic() < deadline and study.poll() is None:
        time.sleep(0.1)
    children = Path(f"/proc/{study.pid}/task/{study.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    out, errors = study.communicate(timeout=240)
    assert [cell["repetitions"] for cell in json.loads(out)["cells"]] == [2, 2], errors
    assert "begun again" in errors


def test_without_overlap_a_rank_waits_until_its_message_has_arrived(tmp_path):
    """64 KiB take 10 ms on the link, and a socket takes them at once."""
    experiment = {"schedule": "gpipe", "pp": 2, "microbatches": 4, "pp_overlap": False}
    once = {"steps": 1, "least": 1, "most": 1}
    study = begun(tmp_path, experiment=experiment, measuring=once)
    _, errors = study.communicate(timeout=240)
    assert study.returncode == 0, errors
    (saved,) = (tmp_path / "out" / "timelines").iterdir()
    timeline = load_timeline(saved)
    graph, begins = timeline.graph, timeline.start
    for task in np.flatnonzero(graph.is_transfer).tolist():
        later = graph.is_compute & (graph.rank == graph.rank[task]) & (begins > begins[task])
        assert timeline.duration[task] > 0.008
        assert (begins[later] > timeline.end[task] - 0.002).all()


def test_hosts_that_torchrun_joins_measure_their_network_and_go_on(tmp_path):
    """Two processes on each of two hosts; the second time, nothing is left to do."""
    file = written(
        tmp_path / "grid.toml",
        experiment={"schedule": ["gpipe", "1f1b"], "pp": 2, "dp": 2, "microbatches": 4},
        hosts={"where": "torchrun"},
        measuring={"steps": 2, "least": 1, "most": 1},
    )
    place = tmp_path / "out"
    study = ["bfpp", "study", str(file), "--out", str(place), "--resume", "--json"]
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for _ in range(2):
        with namespaces(2, BITS, tmp_path) as hosts:
            first = f"{hosts.address.rpartition('.')[0]}.1"
            joined = shlex.split(
                f"--nnodes 2 --nproc-per-node 2 --master-addr {first} --master-port 29519 "
                "--no-python --node-rank"
            )
            begun = [
                subprocess.Popen(
                    [*hosts.enter, name, "torchrun", *joined, str(number), *study],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "PATH": paths, "OMP_NUM_THREADS": "1"},
                )
                for number, name in enumerate(hosts.names)
            ]
            ends = [process.communicate(timeout=240) for process in begun]
        assert [process.returncode for process in begun] == [0, 0], ends
        (line,) = (line for line in ends[0][0].splitlines() if line.startswith("{"))
        assert [cell["repetitions"] for cell in json.loads(line)["cells"]] == [1, 1]
        assert ends[1][0] == ""
    (profile,) = place.glob("*.toml")
    hosts_measured = tomllib.loads(profile.read_text())["hosts"]
    assert [host["processes"] for host in hosts_measured] == [2, 2]
    for host in hosts_measured:
        assert 0.7 < host["out"] * 8 / BITS < 1.1
        assert 0.7 < host["into"] * 8 / BITS < 1.1
