"""`bfpp simulate`: predict one schedule."""

from __future__ import annotations

import argparse
from pathlib import Path

from bfpp import options as shared
from bfpp.errors import blaming
from bfpp.pictures import add_picture_arguments, write_pictures
from bfpp.results import (
    RANKS_SHOWN,
    Result,
    announce,
    print_json,
    print_shortages,
    print_table,
    run_scenario,
)
from schedules.graph_file import write_graph
from traces.time_axis import in_words

RANK_COLUMNS = (
    "rank", "compute", "start", "end", "busy", "exposed transfer", "exposed data",
    "peak micro-batches",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp simulate`."""
    shared.add_schedule_argument(parser)
    shared.add_layout_arguments(parser)
    shared.add_communication_arguments(parser)
    shared.add_cost_arguments(parser)
    add_picture_arguments(parser)
    parser.add_argument(
        "--perfetto",
        type=Path,
        metavar="FILE",
        help="write a Chrome trace for ui.perfetto.dev (compressed if FILE ends in .gz)",
    )
    parser.add_argument(
        "--graph", type=Path, metavar="FILE", help="write the task graph in JSON, for bfpp check"
    )
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Simulate, and report."""
    shared.refuse_text_beside_json(options)
    result = run_scenario(shared.scenario(options, options.schedule), options.engine)
    write_pictures(options, [result], result.title)
    if options.perfetto:
        from traces.perfetto import write_perfetto

        with blaming("--perfetto"):
            write_perfetto(result.timeline, options.perfetto)
        announce(options.perfetto)
    if options.graph:
        with blaming("--graph"):
            options.graph.write_text(write_graph(result.timeline.graph), encoding="ascii")
        announce(options.graph)
    if options.json:
        print_json(result.record)
    else:
        _print(result)
    return 0


def _print(result: Result) -> None:
    print_table(result.title, ("", ""), result.highlights())
    print_shortages([result])
    rows = [
        (
            str(rank.rank),
            in_words(rank.compute_time),
            in_words(rank.start),
            in_words(rank.end),
            f"{rank.utilisation:.1%}",
            result.in_words(rank.exposed_transfer),
            result.in_words(rank.exposed_data),
            f"{rank.peak_microbatches:.4g}",
        )
        for rank in result.ranks[:RANKS_SHOWN]
    ]
    left_out = len(result.ranks) - len(rows)
    title = "Ranks" + (f" (the first {len(rows)}; --json has all)" if left_out else "")
    print_table(title, RANK_COLUMNS, rows)
