"""Logs of MLPerf Training: what was known before a run, and how long its steps took.

The first reads no line from the start of the run on, so that nobody who predicts sees its times.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

MARK = ":::MLLOG "
SYSTEM = ":::SYSJSON "
RUN_START, BLOCK_START, BLOCK_STOP = "run_start", "block_start", "block_stop"
STATISTICS, STEP_TIME = "tracked_stats", "train_step_time"
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
    return _marked(MARK, lines)


def _marked(sign: str, lines: Iterable[str]) -> Iterator[Event]:
    """What follows a mark; of lines that several ranks wrote at once, the first."""
    decode = json.JSONDecoder().raw_decode
    for line in lines:
        _, mark, text = line.partition(sign)
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
    for said in _marked(SYSTEM, lines):
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
    """The median seconds of a step: as logged, else over all blocks but the first of several."""
    if logged := [*_logged(lines)]:
        return median(logged)
    batch = configuration(lines).batch
    found = [each.seconds * batch / each.samples for each in blocks(lines) if each.samples > 0]
    return median(found[1:] or found)


def _logged(lines: Iterable[str]) -> Iterator[float]:
    """Seconds of steps that a log gives, as NeMo's do."""
    for event in events(lines):
        if event["key"] == STATISTICS and STEP_TIME in event["value"]:
            yield event["value"][STEP_TIME]
