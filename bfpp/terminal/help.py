"""Help of a command: the options that most use, and the others by subject.

A command with many options opens its help with some of them (`Parser.open_with`) and names the rest
by subject; `--help SUBJECT` explains these, and `--help all` every option.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

ALL = "all"
"""The word for the help of every option."""

ARGUMENTS = "arguments"

OF_A_SCHEDULE = "parameters of "
"""How the title begins of the options that a schedule's own file brings."""

_MORE = """\
{prog} --help SUBJECT explains these, or the options whose names have the word;
{prog} --help all explains every option."""


class HelpFormatter(argparse.HelpFormatter):
    """Fits help to the terminal line by line, so that a list in it stays one."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        if "\n" not in text:
            return super()._split_lines(text, width)
        return [line for row in text.splitlines() for line in _wrapped(row, width)]

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        rows = (_wrapped(row, width - len(indent)) for row in text.splitlines())
        return "\n".join(indent + line for lines in rows for line in lines)


def _wrapped(row: str, width: int) -> list[str]:
    """A row of a list in lines; options in it are not broken."""
    return textwrap.wrap(row, width, subsequent_indent="  ", break_on_hyphens=False)


class Subject(NamedTuple):
    """Options, arguments or words under a title."""

    title: str
    actions: Sequence[argparse.Action]

    def on(self, word: str) -> Subject:
        """All of them where the title has the word, else those whose names have it."""
        if word in self.title.lower():
            return self
        named = [each for each in self.actions if any(word in name for name in names_of(each))]
        return Subject(self.title, named)

    def without(self, shown: Container[argparse.Action]) -> Subject:
        """Those that are not shown yet."""
        return Subject(self.title, [each for each in self.actions if each not in shown])


def listed(title: str, words: Mapping[str, str]) -> Subject:
    """Words that are no options, such as names of schedules, each with what it means."""
    return Subject(title, [argparse.Action([], word, help=it) for word, it in words.items()])


def subjects(parser: argparse.ArgumentParser, further: Sequence[Subject] = ()) -> list[Subject]:
    """All of a parser: arguments without a group first, then groups, `further` ones, the rest."""
    arguments, general, *groups = (
        Subject(
            each.title or "",
            [action for action in each._group_actions if _is_explained(action)],
        )
        for each in parser._action_groups
    )
    every = [
        arguments._replace(title=ARGUMENTS), *further, *groups, general._replace(title="general")
    ]  # fmt: skip
    return [each for each in every if each.actions]


def _is_explained(action: argparse.Action) -> bool:
    """False for what is hidden, and for commands, which are listed by subject instead."""
    return action.help != argparse.SUPPRESS and not isinstance(action.choices, Mapping)


def names_of(action: argparse.Action) -> list[str]:
    """The names of an option without dashes, or that of an argument or a word."""
    return [name.lstrip("-") for name in action.option_strings] or [_argument(action).lower()]


def usage(parser: argparse.ArgumentParser) -> str:
    """The command, with its arguments and the options that it needs."""
    arguments = [each for each in parser._actions if not each.option_strings]
    needed = [each for each in parser._actions if each.option_strings and each.required]
    return " ".join([parser.prog, *map(invocation, [*arguments, *needed]), "[OPTIONS]"])


def invocation(action: argparse.Action) -> str:
    """An option with its aliases and value, or the name of an argument."""
    if not action.option_strings:
        optional = {"*": "[{} ...]", "?": "[{}]"}.get(str(action.nargs), "{}")
        return optional.format(_argument(action))
    value = f" {_value(action)}" if action.nargs != 0 else ""
    return ", ".join(action.option_strings) + value


def _argument(action: argparse.Action) -> str:
    return _value(action) or action.dest


def _value(action: argparse.Action) -> str:
    """The value of an option or an argument: its name, or all that it may be."""
    choices = f"{{{','.join(map(str, action.choices))}}}" if action.choices else ""
    named = action.metavar or choices
    value = named if isinstance(named, str) else " ".join(named)
    return f"[{value}]" if action.nargs == "?" and action.option_strings else value


def opening(
    parser: argparse.ArgumentParser, every: Sequence[Subject], most_used: Sequence[str]
) -> str:
    """Arguments and the most used options explained, and the names of others by subject."""
    arguments = [each for each in parser._actions if not each.option_strings]
    shown = [each for name in most_used for each in parser._actions if name in names_of(each)]
    rest = [each.without([*arguments, *shown]) for each in every]
    own = [each for each in rest if each.title.startswith(OF_A_SCHEDULE)]
    first = [Subject(ARGUMENTS, arguments), Subject("most used options", shown), *own]
    names = [_names(each) for each in rest if each.actions and each not in own]
    return _text(parser, first, "\n".join(names))


def whole(parser: argparse.ArgumentParser, every: Sequence[Subject]) -> str:
    """All arguments and options explained."""
    return _text(parser, every)


def on(parser: argparse.ArgumentParser, every: Sequence[Subject], word: str) -> str:
    """Help on a subject, or on options whose names have the word; empty if there is none."""
    found = [each.on(word.lower().lstrip("-")) for each in every]
    found = [each for each in found if each.actions]
    return _text(parser, found) if found else ""


def _names(subject: Subject) -> str:
    names = ([*each.option_strings, each.dest][0] for each in subject.actions)
    return f"{subject.title}: {', '.join(names)}"


def _text(parser: argparse.ArgumentParser, explained: Sequence[Subject], others: str = "") -> str:
    formatter = parser.formatter_class(prog=parser.prog)
    formatter.add_usage(usage(parser), [], [])
    formatter.add_text(parser.description)
    for title, actions in explained:
        formatter.start_section(title)
        formatter.add_arguments(actions)
        formatter.end_section()
    if others:
        formatter.start_section("other options, by subject")
        formatter.add_text(others)
        formatter.end_section()
        formatter.add_text(_MORE.format(prog=parser.prog))
    return formatter.format_help()
