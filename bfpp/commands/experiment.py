"""`bfpp experiment`: write the experiment that options mean, to change and to share."""

from __future__ import annotations

import argparse
import sys

from bfpp import options as shared
from bfpp.experiment_file import comments_for_others, experiment_text
from bfpp.formats import EXPERIMENT
from bfpp.outputs import add_force_argument, add_output
from bfpp.results import print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp experiment`."""
    shared.add_schedule_argument(parser)
    shared.add_experiment_arguments(parser)
    add_output(parser, "--out", [EXPERIMENT], "write it to a file, which takes SCHEDULE's place")
    add_force_argument(parser)
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Check that it can be simulated, and print or write it."""
    experiment = shared.experiment(options)
    _ = experiment.graph(), experiment.costs
    text = experiment_text(experiment)
    if experiment.physical:
        text += comments_for_others(experiment)
    if options.json:
        print_json(experiment.record)
    else:
        sys.stdout.write(text)
    if options.out:
        with options.out.written() as path:
            path.write_text(text, encoding="utf-8")
    return 0
