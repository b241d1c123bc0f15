"""The `bfpp` command: parses, dispatches, and turns errors into one line.

Each command is a module of `bfpp.commands` with `SUMMARY`, `add_arguments` and
`run`; it is imported only when asked for, so that every command starts fast.
Exit codes: 0 done, 1 a check failed, 2 bad input.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import NoReturn

from bfpp import __version__, errors

COMMANDS = {
    "simulate": "predict one schedule: step time, bubble, memory, timeline",
    "compare": "several schedules side by side: one table, one figure",
    "show": "a saved timeline, simulated or measured: tables and pictures",
    "diff": "two saved timelines of one step: what a prediction gets wrong, and where",
    "explain": "why a step takes as long as it does, and what it depends on",
    "calibrate": "measure on this machine what the simulator needs",
    "run": "train with a schedule, for real",
    "search": "the best ways to train a model on so many GPUs",
    "tradeoff": "training time against cost, over sizes of the cluster",
    "validate": "measured configurations beside what is predicted for them",
    "fit": "fit the constants of clusters and implementations to measurements",
    "orders": "print each rank's compute order",
    "check": "check orders or a task graph from a file",
    "paper": "the paper's figures and tables, beside ours",
    "models": "the models known by name, or one as a file",
    "clusters": "the clusters known by name, or one as a file",
}
"""Every command and what it is for, in the order of the help text."""

BAD_INPUT = 2


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Name the option and the reason on standard error, and exit with 2."""
        self.exit(BAD_INPUT, f"{self.prog}: {errors.one_line(message)}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    words = _spelled_out(list(sys.argv[1:] if arguments is None else arguments))
    parser = _parser(words)
    if not words:
        parser.print_help(sys.stderr)
        return BAD_INPUT
    options, surplus = parser.parse_known_args(words)
    if surplus:
        options.parser.error(f"unrecognized arguments: {shlex.join(surplus)}")
    try:
        exit_code: int = options.run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print(f"{parser.prog} {options.command}: interrupted", file=sys.stderr)  # noqa: T201
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except errors.BAD_INPUT as error:
        print(f"{parser.prog} {options.command}: {errors.explain(error)}", file=sys.stderr)  # noqa: T201
        return BAD_INPUT
    return exit_code


def _spelled_out(words: list[str]) -> list[str]:
    """The words, but that `--resume` takes no schedule's name behind it for a step."""
    pairs = zip(words, [*words[1:], ""], strict=False)
    return [
        "--resume=last" if word == "--resume" and not after.isdecimal() else word
        for word, after in pairs
    ]


def _parser(words: list[str]) -> Parser:
    """The parser, with the options of the command in `words` alone."""
    parser = Parser(
        prog="bfpp",
        description="See, predict and check the schedules of pipeline-parallel training.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"bfpp {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = next((word for word in words if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(
            name, help=summary, description=f"bfpp {name}: {summary}.", allow_abbrev=False
        )
        if name == chosen:
            module = import_module(f"bfpp.commands.{name}")
            module.add_arguments(command)
            command.set_defaults(run=module.run, parser=command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
