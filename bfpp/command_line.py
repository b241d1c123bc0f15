"""The `bfpp` command: parses, checks where results will go, dispatches, and reports errors.

Each command is a module of `bfpp.commands` with `add_arguments` and `run`; it is imported only
when asked for (`bfpp.terminal.command_table`), so that every command starts fast.

Exit codes:

- 0 done, 1 a check or a run failed, 130 interrupted.
- 2 something that was given cannot be used: an `InvalidInput`, more than this machine's
  memory holds, or a Python file that raises something; or the compiled core is missing or older
  than its sources. Reported in one line.
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
from collections.abc import Sequence

from bfpp import __version__
from bfpp.core.sources import CoreError
from bfpp.executor.devices.out_of_memory import shortage
from bfpp.launchers.sources.command_words import is_command
from bfpp.schedules import InvalidInput
from bfpp.schedules.formats.python_file import exit_as_error, line_at_fault
from bfpp.terminal import error_lines
from bfpp.terminal.command_table import with_options_of
from bfpp.terminal.interrupts import INTERRUPTED, collect_garbage
from bfpp.terminal.outputs import prepared
from bfpp.terminal.parser import BAD_INPUT, Parser
from bfpp.terminal.standard_streams import enduring

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
        with prepared(options), exit_as_error():
            exit_code: int = options.run(options)
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)  # noqa: T201
        return INTERRUPTED
    except InvalidInput as error:
        return _report(name, error_lines.explain(error))
    except CoreError as error:
        return _report("bfpp", error_lines.one_line(str(error)))
    except Exception as error:
        if short := shortage(error):
            return _report(name, short)
        if line := line_at_fault(error):
            return _report(name, error_lines.one_line(f"{line}: {type(error).__name__}: {error}"))
        traceback.print_exc()
        print(_request(error, words), file=sys.stderr)  # noqa: T201
        return FAULT
    return exit_code


def _spelled_out(words: list[str]) -> list[str]:
    """The words; a bare `--resume` of a run is spelled out, or it would take the next word.

    A command that starts training, after `--`, is one word: it is a SCHEDULE.
    """
    before, mark, after = _divided(words)
    if mark and is_command(shlex.join(after)):
        words = [*before, shlex.join(after)]
    if words[:1] != ["run"]:
        return words
    pairs = zip(words, [*words[1:], ""], strict=False)
    return [
        "--resume=last" if word == "--resume" and not after.isdecimal() else word
        for word, after in pairs
    ]


def _divided(words: list[str]) -> tuple[list[str], bool, list[str]]:
    """The words before and after `--`, if it is there."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], at < len(words), words[at + 1 :]


def _report(name: str, reason: str) -> int:
    print(f"{name}: {reason}", file=sys.stderr)  # noqa: T201
    return BAD_INPUT


def _request(error: Exception, words: list[str]) -> str:
    """Advice after a fault: how to report it, and the versions that a report needs."""
    versions = f"bfpp {__version__}, Python {platform.python_version()}, {platform.platform()}"
    return (
        f"bfpp: {type(error).__name__} is a fault of the program, unless it is in code of your "
        f"own. Please report it with the lines above, and these:\n{versions}\n"
        + error_lines.one_line(shlex.join(["bfpp", *words]))
    )


def _parsers(words: list[str]) -> tuple[Parser, Parser | None]:
    """The parser, and that of the command in `words`: only this one gets its options."""
    chosen = next((word for word in words if not word.startswith("-")), None)
    parser, commands = with_options_of({chosen})
    return parser, commands[0] if commands else None


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
