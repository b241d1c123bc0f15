"""The `bfpp` command: parses, checks where results will go, dispatches, and reports errors.

Each command is a module of `bfpp.commands` with `SUMMARY`, `add_arguments` and
`run`; it is imported only when asked for, so that every command starts fast.

Exit codes:

- 0 done, 1 a check or a run failed, 130 interrupted.
- 2 something that was given cannot be used: an `InvalidInput`, more than this machine's
  memory holds, or a Python file that raises something, reported in one line.
- 70 (as sysexits.h has it) a fault of the program: any other exception, with its
  traceback and what a report of it needs.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import platform
import shlex
import sys
import traceback
from collections.abc import Container, Sequence
from importlib import import_module
from keyword import iskeyword

from bfpp import __version__, errors
from bfpp.__main__ import INTERRUPTED, collect_garbage
from bfpp.executor.shortage import shortage
from bfpp.outputs import prepared
from bfpp.parser import BAD_INPUT, Parser
from bfpp.schedules import InvalidInput
from bfpp.schedules.python_file import line_at_fault
from bfpp.standard_streams import enduring

COMMANDS = {
    "simulate": "predict one schedule: step time, bubble, memory, timeline",
    "compare": "several schedules side by side: one table, one figure",
    "explore": "try schedules, sizes and costs in the browser",
    "show": "a saved timeline, simulated or measured: tables and pictures",
    "diff": "two saved timelines of one step: what a prediction gets wrong, and where",
    "import": "a timeline from the traces of torch.profiler or Nsight Systems, or of --perfetto",
    "explain": "why a step takes as long as it does, and what it depends on",
    "calibrate": "measure how long a model's layers take on this machine, as a profile",
    "measure": "measure this machine's kernels, host and links, as a cluster file",
    "run": "train a model with the schedule",
    "export": "a checkpoint of bfpp run as Hugging Face's safetensors",
    "search": "the best ways to train a model on N GPUs",
    "schedule": "find an order of passes within a memory limit, with a bound on how good it is",
    "tradeoff": "training time against cost, over sizes of the cluster",
    "validate": "predict measured configurations, and compare",
    "fit": "fit the constants of clusters and implementations to measurements",
    "experiment": "write options as an experiment file, for Megatron-LM or torchtitan",
    "orders": "print each rank's compute order, or write it for PyTorch",
    "check": "check a schedule, or orders or a task graph from a file",
    "paper": "the paper's figures and tables, reproduced",
    "models": "list the model presets, or print one as a file",
    "clusters": "list the cluster presets, or print one as a file",
    "completion": "print the completion script for bash, zsh or fish",
}
"""Every command and what it is for, in the order of the help text."""

FAULT = 70


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    atexit.register(gc.freeze)  # a process that ends need not look for garbage among its modules
    words = _spelled_out(list(sys.argv[1:] if arguments is None else arguments))
    with enduring("stderr"):
        with enduring("stdout") as out:
            exit_code = _run(words)
        if out.failure is None or isinstance(out.failure, BrokenPipeError):
            return exit_code
        return _report("bfpp", f"standard output: {out.failure.strerror}")


def _run(words: list[str]) -> int:
    name = "bfpp"
    try:
        parser, command = _parsers(words)
        name = command.prog if command else name
        if not words:
            parser.print_help(sys.stderr)
            return BAD_INPUT
        options = _parse(parser, command, words)
        collect_garbage()
        with prepared(options):
            exit_code: int = options.run(options)
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)  # noqa: T201
        return INTERRUPTED
    except InvalidInput as error:
        return _report(name, errors.explain(error))
    except Exception as error:
        if short := shortage(error):
            return _report(name, short)
        if line := line_at_fault(error):
            return _report(name, errors.one_line(f"{line}: {type(error).__name__}: {error}"))
        traceback.print_exc()
        print(_request(error, words), file=sys.stderr)  # noqa: T201
        return FAULT
    return exit_code


def _spelled_out(words: list[str]) -> list[str]:
    """The words; a bare `--resume` is spelled out, or it would take the next word for its step."""
    pairs = zip(words, [*words[1:], ""], strict=False)
    return [
        "--resume=last" if word == "--resume" and not after.isdecimal() else word
        for word, after in pairs
    ]


def _report(name: str, reason: str) -> int:
    print(f"{name}: {reason}", file=sys.stderr)  # noqa: T201
    return BAD_INPUT


def _request(error: Exception, words: list[str]) -> str:
    """What to do about a fault, and what a report of it needs in addition to the traceback."""
    versions = f"bfpp {__version__}, Python {platform.python_version()}, {platform.platform()}"
    return (
        f"bfpp: {type(error).__name__} is a fault of the program, unless it is in code of your "
        f"own. Please report it with the lines above, and these:\n{versions}\n"
        + errors.one_line(shlex.join(["bfpp", *words]))
    )


def _parsers(words: list[str]) -> tuple[Parser, Parser | None]:
    """The parser, and that of the command in `words`: only this one gets its options."""
    chosen = next((word for word in words if not word.startswith("-")), None)
    parser, commands = _with_options_of({chosen})
    return parser, commands[0] if commands else None


def all_commands() -> tuple[Parser, list[Parser]]:
    """The parser, and those of all commands with their options."""
    return _with_options_of({*COMMANDS})


def _with_options_of(chosen: Container[str | None]) -> tuple[Parser, list[Parser]]:
    parser = Parser(
        prog="bfpp",
        description="See, predict and check the schedules of pipeline-parallel training.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"bfpp {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    found = []
    for name, summary in COMMANDS.items():
        command = commands.add_parser(
            name, help=summary, description=f"bfpp {name}: {summary}.", allow_abbrev=False
        )
        if name in chosen:
            module = import_module(module_of(name))
            module.add_arguments(command)
            command.set_defaults(run=module.run, parser=command)
            found.append(command)
    return parser, found


def module_of(command: str) -> str:
    """The module of a command, whose name Python may not allow."""
    return f"bfpp.commands.{command}{'_' * iskeyword(command)}"


def _parse(parser: Parser, command: Parser | None, words: list[str]) -> argparse.Namespace:
    """The options; what is unknown among them is reported before what is missing."""
    at = next((at for at, word in enumerate(words) if not word.startswith("-")), len(words))
    parser.refuse_unknown(words[:at])
    if command:
        command.refuse_unknown(words[at + 1 :])
    options, surplus = parser.parse_known_args(words)
    if surplus:
        options.parser.error(f"unrecognized arguments: {shlex.join(surplus)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
