"""`bfpp calibrate`: measure on this machine what the simulator needs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from bfpp import options as shared
from bfpp.errors import blaming
from bfpp.jobs import (
    about,
    add_device_arguments,
    add_model_arguments,
    device_job_of,
    fail,
)
from bfpp.results import announce, print_json, print_table
from executor.settings import Ends
from schedules import Layout
from traces.time_axis import in_words

if TYPE_CHECKING:
    from executor.job import Job

UNITS = {
    "about": "where and how it was measured",
    "run": "what it holds for; of the model's layers, how many at its ends are attached",
    "layers": "in order, so many alike: seconds of a pass; parameters; bytes handed on",
    "passes": "seconds of a pass besides its layers",
    "channels": "from rank to rank: seconds, and bytes per second",
    "data": "seconds, and seconds for each parameter",
    "dispatch": "seconds from one task to the next on its lane, or on one that has to be woken",
}
"""What stands in each part of a profile."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp calibrate`."""
    parser.add_argument(
        "--pp",
        type=shared.whole_number,
        default=2,
        metavar="N",
        help="ranks that compute and transfer at the same time; as many as will run (default: 2)",
    )
    add_model_arguments(parser)
    add_device_arguments(parser)
    parser.add_argument(
        "--quick", action="store_true", help="fewer sizes and repetitions, less exact"
    )
    parser.add_argument(
        "--out", required=True, type=Path, metavar="FILE", help="write the profile, in TOML"
    )
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, and write."""
    job = device_job_of(options, "breadth-first", Layout(options.pp, 1))
    job.require_devices()
    from executor.calibration import QUICK, Effort, calibrate
    from executor.processes import RunFailed, launch

    job.plan().check()
    with _progress(options) as advance:
        try:
            work = (job, QUICK if options.quick else Effort())
            measured = launch(calibrate, work, job.processes, on_message=advance)
        except RunFailed as error:
            return fail("calibrate", error)
    if measured is None:  # a process of torchrun's that is not the first
        return 0
    record = profile_of(job, measured)
    with blaming("--out"):
        options.out.write_text(as_toml(record), encoding="utf-8")
    announce(options.out)
    if options.json:
        print_json(record)
    else:
        _print(record)
    return 0


@contextmanager
def _progress(options: argparse.Namespace) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    console = Console(stderr=True)
    if options.json or not console.is_terminal:
        yield lambda _: None
        return
    with console.status("starting") as status:
        yield lambda message: status.update(f"measuring {message['what']}")


def profile_of(job: Job, measured: Mapping[str, Any]) -> dict[str, Any]:
    """All that a profile's file holds: what was measured, and what it holds for."""
    before, after = job.plan().model.attached
    run = {
        "replicas": job.data_parallel,
        "microbatch_size": job.microbatch_size,
        "before": before,
        "after": after,
        "own_ends": int(job.ends is Ends.OWN),
    }
    return {"about": about(job), "run": run, **measured}


def as_toml(record: Mapping[str, Any]) -> str:
    """A profile as a file, which says what its numbers are."""
    lines = ["# A machine's costs, measured by bfpp calibrate."]
    for part, content in record.items():
        lines += ["", f"# {UNITS[part]}"]
        if isinstance(content, list):
            lines += [f"{part} = [", *(f"    {inline(each)}," for each in content), "]"]
        else:
            lines.append(f"{part} = {inline(content)}")
    return "\n".join(lines) + "\n"


def inline(value: object) -> str:
    """A value on one line of TOML."""
    if isinstance(value, list):
        return f"[{', '.join(map(inline, value))}]"
    if isinstance(value, dict):
        pairs = ", ".join(f"{key} = {inline(each)}" for key, each in value.items())
        return f"{{ {pairs} }}"
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value)


def _print(record: Mapping[str, Any]) -> None:
    rows: list[tuple[str, ...]] = [
        (
            f"{layer['count']} of",
            in_words(layer["forward"]),
            in_words(layer["backward"]),
            f"{layer['parameters']:,}",
            f"{layer['bytes']:,}",
        )
        for layer in record["layers"]
    ]
    passes = record["passes"]
    rows.append(("besides", in_words(passes["forward"]), in_words(passes["backward"]), "", ""))
    print_table("Layers", ("", "forward", "backward", "parameters", "bytes on"), rows)
    rows = [
        (
            f"{channel['sender']} to {channel['receiver']}",
            in_words(channel["latency"]),
            f"{channel['bandwidth'] / 1e9:.3g} GB/s",
        )
        for channel in record["channels"]
    ]
    if rows:
        print_table("Transfers", ("ranks", "latency", "bandwidth"), rows)
    rows = [
        (name, in_words(line["fixed"]), in_words(1e6 * line["per_parameter"]))
        for name, line in record["data"].items()
    ]
    print_table("By parameters", ("", "besides", "a million"), rows)
    rows = [
        ("the next task of a lane", in_words(record["dispatch"]["next"])),
        ("a lane that has to be woken", in_words(record["dispatch"]["wake"])),
    ]
    print_table("Dispatch", ("", ""), rows)
