"""`bfpp import`: a timeline from traces that others wrote."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bfpp.api.recorded.stragglers import load_job
from bfpp.api.saved import SavedTimeline, is_job_file
from bfpp.options import shared
from bfpp.reports.tables import print_result
from bfpp.schedules import InvalidConfiguration, InvalidInput
from bfpp.schedules.formats.torch_csv import read_orders
from bfpp.schedules.orders.steps import Order
from bfpp.schedules.reading import read_file
from bfpp.terminal import formats
from bfpp.terminal.error_lines import blaming, one_line
from bfpp.terminal.outputs import add_force_argument, add_output
from bfpp.terminal.printing import print_json, print_table
from bfpp.traces.formats.chakra import is_chakra, read_chakra
from bfpp.traces.formats.operations_json import save_operations
from bfpp.traces.formats.perfetto_reading import is_ours, read_perfetto
from bfpp.traces.formats.text_files import parsed_trace
from bfpp.traces.formats.timeline_json import save_timeline
from bfpp.traces.profiles.import_profile import import_profiles
from bfpp.traces.profiles.kineto import read_kineto
from bfpp.traces.profiles.nsight import is_nsight, read_nsight
from bfpp.traces.profiles.profile import Profile
from bfpp.traces.stragglers.one_pipeline import pipeline_timeline
from bfpp.traces.timeline.operation_table import OperationTable
from bfpp.traces.timeline.timeline import Timeline


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp import`."""
    parser.add_argument(
        "traces",
        type=Path,
        nargs="+",
        metavar="TRACE",
        help="traces from torch.profiler, one file per rank in pipeline order (or as their "
        "distributedInfo says); from nsys export --type sqlite, of one or several ranks; one file "
        "from --perfetto, compressed or not; those from --chakra; or FILE.parquet, the operations "
        "of a job of many steps and replicas",
    )
    parser.add_argument(
        "--orders",
        type=Path,
        metavar="FILE",
        help="compute orders in the format of bfpp orders: the n-th pass of a rank is the n-th of "
        "its order (default: read the names in the traces)",
    )
    parser.add_argument(
        "--step",
        type=int,
        metavar="N",
        help="step to import, as the profiler counts them (default: the last; of a job, all)",
    )
    parser.add_argument(
        "--replica",
        type=int,
        metavar="N",
        help="of a job, the replica whose step to import (default: all; with --step, the first)",
    )
    add_output(
        parser,
        "--out",
        [formats.TIMELINE, formats.OPERATIONS],
        "write the timeline, for bfpp show and bfpp diff, or all of a job, for bfpp explain "
        "(compressed if FILE ends in .gz)",
        required=True,
    )
    add_force_argument(parser)
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Import, say what was assumed and what is missing, and write."""
    job = _job(options)
    if job and options.step is None and options.replica is None:
        return _whole_job(options, job)
    result = SavedTimeline(
        pipeline_timeline(job, options.step, options.replica) if job else _timeline(options)
    )
    if options.json:
        print_json(result.record)
    else:
        print_table("Where it is from", ("", ""), result.origins)
        print_result(result)
    with options.out.written() as path:
        save_timeline(result.timeline, path)
    return 0


def _job(options: argparse.Namespace) -> OperationTable | None:
    """The operations of a job, if the trace is a table of them."""
    tables = [path for path in options.traces if is_job_file(path)]
    if not tables:
        if options.replica is not None:
            raise InvalidConfiguration("replica", "is of a job's operations (FILE.parquet)")
        return None
    if len(options.traces) > 1:
        raise InvalidInput(f"TRACE: {tables[0]}: a table has all workers of a job: give it alone")
    if options.orders:
        raise InvalidConfiguration("orders", "a job's operations have their orders")
    return load_job(tables[0], "TRACE")


def _whole_job(options: argparse.Namespace, job: OperationTable) -> int:
    """Report and write all steps and replicas."""
    record: dict[str, Any] = {
        "steps": list(job.steps),
        "replicas": list(job.replicas),
        "stages": list(job.ranks),
        "operations": {kind: int((job.kind == code).sum()) for code, kind in enumerate(job.kinds)},
        "left_out": dict(job.left_out),
    }
    if options.json:
        print_json(record)
    else:
        sizes = ((name, str(len(record[name]))) for name in ("steps", "replicas", "stages"))
        left_out = ((f"left out {why}", f"{count:,}") for why, count in job.left_out.items())
        print_table("Job", ("", ""), [*sizes, *left_out])
        counts = record["operations"].items()
        rows = [(one_line(kind), f"{count:,}") for kind, count in counts]
        print_table("Operations", ("operation", "number"), rows)
    with options.out.written() as path:
        save_operations(job, path)
    return 0


def _timeline(options: argparse.Namespace) -> Timeline:
    traces = [each for path in options.traces if not is_chakra(path) for each in _read(path)]
    if files := [path for path in options.traces if is_chakra(path)]:
        with blaming(f"TRACE: {files[0]}"):
            traces.append(read_chakra([read_file(path) for path in files]))
    ours = [each for each in traces if isinstance(each, Timeline)]
    if not ours:
        seen = [each for each in traces if isinstance(each, Profile)]
        return import_profiles(seen, _orders(options.orders), options.step)
    if len(traces) > 1 or options.orders or options.step is not None:
        raise InvalidInput(
            "TRACE: a trace from --perfetto or --chakra already has all ranks, their orders and "
            "one step"
        )
    return ours[0]


def _read(path: Path) -> Sequence[Profile | Timeline]:
    """Content of a file: one process or several, or a timeline of ours."""
    with blaming(f"TRACE: {path}"):
        if is_nsight(path):
            return read_nsight(path)
        trace = parsed_trace(read_file(path))
        return [read_perfetto(trace) if is_ours(trace) else read_kineto(trace)]


def _orders(path: Path | None) -> list[Order] | None:
    if path is None:
        return None
    with blaming("--orders"):
        return read_orders(read_file(path))
