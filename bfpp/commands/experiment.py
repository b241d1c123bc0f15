"""`bfpp experiment`: write the experiment that options mean, to change and to share."""

from __future__ import annotations

import argparse
import sys

from bfpp.launchers.frameworks import FRAMEWORKS, framework_config
from bfpp.launchers.releases import add_release_argument
from bfpp.options import shared
from bfpp.options.experiment_file import comments_for_others, experiment_text
from bfpp.terminal.formats import EXPERIMENT
from bfpp.terminal.outputs import add_force_argument, add_output
from bfpp.terminal.parser import Parser
from bfpp.terminal.printing import print_json


def add_arguments(parser: Parser) -> None:
    """The options of `bfpp experiment`."""
    shared.add_schedule_argument(parser)
    shared.add_experiment_arguments(parser)
    parser.open_with(*shared.MOST_USED, "format", "out")
    parser.add_argument(
        "--format",
        choices=["bfpp", *FRAMEWORKS],
        default="bfpp",
        help="print an experiment file, a Megatron-LM command, or torchtitan settings, and what "
        "these cannot express (default: bfpp)",
    )
    add_release_argument(parser)
    add_output(parser, "--out", [EXPERIMENT], "write it to a file that can be given as SCHEDULE")
    add_force_argument(parser)
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Check that it can be simulated, and print or write it."""
    experiment = shared.experiment(options)
    _ = experiment.graph(), experiment.costs
    text = experiment_text(experiment)
    if experiment.physical:
        text += comments_for_others(experiment)
    config = None
    if options.format != "bfpp":
        config = framework_config(experiment, options.format, options.release)
    if options.json:
        print_json(experiment.record | ({options.format: config._asdict()} if config else {}))
    else:
        sys.stdout.write(str(config) if config else text)
    if options.out:
        with options.out.written() as path:
            path.write_text(text, encoding="utf-8")
    return 0
