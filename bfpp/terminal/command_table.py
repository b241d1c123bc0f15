"""The table of commands: `bfpp NAME` is module `bfpp.commands.NAME`, imported when asked for."""

from __future__ import annotations

from collections.abc import Container
from functools import partial
from importlib import import_module
from keyword import iskeyword

from bfpp import __version__
from bfpp.terminal.help import HelpFormatter
from bfpp.terminal.parser import Parser

BY_SUBJECT = {
    "predict": {
        "simulate": "predict one schedule: step time, bubble, memory, timeline",
        "search": "search for the best ways to train a model on N GPUs",
        "compare": "compare schedules side by side: one table, one figure",
        "explain": "explain a step time, or traces: idle time by cause, critical path",
        "explore": "try models, schedules and costs in the browser",
        "tradeoff": "plot training time against cost, over sizes of the cluster",
    },
    "launch and train": {
        "experiment": "write options as an experiment file, for Megatron-LM or torchtitan",
        "run": "train a model with the schedule",
        "export": "export a checkpoint of bfpp run as Hugging Face safetensors",
    },
    "orders of passes": {
        "orders": "print each rank's compute order, or write it for PyTorch",
        "check": "check a schedule, or orders or a task graph from a file",
        "schedule": "search for an order within a memory limit, with a lower bound",
    },
    "timelines and traces": {
        "show": "show a saved timeline, simulated or measured: tables and pictures",
        "diff": "compare two timelines of one step, predicted and measured",
        "import": "import a timeline from traces of torch.profiler or Nsight Systems",
    },
    "measurements": {
        "calibrate": "measure the passes of a model's layers on this machine, as a profile",
        "measure": "measure this machine's kernels, host and links, as a cluster file",
        "study": "predict and run a grid of experiments, and compare",
        "validate": "compare measured configurations with their predictions",
        "fit": "fit the constants of clusters and implementations to measurements",
    },
    "presets, and more": {
        "models": "list the model presets, or print one as a file",
        "clusters": "list the cluster presets, or print one as a file",
        "paper": "reproduce the figures and tables of the paper",
        "completion": "print the completion script for bash, zsh or fish",
    },
}
"""Every command and what it is for, by subject, in the order of the help text."""

COMMANDS = {name: summary for group in BY_SUBJECT.values() for name, summary in group.items()}
"""Every command and what it is for."""


WIDEST = max(map(len, COMMANDS)) + 4
"""Columns of help that the names of commands take."""


def all_commands() -> tuple[Parser, list[Parser]]:
    """The parser, and those of all commands with their options."""
    return with_options_of({*COMMANDS})


def with_options_of(chosen: Container[str | None]) -> tuple[Parser, list[Parser]]:
    """The parser, and those of the chosen commands; all others are imported only when asked for."""
    parser = Parser(
        prog="bfpp",
        description="Predict how long a training step of a large model takes on many GPUs, and "
        "find a faster way to split and schedule it.",
        allow_abbrev=False,
        formatter_class=partial(HelpFormatter, max_help_position=WIDEST),
    )
    parser.add_argument("--version", action="version", version=f"bfpp {__version__}")
    for title, group in BY_SUBJECT.items():
        parser.list_in_help(title, group)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    parsers = []
    for name, summary in COMMANDS.items():
        command = commands.add_parser(
            name, help=summary, description=f"bfpp {name}: {summary}.", allow_abbrev=False
        )
        if name in chosen:
            module = import_module(module_of(name))
            module.add_arguments(command)
            command.set_defaults(run=module.run, parser=command)
            parsers.append(command)
    return parser, parsers


def module_of(command: str) -> str:
    """The module of a command, whose name Python may not allow."""
    return f"bfpp.commands.{command}{'_' * iskeyword(command)}"
