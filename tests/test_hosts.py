"""Several hosts: network namespaces of this machine, joined by a bridge, and a slow link."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from schedules import Operation
from tests.run_program import program
from traces.timeline_file import load_timeline

CAN_HOLD_HOSTS = os.geteuid() == 0 and shutil.which("ip") and shutil.which("tc")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CAN_HOLD_HOSTS, reason="needs root, ip and tc"),
]

HOSTS = 2
PORT = 29517
BITS = 50e6
"""A second, through the link that is limited."""


def system(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True)


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Names of network namespaces, on one bridge; the address of host n is 10.77.0.n+1."""
    mark = f"bf{os.getpid() % 10**6}"
    names = [f"{mark}h{host}" for host in range(HOSTS)]
    try:
        system("ip", "link", "add", mark, "type", "bridge")
        system("ip", "link", "set", mark, "up")
        for host, name in enumerate(names):
            system("ip", "netns", "add", name)
            end = f"{mark}e{host}"
            system("ip", "link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", name)
            system("ip", "link", "set", end, "master", mark, "up")
            system("ip", "-n", name, "addr", "add", f"10.77.0.{host + 1}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                system("ip", "-n", name, "link", "set", link, "up")
    except subprocess.CalledProcessError as error:
        remove(mark, names)
        pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
    yield names
    remove(mark, names)


def remove(bridge: str, names: list[str]) -> None:
    for name in names:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
    subprocess.run(["ip", "link", "del", bridge], check=False, capture_output=True)


def limit(host: str) -> None:
    """Let what a host sends pass at `BITS` a second."""
    shape = ("tbf", "rate", f"{BITS:.0f}bit", "burst", "16kb", "latency", "2s")
    system("ip", "netns", "exec", host, "tc", "qdisc", "add", "dev", "eth0", "root", *shape)


def train(hosts: list[str], *options: object) -> Mapping[str, object]:
    """What the first process tells of a run with two processes on each host."""
    launcher = (
        "-m", "torch.distributed.run", "--nnodes", str(HOSTS), "--nproc-per-node", "2",
        "--master-addr", "10.77.0.1", "--master-port", str(PORT), "--node-rank",
    )  # fmt: skip
    variables = {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
    started = [
        program(
            *options,
            "--json",
            prefix=("ip", "netns", "exec", name),
            before=(*launcher, str(host), "-m", "bfpp.command_line"),
            variables=variables,
        )
        for host, name in enumerate(hosts)
    ]
    ends = [process.communicate(timeout=240) for process in started]
    assert [process.returncode for process in started] == [0] * HOSTS, [
        line for _, errors in ends for line in errors.splitlines() if "bfpp" in line
    ]
    (line,) = (line for line in ends[0][0].splitlines() if line.startswith("{"))
    return dict(json.loads(line))


def test_two_hosts_train_as_one(hosts: list[str], tmp_path: Path) -> None:
    layout = ("breadth-first", "--pp", 2, "--dp", 2, "--loops", 2, "--microbatches", 4)
    options = ("--sharding", "full", "--precision", "float64", "--steps", 3, "--clip", 0.1)
    trace = tmp_path / "measured.json"
    record = train(hosts, *layout, *options, "--verify", "--trace", trace)
    assert record["exact"] is True
    assert load_timeline(trace).is_measured


def test_a_slow_link_makes_transfers_as_slow_as_it_is(hosts: list[str], tmp_path: Path) -> None:
    # Ranks 0 and 1 are on the first host, 2 and 3 on the second.
    sizes = ("--hidden", 256, "--context", 64, "--layers", 4, "--heads", 4)
    layout = ("gpipe", "--pp", 4, "--microbatches", 4, "--microbatch-size", 4, "--steps", 3)
    medians = []
    for slow in (False, True):
        if slow:
            limit(hosts[0])
        trace = tmp_path / f"{slow}.json"
        train(hosts, *layout, *sizes, "--trace", trace)
        medians.append(transfer_seconds(trace))
    free, limited = medians
    due = 4 * 64 * 256 * 4 * 8 / BITS
    print(f"{due=} {free=} {limited=}")  # noqa: T201
    assert limited[1] == pytest.approx(due, rel=0.3)
    assert free[1] < due / 3
    assert max(limited[0], limited[2]) < due / 3


def transfer_seconds(trace: Path) -> list[float]:
    """By the sender: the median time of its activations' transfers."""
    timeline = load_timeline(trace)
    graph = timeline.graph
    is_sent = graph.operation == Operation.TRANSFER_ACTIVATIONS
    return [
        float(np.median(timeline.duration[is_sent & (graph.rank == rank)])) for rank in range(3)
    ]
