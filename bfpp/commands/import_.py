"""`bfpp import`: a timeline from traces that others wrote."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from bfpp import formats
from bfpp import options as shared
from bfpp.errors import blaming
from bfpp.outputs import add_force_argument, add_output
from bfpp.results import print_json, print_table
from bfpp.saved import SavedTimeline
from bfpp.schedules import InvalidInput
from bfpp.schedules.reading import read_file
from bfpp.schedules.steps import Order
from bfpp.schedules.torch_format import read_orders
from bfpp.tables import print_result
from bfpp.traces.chakra import is_chakra, read_chakra
from bfpp.traces.imported import imported
from bfpp.traces.kineto import recorded
from bfpp.traces.nsight import is_nsight, recorded_processes
from bfpp.traces.perfetto_reading import is_ours, read_perfetto
from bfpp.traces.recorded import Recorded
from bfpp.traces.text_files import parsed
from bfpp.traces.timeline import Timeline
from bfpp.traces.timeline_file import save_timeline


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp import`."""
    parser.add_argument(
        "traces",
        type=Path,
        nargs="+",
        metavar="TRACE",
        help="traces from torch.profiler, one file per rank in pipeline order (or as their "
        "distributedInfo says); from nsys export --type sqlite, of one or several ranks; one file "
        "from --perfetto, compressed or not; or those from --chakra",
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
        help="step to import, as the profiler counts them (default: the last)",
    )
    add_output(
        parser,
        "--out",
        [formats.TIMELINE],
        "write the timeline, for bfpp show and bfpp diff (compressed if FILE ends in .gz)",
        required=True,
    )
    add_force_argument(parser)
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Import, say what was assumed and what is missing, and write."""
    result = SavedTimeline(_timeline(options))
    if options.json:
        print_json(result.record)
    else:
        print_table("Where it is from", ("", ""), result.origins)
        print_result(result)
    with options.out.written() as path:
        save_timeline(result.timeline, path)
    return 0


def _timeline(options: argparse.Namespace) -> Timeline:
    traces = [each for path in options.traces if not is_chakra(path) for each in _read(path)]
    if files := [path for path in options.traces if is_chakra(path)]:
        with blaming(f"TRACE: {files[0]}"):
            traces.append(read_chakra([read_file(path) for path in files]))
    ours = [each for each in traces if isinstance(each, Timeline)]
    if not ours:
        seen = [each for each in traces if isinstance(each, Recorded)]
        return imported(seen, _orders(options.orders), options.step)
    if len(traces) > 1 or options.orders or options.step is not None:
        raise InvalidInput(
            "TRACE: a trace from --perfetto or --chakra already has all ranks, their orders and "
            "one step"
        )
    return ours[0]


def _read(path: Path) -> Sequence[Recorded | Timeline]:
    """What a file holds: a process or several, or a timeline of ours."""
    with blaming(f"TRACE: {path}"):
        if is_nsight(path):
            return recorded_processes(path)
        trace = parsed(read_file(path))
        return [read_perfetto(trace) if is_ours(trace) else recorded(trace)]


def _orders(path: Path | None) -> list[Order] | None:
    if path is None:
        return None
    with blaming("--orders"):
        return read_orders(read_file(path))
