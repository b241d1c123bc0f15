"""`bfpp diff`: two saved timelines of one step, such as a prediction and its measurement."""

from __future__ import annotations

import argparse

from bfpp.api.saved import SavedTimeline, add_replica_argument, add_timeline_argument, load
from bfpp.options import shared
from bfpp.reports.differences import difference_in_words, difference_record, print_difference
from bfpp.reports.pictures import (
    add_picture_arguments,
    check_picture_arguments,
    print_text,
    write_pictures,
)
from bfpp.terminal.outputs import add_force_argument
from bfpp.terminal.printing import print_json
from bfpp.traces.explain.difference import difference
from bfpp.traces.timeline.timeline import Timeline, showing

FILES = ("simulated", "measured")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp diff`."""
    for name, purpose in zip(FILES, ("predicted timeline", "measured timeline"), strict=True):
        add_timeline_argument(parser, name, name.upper(), purpose)
    add_replica_argument(parser)
    add_picture_arguments(parser)
    add_force_argument(parser)
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Lay the two over one another; both may be simulated or measured, in either order."""
    check_picture_arguments(options)
    timelines = [load(getattr(options, name), name.upper()) for name in FILES]
    compared = difference(*_by_one_replica(timelines, options.replica))
    step = SavedTimeline(compared.simulated).title
    results = [
        SavedTimeline(timeline, name[0].upper() + name[1:])
        for timeline, name in zip(
            (compared.simulated, compared.measured), compared.names, strict=True
        )
    ]
    if options.json:
        print_json(difference_record(compared))
    else:
        print_text(options, results)
        print_difference(compared, step)
    title = f"{step}: {' and '.join(compared.names)}"
    write_pictures(options, results, title, difference_in_words(compared))
    return 0


def _by_one_replica(timelines: list[Timeline], replica: int | None) -> list[Timeline]:
    """Both by the same replica, by default the first one's, where each has its replicas."""
    if replica is None and timelines[0].replicas and timelines[1].replicas:
        replica = timelines[0].replicas.shown
    return timelines if replica is None else [showing(each, replica) for each in timelines]
