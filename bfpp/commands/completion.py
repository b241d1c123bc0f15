"""`bfpp completion`: a shell script that completes commands, options and names of presets."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence

from bfpp.schedules import registered_schedules
from bfpp.schedules.families.registry import ALIASES
from bfpp.sim.presets.files import preset_names
from bfpp.terminal.command_table import all_commands

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp completion`."""
    parser.add_argument(
        "shell",
        metavar="SHELL",
        choices=SHELLS,
        help=f"one of {', '.join(SHELLS)}: as in "
        "bfpp completion bash > ~/.local/share/bash-completion/completions/bfpp",
    )


def run(options: argparse.Namespace) -> int:
    """Print the shell's script, which never calls bfpp, and so is as fast as the shell."""
    import shtab

    known = {
        "schedule": [*registered_schedules(), *ALIASES],
        "model": preset_names("model"),
        "cluster": preset_names("cluster"),
    }
    parser, commands = all_commands()
    for command in commands:
        for action in command._actions:
            _complete(action, known)
    sys.stdout.write(shtab.complete(parser, options.shell) + "\n")
    return 0


def _complete(action: argparse.Action, known: Mapping[str, Sequence[str]]) -> None:
    """Complete an option with the names known for it, or files where its metavar says so."""
    import shtab

    action.help = action.help and action.help.partition("\n")[0].rstrip(":")  # without the list
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    if action.dest in known and not action.choices:
        action.choices = known[action.dest]
    elif "DIR" in metavar:
        action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    elif any(word in metavar for word in ("FILE", "TRACE", "TABLE", "SIMULATED", "MEASURED")):
        action.complete = shtab.FILE  # type: ignore[attr-defined]
