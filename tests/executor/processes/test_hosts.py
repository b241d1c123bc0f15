"""Several hosts: network namespaces of this machine, joined by a bridge, and a slow link."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.helpers.programs import MODEL, steps_of, wait_for
from bfpp.schedules import Operation
from bfpp.traces.formats.timeline_json import load_timeline
from tests.helpers import ROOT
from tests.helpers.listening import beyond_loopback

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
            newer = (f"fd77::{host + 1}/64", "dev", "eth0", "nodad")
            system("ip", "-n", name, "-6", "addr", "add", *newer)
            for link in ("lo", "eth0"):
                system("ip", "-n", name, "link", "set", link, "up")
    except subprocess.CalledProcessError as error:
        remove(mark, names)
        pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
    yield names
    remove(mark, names)


def remove(bridge: str, names: list[str]) -> None:
    """At once: what a namespace leaves behind would go later, and its names be taken till then."""
    for host, name in enumerate(names):
        subprocess.run(["ip", "link", "del", f"{bridge}e{host}"], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
    subprocess.run(["ip", "link", "del", bridge], check=False, capture_output=True)


def limit(host: str) -> None:
    """Let what a host sends pass at `BITS` a second."""
    shape = ("tbf", "rate", f"{BITS:.0f}bit", "burst", "16kb", "latency", "2s")
    system("ip", "netns", "exec", host, "tc", "qdisc", "add", "dev", "eth0", "root", *shape)


def documented() -> list[str]:
    """The command of the documentation, as its words."""
    text = (ROOT / "docs" / "executor.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"^    torchrun (?:.*\\\n)*.*$", text, re.MULTILINE)
    return shlex.split(found.replace("\\\n", " "))


def begun(hosts: list[str], command: Sequence[str], first: str) -> list[subprocess.Popen[str]]:
    """A command of several hosts on its way on each, the first of which has this address."""
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_IFNAME")}
    paths = [str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {**kept, "OMP_NUM_THREADS": "1", "PATH": os.pathsep.join(paths)}
    return [
        subprocess.Popen(
            ["ip", "netns", "exec", name, *(filled(word, first, host) for word in command)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for host, name in enumerate(hosts)
    ]


def filled(word: str, first: str, host: int) -> str:
    """A word, or what is after its `=`, that stands for a place."""
    name, mark, value = word.rpartition("=")
    places = {"HOST": first, "PORT": str(PORT), "NODE": str(host)}
    return f"{name}{mark}{places.get(value, value)}"


def on(hosts: list[str], command: Sequence[str], first: str) -> list[tuple[int, str, str]]:
    """The end of such a command on each host."""
    started = begun(hosts, command, first)
    ends = [process.communicate(timeout=240) for process in started]
    codes = [process.returncode for process in started]
    return [(code, *end) for code, end in zip(codes, ends, strict=True)]


def train(hosts: list[str], *options: object, first: str = "10.77.0.1") -> Mapping[str, object]:
    """The first process's output for a run with two processes on each host."""
    launcher = documented()
    command = [*launcher[: launcher.index("run") + 1], *map(str, options), "--json"]
    ends = on(hosts, command, first)
    assert [code for code, _, _ in ends] == [0] * HOSTS, [
        line for _, _, errors in ends for line in errors.splitlines() if "bfpp" in line
    ]
    (line,) = (line for line in ends[0][1].splitlines() if line.startswith("{"))
    return dict(json.loads(line))


def test_the_documented_command_trains(hosts: list[str]) -> None:
    ends = on(hosts, documented(), "10.77.0.1")
    assert [code for code, _, _ in ends] == [0] * HOSTS, ends
    assert "breadth-first: 4 ranks, 8 stages, 8 micro-batches" in ends[0][1]
    assert ends[1][1] == ""


LINKS = {
    "a bridge besides": ("10.77.0.1", ()),
    "an address of the newer kind": ("fd77::1", ()),
    "an interface that is named": ("10.77.0.1", ("--interface", "eth0")),
}
SHORT = ("gpipe", "--pp", 4, "--microbatches", 2, "--layers", 4, "--hidden", 16, "--steps", 2)


@pytest.mark.parametrize("link", LINKS)
def test_hosts_find_each_other(link: str, hosts: list[str]) -> None:
    for name in hosts:  # what a container or a virtual machine brings, and leads nowhere
        system("ip", "-n", name, "link", "add", "docker0", "type", "bridge")
        system("ip", "-n", name, "addr", "add", "172.17.0.1/16", "dev", "docker0")
        system("ip", "-n", name, "link", "set", "docker0", "up")
    first, options = LINKS[link]
    assert len(train(hosts, *SHORT, *options, first=first)["losses"]) == 2  # type: ignore[arg-type]


def test_an_interface_that_is_not_there_is_told_in_one_line(hosts: list[str]) -> None:
    launcher = documented()
    command = launcher[launcher.index("bfpp") :]
    ends = on(hosts, [*command, "--interface", "eth1"], "10.77.0.1")
    message = "bfpp run: --interface: eth1 is none of this machine's: lo, eth0\n"
    assert ends == [(2, "", message)] * HOSTS


def test_two_hosts_train_as_one(hosts: list[str], tmp_path: Path) -> None:
    layout = ("breadth-first", "--pp", 2, "--dp", 2, "--loops", 2, "--microbatches", 4)
    options = (
        "--model",
        MODEL,
        "--sharding",
        "full",
        "--precision",
        "float64",
        "--steps",
        3,
        "--clip",
        0.1,
    )
    trace = tmp_path / "measured.json"
    record = train(hosts, *layout, *options, "--verify", "--trace", trace)
    assert record["exact"] is True
    assert load_timeline(trace).is_measured


BY_HAND = (
    "env", "RANK=NODE", "LOCAL_RANK=0", f"WORLD_SIZE={HOSTS}", "LOCAL_WORLD_SIZE=1",
    "MASTER_ADDR=HOST", "MASTER_PORT=PORT", "BFPP_SECRET=of the run",
)  # fmt: skip
"""As another launcher than torchrun begins a process on each host; the first hosts the store."""

PAIR = ("bfpp", "run", "gpipe", "--pp", "2", "--microbatches", "2", "--model", MODEL)


def test_without_torchrun_nothing_listens_but_on_the_way_to_the_others(
    hosts: list[str], tmp_path: Path
) -> None:
    metrics = tmp_path / "metrics"
    words = (*BY_HAND, *PAIR, "--steps", "1000000", "--metrics", str(metrics))
    processes = begun(hosts, words, "10.77.0.1")
    try:
        wait_for(lambda: steps_of(metrics))
        reached = [beyond_loopback([process.pid]) for process in processes]
        assert ("10.77.0.1", PORT) in reached[0]
        for host, places in enumerate(reached):
            assert {address for address, _ in places} <= {
                f"10.77.0.{host + 1}",
                f"fd77::{host + 1}",
            }
    finally:
        for process in processes:
            process.terminate()
        ends = [process.communicate(timeout=60) for process in processes]
    assert "stopped by SIGTERM after step" in ends[0][1]
    assert processes[0].returncode == 128 + signal.SIGTERM


def test_a_host_with_another_secret_is_no_part_of_the_run(hosts: list[str]) -> None:
    words = [word.replace("of the run", "NODE") for word in BY_HAND]
    ends = on(hosts, (*words, *PAIR, "--steps", "1", "--start-timeout", "30"), "10.77.0.1")
    assert [code for code, _, _ in ends] == [1] * HOSTS
    said = "".join(errors for _, _, errors in ends)
    assert "was written by no process of this run: all have one BFPP_SECRET" in said


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
