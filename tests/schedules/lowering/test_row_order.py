"""Rows of operations may be declared in any order, but for passes: all have their codes from there.

In processes of their own: codes are given as the module of operations is imported.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from hashlib import sha256
from importlib.machinery import SourceFileLoader
from pathlib import Path

ROWS, REGISTRY = "bfpp.schedules.operations.built_in", "bfpp.schedules.operations.operations"
ROW = '"SHIFTED": Row("shifted", Scope.CELL, EXPERTS),\\n    '
BUILT_IN = "for _operation in BUILT_IN:"

def get_code(self, name, get_code=SourceFileLoader.get_code):
    if name not in (ROWS, REGISTRY) or not sys.argv[1]:
        return get_code(self, name)
    # Other layers' tables need not know it: no graph has it.
    less = 'BUILT_IN = tuple(each for each in BUILT_IN if each.name != "SHIFTED")\\n'
    place, added = (f'"{sys.argv[1]}": Row(', ROW) if name == ROWS else (BUILT_IN, less)
    source = Path(self.path).read_text()
    assert source.count(place) == 1
    return compile(source.replace(place, added + place), self.path, "exec")

SourceFileLoader.get_code = get_code

from bfpp.schedules.operations.operations import OPERATIONS
from bfpp.sim.experiment.experiment import Experiment

def described(graph):
    words = [OPERATIONS[code].name for code in graph.operation.tolist()]
    lanes = [(lane.rank, lane.stream.name, lane.peer) for lane in graph.lanes]
    columns = graph.unit, graph.microbatch, graph.lane, graph.peer_lane, *graph.dependencies
    return sha256(repr([words, lanes, [each.tolist() for each in columns]]).encode()).hexdigest()

for values in (
    {"schedule": "breadth-first", "loops": 2, "sharding": "full", "clipping": True, "prefetch": 1},
    {"schedule": "1f1b", "sharding": "partial", "tied_embeddings": True, "offload": 1},
    {"schedule": "1f1b", "sharding": "full", "dp": 4, "dp_replicate": 2, "pp_overlap": False},
    {"schedule": "zb-h1", "sharding": "none", "p2p": "fifo"},
):
    known = Experiment(**values, pp=4, microbatches=8).configuration
    print(described(known.graph()))
"""


def ran(before: str) -> subprocess.CompletedProcess[str]:
    """The program's output where a row stands before that of this name."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, before], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def as_declared() -> str:
    plain = ran("")
    assert plain.returncode == 0, plain.stderr
    assert len(plain.stdout.split()) == 4
    return plain.stdout


@pytest.mark.parametrize("before", ["TRANSFER_GRADIENTS", "NORM", "RELOAD"])
def test_graphs_are_the_same_whatever_the_codes(as_declared: str, before: str) -> None:
    shifted = ran(before)
    assert shifted.returncode == 0, shifted.stderr
    assert shifted.stdout == as_declared


def test_passes_come_first() -> None:
    refused = ran("BACKWARD_INPUT")
    assert refused.returncode == 1
    assert "orders hold codes: the first operations must be FORWARD, BACKWARD" in refused.stderr
