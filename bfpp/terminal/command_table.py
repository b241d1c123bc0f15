"""The table of commands: `bfpp NAME` is module `bfpp.commands.NAME`, imported when asked for."""

from __future__ import annotations

from collections.abc import Container
from importlib import import_module
from keyword import iskeyword

from bfpp import __version__
from bfpp.terminal.parser import Parser

COMMANDS = {
    "simulate": "predict one schedule: step time, bubble, memory, timeline",
    "compare": "compare schedules side by side: one table, one figure",
    "explore": "try schedules, sizes and costs in the browser",
    "show": "show a saved timeline, simulated or measured: tables and pictures",
    "diff": "compare two saved timelines of one step, prediction and measurement, task by task",
    "import": "import a timeline from traces of torch.profiler or Nsight Systems, or of --perfetto",
    "explain": "explain a step time: idle time by cause, critical path, sensitivities",
    "calibrate": "measure the passes of a model's layers on this machine, as a profile",
    "measure": "measure this machine's kernels, host and links, as a cluster file",
    "run": "train a model with the schedule",
    "export": "export a checkpoint of bfpp run as Hugging Face safetensors",
    "search": "search for the best ways to train a model on N GPUs",
    "schedule": "search for an order of passes within a memory limit, with a lower bound",
    "tradeoff": "plot training time against cost, over sizes of the cluster",
    "validate": "compare measured configurations with their predictions",
    "fit": "fit the constants of clusters and implementations to measurements",
    "experiment": "write options as an experiment file, for Megatron-LM or torchtitan",
    "orders": "print each rank's compute order, or write it for PyTorch",
    "check": "check a schedule, or orders or a task graph from a file",
    "paper": "reproduce the figures and tables of the paper",
    "models": "list the model presets, or print one as a file",
    "clusters": "list the cluster presets, or print one as a file",
    "completion": "print the completion script for bash, zsh or fish",
}
"""Every command and what it is for, in the order of the help text."""


def all_commands() -> tuple[Parser, list[Parser]]:
    """The parser, and those of all commands with their options."""
    return with_options_of({*COMMANDS})


def with_options_of(chosen: Container[str | None]) -> tuple[Parser, list[Parser]]:
    """The parser, and those of the chosen commands; all others are imported only when asked for."""
    parser = Parser(
        prog="bfpp",
        description="See, predict and check the schedules of pipeline-parallel training.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"bfpp {__version__}")
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
