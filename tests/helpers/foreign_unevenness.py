"""Readers of what says that a step is uneven, in files and words, and what a step makes of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import bfpp
from bfpp.api.recorded.timers import load_timers
from bfpp.sim.experiment.uneven import replicated_step, steps_of
from bfpp.sim.unevenness.counted_numbers import counted
from bfpp.sim.unevenness.documents import packed
from bfpp.sim.unevenness.factors_file import read_factors
from bfpp.sim.unevenness.routing_file import routing_loads
from bfpp.sim.unevenness.work import ExpertRouting
from tests.helpers.foreign_bytes import COLUMNS, TEXT, of_file, of_word, texts
from tests.helpers.fuzzing import Reader

STEP = bfpp.Experiment("1f1b", pp=2, dp=2, microbatches=2, reduce=0.5, jitter=0.1)
REPLICATED = replicated_step(STEP, STEP.graph(), STEP.costs)


def _parquet() -> list[bytes]:
    import pyarrow as arrow
    from pyarrow.parquet import write_table

    columns = {"length": [5, 7, 7], "tokens": [[1], [1, 2], [1, 2, 3]], "text": ["a", "b", ""]}
    write_table(arrow.table(columns), "whole.parquet")
    return [Path("whole.parquet").read_bytes()]


def _lengths(text: str) -> object:
    """Some documents of these lengths, packed."""
    lengths = counted("lengths", text)
    return packed(lengths, "best-fit", max(lengths.largest, 1), np.random.default_rng(0))


def _column(name: str) -> object:
    return [_lengths(f"{name}{column}") for column in ("", ":tokens", ":text")]


def _routing(text: str) -> object:
    return ExpertRouting(routing_loads(text)).effect(REPLICATED, np.random.default_rng(0))


@np.errstate(all="ignore")  # as predictions do, which refuse a step that is not finite
def _factors(name: str) -> object:
    return read_factors(name).effect(REPLICATED, np.random.default_rng(0))


@np.errstate(all="ignore")
def _uneven(text: str) -> object:
    """A step with one of these options."""
    name, _, value = text.partition(" ")
    known = "slow", "slow_links", "pauses"
    experiment = STEP.changed(**{name if name in known else known[0]: value}, sampled_steps=2)
    return steps_of(experiment, experiment.graph(), experiment.costs).seconds


LOG = (
    " iteration 7/ 50 | elapsed time per iteration (ms): 512.5 |\ntimes across ranks (ms):\n"
    "  forward-compute:\n     rank  0: 1.50\n     rank  1: 2.00\n"
    "(min, max) time across ranks (ms):\n    optimizer ....: (9.00, 10.00)\n"
    "time (ms) | forward-compute: 58.16 | optimizer: 1.0\n"
)


def _timers(name: str) -> object:
    return json.dumps(load_timers(Path(name), "LOG").record(), allow_nan=False)


READERS = {
    "timers of Megatron-LM": Reader(texts(LOG), of_file("run.log", _timers), TEXT),
    "lengths of documents": Reader(
        texts("length,count\n512-1024,10\n4096,3\n", "512\n4096\n", "id,length\n1,7\n"),
        of_file("lengths.csv", _lengths),
        TEXT,
    ),
    "--lengths": Reader(texts("512,4096", "512:10,4096-8192:3"), of_word(_lengths), TEXT),
    "columns of lengths": Reader(_parquet, of_file("lengths.parquet", _column), COLUMNS),
    "loads of experts": Reader(
        texts("layer,expert,count,observation\n0,0,5,1\n0,1,7,1\n1,0,2,2\n"),
        of_file("loads.csv", _routing),
        TEXT,
    ),
    "--routing": Reader(texts("90,10,50,50"), of_word(_routing), TEXT),
    "tables of factors": Reader(
        texts(
            "replica,rank,microbatch,operation,factor\n1,1,,forward,1.5\n,0,1,,2\n",
            "stage,unit,seconds\n1,1,0.5\n",
        ),
        of_file("factors.csv", _factors),
        TEXT,
    ),
    "places that are slow": Reader(
        texts("slow rank=1,replica=0:1.2", "slow_links link=0-1:2", "pauses gc:0.3/5@rank=0"),
        of_word(_uneven),
        TEXT,
    ),
}
"""By what is read; all others are in `tests.helpers.foreign_bytes`."""
