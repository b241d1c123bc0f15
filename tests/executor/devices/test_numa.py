"""The CPUs of a GPU's NUMA node, as Linux describes them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bfpp.executor.devices.numa import DEVICES, NODES, bind_to_node_at, bind_to_node_of

ADDRESS = "0000:c1:00.0"
Host = Callable[..., Path]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A host with two processors of four CPUs, each with a second thread on its cores."""

    def described(node: str = "1", online: str = "0-1", cpus: str = "4-7,12-15") -> Path:
        for path, text in {
            f"{NODES}/online": online,
            f"{NODES}/node0/cpulist": "0-3,8-11",
            f"{NODES}/node1/cpulist": cpus,
            f"{DEVICES}/{ADDRESS}/numa_node": node,
        }.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text + "\n")
        return tmp_path

    return described


@pytest.fixture
def cpus(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The CPUs of this process, which has all 16."""
    own = set(range(16))

    def set_to(_: int, chosen: set[int]) -> None:
        own.intersection_update(chosen)

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: own)
    monkeypatch.setattr(os, "sched_setaffinity", set_to)
    return own


def test_a_process_stays_on_its_gpus_node(
    host: Host, cpus: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = SimpleNamespace(pci_domain_id=0, pci_bus_id=0xC1, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", {2: gpu}.get)
    assert bind_to_node_of(2, host()) == 1
    assert cpus == {4, 5, 6, 7, 12, 13, 14, 15}


def test_cpus_that_were_chosen_before_are_narrowed_down_or_kept(host: Host, cpus: set[int]) -> None:
    cpus.intersection_update({2, 3, 4, 5})
    assert bind_to_node_at(ADDRESS, host()) == 1
    assert cpus == {4, 5}
    assert bind_to_node_at(ADDRESS, host(node="0")) is None  # none of them is there
    assert cpus == {4, 5}


@pytest.mark.parametrize(
    "host_is",
    [{"online": "0", "node": "0"}, {"node": "-1"}, {"node": "7"}, {"cpus": ""}, {"node": "no"}],
)
def test_without_nodes_nothing_happens(host: Host, cpus: set[int], host_is: dict[str, str]) -> None:
    assert bind_to_node_at(ADDRESS, host(**host_is)) is None
    assert bind_to_node_at("0000:00:00.0", host()) is None  # no such device
    assert len(cpus) == 16


@pytest.mark.skipif(sys.platform != "linux", reason="is Linux's")
def test_threads_that_come_later_stay_there_too(host: Host) -> None:
    """In a process of its own, which gives up all CPUs but one."""
    (first, *_) = os.sched_getaffinity(0)
    program = f"""if True:
        import os, threading
        from pathlib import Path
        from bfpp.executor.devices.numa import bind_to_node_at
        assert bind_to_node_at("{ADDRESS}", Path("{host(cpus=str(first))}")) == 1
        seen = []
        thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
        print(seen == [{{{first}}}])
    """
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout == "True\n"
