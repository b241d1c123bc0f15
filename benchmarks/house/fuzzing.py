"""Readers of foreign bytes, given damaged ones: how many were read or refused, in what limits.

The inputs, the limits and what counts as a fault are those of `tests.helpers.fuzzing`. Each reader
has a process of its own, so that what one leaves behind counts for no other.
"""

from __future__ import annotations

import os
from multiprocessing import get_context

from benchmarks.helpers.measure import Results
from tests.helpers import foreign_bytes, foreign_checkpoints, foreign_unevenness
from tests.helpers.fuzzing import BYTES, SECONDS, Tally, fuzzed

READERS = foreign_bytes.READERS | foreign_checkpoints.READERS | foreign_unevenness.READERS
INPUTS = 10_000
VARIABLE = "BFPP_FUZZING_INPUTS"
"""The flag for another number of inputs."""


def tally_of(name: str) -> Tally:
    return fuzzed(READERS[name], int(os.environ.get(VARIABLE, INPUTS)))


def row(name: str, tally: Tally) -> dict[str, str]:
    return {
        "reader": name,
        "inputs": f"{tally.inputs:,}",
        "read": f"{tally.accepted:,}",
        "refused in a line": f"{tally.refused:,}",
        "faults": str(len(tally.faults)),
        "slowest, s": f"{tally.slowest:.2f}",
        "most memory, MiB": f"{tally.largest / 2**20:.1f}",
    }


def run() -> Results:
    with get_context("fork").Pool(os.cpu_count(), maxtasksperchild=1) as processes:
        found = processes.imap(tally_of, READERS, chunksize=1)
        tallies = dict(zip(READERS, found, strict=True))
    inputs = sum(each.inputs for each in tallies.values())
    faults = [
        f"{name}: {fault}, by {contents[:200]!r}"
        for name, each in tallies.items()
        for fault, contents in each.faults.items()
    ]
    return Results(
        "Fuzzing: what readers make of damaged files, options and requests",
        f"each input is read, or refused in one line, in {SECONDS:g} s of processor time and "
        f"{BYTES // 2**20} MiB at most",
        [row(name, each) for name, each in tallies.items()],
        [
            f"{inputs:,} inputs, drawn by Hypothesis. Not so: {'; '.join(faults) or 'none'}.",
            (
                "Whole inputs, most of them by our own writers, are damaged in their bits, bytes, "
                "lines, numbers, or values inside JSON, TOML, SQLite, Parquet and protocol buffers."
            ),
            f"{INPUTS:,} a reader are drawn unless {VARIABLE} says otherwise.",
            "Time is the processor's, memory the peak of the process beyond what it held before.",
        ],
    )
