"""Files of actions under another release of PyTorch, where `BFPP_TORCH` names a folder with it.

A checkout, or a wheel that is unpacked: of it only `torch/distributed/pipelining` is read.
"""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path

import pytest

from bfpp.schedules import (
    P2P,
    Communication,
    InvalidConfiguration,
    TaskGraph,
    build_graph,
    find_schedule,
    registered_schedules,
)
from bfpp.schedules.formats.torch_actions import write_actions
from tests.helpers.foreign_modules import answers

FOLDER = os.environ.get("BFPP_TORCH")
TORCH = FOLDER and Path(FOLDER).expanduser()


def graphs() -> list[TaskGraph]:
    """Steps of all schedules that place each stage on one rank, in whole micro-batches."""
    found = []
    settings = product(
        registered_schedules(), (2, 4), ("none", "full"), (True, False), (P2P.CHANNELS, P2P.BATCHED)
    )
    for name, pp, sharding, overlaps, p2p in settings:
        rule = find_schedule(name)
        try:
            layout = rule.layout(pp, 2 * pp, 2 if rule.looped else rule.loops, 1)
            communication = Communication(sharding, dp_overlap=overlaps, p2p=p2p)
            graph = build_graph(rule, layout, communication)
        except InvalidConfiguration:  # as posts that deadlock
            continue
        if not layout.copies and layout.slices == 1:
            found.append(graph)
    return found


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.skipif(TORCH is None, reason="BFPP_TORCH names no folder")
def test_every_file_is_loaded() -> None:
    assert isinstance(TORCH, Path)
    source = (TORCH / "torch" / "distributed" / "pipelining" / "schedules.py").read_text()
    every = graphs()
    questions = [
        {
            "stages": graph.layout.stages,
            "microbatches": graph.layout.microbatches,
            "rows": write_actions(graph, waits="WAIT_SEND_F" in source).splitlines(),
        }
        for graph in every
    ]
    errors = [
        (graph.schedule, answer["error"])
        for graph, answer in zip(
            every, answers("tests.helpers.torch_runtime", [str(TORCH)], questions), strict=True
        )
        if answer["error"]
    ]
    assert errors == []
    assert len(every) > 64
