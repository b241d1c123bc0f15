"""What all processes know of all, whatever their number."""

from __future__ import annotations

import threading
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from bfpp.executor.processes import butterfly
from bfpp.executor.processes.butterfly import FEW, merged_over_all

LOCAL = threading.local()


class Processes:
    """Threads that send messages to each other, and count them."""

    def __init__(self, number: int) -> None:
        self.number, self.sent = number, [0] * number
        self.boxes: dict[tuple[int, int], Queue[Tensor]] = {
            (here, there): Queue() for here in range(number) for there in range(number)
        }
        self.table: list[Tensor] = [torch.empty(0)] * number
        self.gate = threading.Barrier(number)

    def get_rank(self) -> int:
        return LOCAL.process

    def get_world_size(self) -> int:
        return self.number

    def send(self, value: Tensor, to: int) -> None:
        self.sent[LOCAL.process] += 1
        self.boxes[LOCAL.process, to].put(value.clone())

    def isend(self, value: Tensor, to: int) -> Any:
        self.send(value, to)
        return SimpleNamespace(wait=lambda: None)

    def recv(self, place: Tensor, source: int) -> None:
        place.copy_(self.boxes[source, LOCAL.process].get(timeout=10))

    def all_gather_single(self, table: Tensor, own: Tensor) -> None:
        self.table[LOCAL.process] = own
        self.gate.wait(10)
        table.copy_(torch.cat(self.table))


def run(number: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Tensor], Processes]:
    processes = Processes(number)
    monkeypatch.setattr(butterfly, "dist", processes)
    merged: dict[int, Tensor] = {}

    def one(process: int) -> None:
        LOCAL.process = process
        own = torch.tensor([1.0 / (3 + process), float(process)], dtype=torch.float64)
        merged[process] = merged_over_all(own, merge)

    threads = [threading.Thread(target=one, args=(each,)) for each in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return [merged[each] for each in range(number)], processes


def merge(one: Tensor, other: Tensor) -> Tensor:
    return torch.stack([one[0] + other[0], torch.maximum(one[1], other[1])])


@pytest.mark.parametrize("number", [1, 2, 3, FEW, FEW + 1, 8, 9, 15, 16, 21])
def test_all_get_the_same(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    results, processes = run(number, monkeypatch)
    assert all(torch.equal(each, results[0]) for each in results)  # to the last bit
    total = sum(1.0 / (3 + each) for each in range(number))
    assert results[0].tolist() == pytest.approx([total, number - 1], rel=1e-14)
    assert max(processes.sent) <= number.bit_length()
