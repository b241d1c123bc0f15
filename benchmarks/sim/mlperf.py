"""Logs of MLPerf Training: configurations without results, to be predicted first, and step times.

`python -m benchmarks.sim.mlperf configurations FOLDER` and `... results FOLDER` write a table of
the logs below a folder (`result_*.txt`) to standard output. The first reads no line from the start
of a run on, so that nobody who predicts sees how long one took; the second gives the median seconds
of a step over the blocks between evaluations, but for the first, in which kernels are chosen and
caches are filled.

Logs say the batch and how often gradients are accumulated; the groups and the precision of a run
are in the submission's scripts.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

MARK = ":::MLLOG "
SYSTEM = ":::SYSJSON "
RUN_START, BLOCK_START, BLOCK_STOP = "run_start", "block_start", "block_stop"
SEQUENCE = "max_sequence_length"
MILLI = 1e-3

LOGS = "result_*.txt"


@dataclass(frozen=True)
class Configuration:
    """The facts of a log that were known before its run: whose it is, of what, and its batch."""

    organisation: str
    platform: str
    benchmark: str
    batch: int
    accumulation: int | None
    accelerator: str | None
    devices: int | None


@dataclass(frozen=True)
class Block:
    """Training between two evaluations: its seconds, and how many samples were trained on."""

    seconds: float
    samples: float


Event = dict[str, Any]


def events(lines: Iterable[str]) -> Iterator[Event]:
    """The events of a log, which other output may surround."""
    decode = json.JSONDecoder().raw_decode  # of lines that several ranks wrote at once, the first
    for line in lines:
        _, mark, text = line.partition(MARK)
        if mark:
            yield decode(text)[0]


def before_run(lines: Iterable[str]) -> Iterator[Event]:
    """The events before a run starts; nothing after that is read."""
    for event in events(lines):
        if event["key"] == RUN_START:
            return
        yield event


def configuration(lines: Sequence[str]) -> Configuration:
    """The configuration of a log; raises `KeyError` for one that does not say it."""
    accelerator, devices = _system(lines)
    said = {event["key"]: event["value"] for event in before_run(lines)}
    return Configuration(
        said["submission_org"],
        said["submission_platform"],
        said["submission_benchmark"],
        said["global_batch_size"],
        said.get("gradient_accumulation_steps"),
        accelerator,
        devices,
    )


def _system(lines: Iterable[str]) -> tuple[str | None, int | None]:
    """The accelerator of a log's system, and how many there are; None where it does not say."""
    for line in lines:
        _, mark, text = line.partition(SYSTEM)
        if mark:
            said = json.loads(text)
            nodes, each = (int(said[key]) for key in ("number_of_nodes", "accelerators_per_node"))
            return said["accelerator_model_name"], nodes * each
    return None, None


def blocks(lines: Iterable[str]) -> Iterator[Block]:
    """The blocks of a log."""
    start: Event | None = None
    length = 1
    for event in events(lines):
        if event["key"] == SEQUENCE:
            length = event["value"]
        elif event["key"] == BLOCK_START:
            start = event
        elif event["key"] == BLOCK_STOP and start is not None:
            seconds = MILLI * (event["time_ms"] - start["time_ms"])
            yield Block(seconds, _samples(start["metadata"], event["metadata"], length))
            start = None


def _samples(start: Event, stop: Event, length: int) -> float:
    """The samples of a block; GPT-3's are counted in tokens, as shares of an epoch."""
    if "samples_count" in start:
        return float(stop["samples_count"] - start["samples_count"])
    return float(stop["epoch_count"] / length)


def step_seconds(lines: Sequence[str]) -> float:
    """The median seconds of a step, over all blocks but the first where there are several."""
    batch = configuration(lines).batch
    found = [each.seconds * batch / each.samples for each in blocks(lines) if each.samples > 0]
    return median(found[1:] or found)


def logs(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """The logs below a folder, by path, sorted."""
    for path in sorted(folder.rglob(LOGS)):
        yield path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8").splitlines()


def configurations(folder: Path) -> Iterator[dict[str, Any]]:
    for name, lines in logs(folder):
        yield {"log": name, **asdict(configuration(lines))}


def results(folder: Path) -> Iterator[dict[str, Any]]:
    for name, lines in logs(folder):
        yield {"log": name, "step_seconds": f"{step_seconds(lines):.6g}"}


TABLES = {"configurations": configurations, "results": results}


def main(words: Sequence[str]) -> None:
    if len(words) != 2 or words[0] not in TABLES:
        raise SystemExit(f"usage: python -m benchmarks.sim.mlperf {'|'.join(TABLES)} FOLDER")
    rows = list(TABLES[words[0]](Path(words[1])))
    if not rows:
        raise SystemExit(f"mlperf: {words[1]} has no logs ({LOGS})")
    writer = csv.DictWriter(sys.stdout, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
