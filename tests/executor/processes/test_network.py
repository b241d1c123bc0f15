"""Which network interface leads where, and the variables that a process of a run begins with."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from threading import Thread

import pytest

from benchmarks.helpers.programs import run
from bfpp.command_line import main
from bfpp.executor.processes import network
from bfpp.executor.processes.environment import GLOO, NCCL, missing, prepare
from bfpp.executor.processes.network import (
    interface_to,
    interface_to_others,
    interfaces,
    is_loopback,
)
from bfpp.schedules import InvalidConfiguration
from tests.helpers import ROOT

JOINED = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
STREAMS = "CUDA_DEVICE_MAX_CONNECTIONS"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost"])
def test_this_machine_is_reached_within(host: str) -> None:
    assert interface_to(host) == "lo"
    assert is_loopback("lo")


@pytest.mark.parametrize("host", ["no-such-host.invalid", "", "." * 300, "1.2.3.4.5", "::gg"])
def test_a_name_without_an_address_leads_nowhere(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object, **__: object) -> object:
        raise socket.gaierror

    if host.endswith(".invalid"):  # asks nobody
        monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert interface_to(host) in (None, "lo")


def test_each_address_of_its_own_is_that_of_its_interface() -> None:
    found = network._addresses()
    assert {name for name, _, _ in found} <= {*interfaces()}
    assert "lo" in {name for name, _, _ in found}
    for name, address, _ in found:
        if len(address) == 4:
            assert interface_to(socket.inet_ntop(socket.AF_INET, address)) == name


def test_a_host_that_knows_its_name_as_its_own_is_reached_by_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = [("lo", b"\x7f\0\0\1", network.LOOPBACK), ("eth7", b"\x0a\0\0\1", 0)]
    monkeypatch.setattr(network, "_addresses", lambda: known)
    monkeypatch.setattr(network, "_local_addresses", lambda host: [LOCAL[host]])
    assert interface_to("first") == "lo"
    assert interface_to_others("first") == "eth7"
    assert interface_to_others("second") == "eth7"
    several = {**JOINED, "MASTER_ADDR": "first", "WORLD_SIZE": "2"}
    assert missing(several, None)[GLOO] == "eth7"
    assert missing(several, None)[NCCL] == "=eth7"
    del several["LOCAL_WORLD_SIZE"]
    assert missing(several, None)[GLOO] == "lo"


@pytest.mark.parametrize(("has_loopback", "interface"), [(True, "lo"), (False, "eth7")])
def test_processes_of_one_host_meet_where_no_other_can_come(
    has_loopback: bool, interface: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever address of its own the launcher names; another one if there is nothing else."""
    within = [("lo", b"\x7f\0\0\1", network.LOOPBACK)] if has_loopback else []
    monkeypatch.setattr(network, "_addresses", lambda: [*within, ("eth7", b"\x0a\0\0\1", 0)])
    monkeypatch.setattr(network, "_local_addresses", lambda host: [LOCAL[host]])
    alone = {**JOINED, "MASTER_ADDR": "second", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    assert missing(alone, None)[GLOO] == interface
    assert missing(alone | {"LOCAL_WORLD_SIZE": "1"}, None)[GLOO] == "eth7"


LOCAL = {"first": b"\x7f\0\0\1", "second": b"\x0a\0\0\1", network.ELSEWHERE: b"\x0a\0\0\2"}


def test_what_the_user_has_set_stays() -> None:
    assert missing(JOINED, None) == {STREAMS: "32", GLOO: "lo", NCCL: "=lo"}
    own = {GLOO: "eth1", NCCL: "^docker", STREAMS: "1"}
    assert missing({**JOINED, **own}, None) == {}
    assert missing({**JOINED, **own}, "eth2") == {GLOO: "eth2", NCCL: "=eth2"}


def test_an_interface_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(InvalidConfiguration, match=r"lo"):
        prepare("nowhere")


PART = """
import json, os, sys
from bfpp.executor.processes import ProcessContext, launch
import torch
def part(context, _):
    return dict(os.environ), torch.cuda.is_initialized()
print(json.dumps(launch(part, None, 1)))
"""


def test_the_variables_are_there_when_a_part_begins_and_cuda_has_not_started() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    kept = {name: value for name, value in os.environ.items() if name not in (STREAMS, GLOO, NCCL)}
    for own, expected in ({}, "32"), ({STREAMS: "4"}, "4"):
        environment = {**kept, **JOINED, **own, "MASTER_PORT": port, "PYTHONPATH": str(ROOT)}
        told = subprocess.run(
            [sys.executable, "-c", PART],
            env=environment, check=True, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        variables, has_started = json.loads(told.stdout)
        assert (variables[STREAMS], variables[GLOO]) == (expected, "lo")
        assert not has_started


def test_what_answers_and_is_no_store_is_told_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            with suppress(OSError):
                while True:
                    server.accept()[0].close()

        Thread(target=hang_up, daemon=True).start()
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.getsockname()[1])}
        joined = {**address, "RANK": "1", "WORLD_SIZE": "2"}
        ended = run("gpipe", "--pp", 2, "--start-timeout", 1, variables=joined)
        server.shutdown(socket.SHUT_RDWR)
    assert ended.code == 1
    assert ended.line.startswith("bfpp run: process 1 cannot reach the run's store at 127.0.0.1, ")


@pytest.mark.parametrize("command", ["run", "calibrate"])
def test_they_are_there_before_gpus_are_counted(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (STREAMS, GLOO, NCCL):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in {**JOINED, "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    found = []

    def count() -> int:
        found.append(os.environ.get(STREAMS))
        return 0

    monkeypatch.setattr("torch.cuda.device_count", count)
    words = {"run": ("gpipe", "--pp", 1), "calibrate": ("--pp", 1, "--out", "unwritten.toml")}
    assert main([command, *map(str, words[command]), "--backend", "cuda"]) == 2
    assert "--backend: cuda takes a GPU" in capsys.readouterr().err
    assert found == ["32"]
