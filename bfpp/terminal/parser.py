"""An argument parser whose errors are one line, and the truth: what is misspelt is named first."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, NoReturn

from bfpp.schedules.errors import did_you_mean
from bfpp.terminal import help as help_texts
from bfpp.terminal.error_lines import one_line
from bfpp.terminal.outputs import Output

BAD_INPUT = 2
"""The exit code where something that was given cannot be used."""

_CHOICES = re.compile(r"invalid choice: '(.*)' \(choose from (.*)\)$", re.DOTALL)
_MEMBER = re.compile(r"<[\w.]+: ('[^']*')>")
"""A choice that is a member of an enumeration, as argparse shows it."""

_OPTION = re.compile(r"--?[^\W\d]")


class ParserExit(SystemExit):
    """The end of a command line that is answered or refused; a user's own file exits otherwise."""


class Parser(argparse.ArgumentParser):
    """An argument parser that takes no abbreviations."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("formatter_class", help_texts.HelpFormatter)
        super().__init__(add_help=False, **settings)
        self._extensions: list[Callable[[Parser, Iterable[str], Sequence[str]], None]] = []
        self.opens_with: Sequence[str] = ()
        self._listed: list[help_texts.Subject] = []
        self.add_argument(
            "-h",
            "--help",
            action=_Help,
            nargs="?",
            metavar="SUBJECT",
            help="print help: on a subject, on options whose names have a word, or on all",
        )

    def open_with(self, *names: str) -> None:
        """Let help explain these options, without their dashes, and name the others by subject."""
        self.opens_with = names

    def list_in_help(self, title: str, words: Mapping[str, str]) -> None:
        """Let help list words that are no options, such as commands, and what they mean."""
        self._listed.append(help_texts.listed(title, words))

    @property
    def subjects(self) -> list[help_texts.Subject]:
        """All arguments, words and options, by subject."""
        return help_texts.subjects(self, self._listed)

    def format_help(self) -> str:
        """The most used options and the names of others; or all of them, where they are few."""
        if self.opens_with:
            return help_texts.opening(self, self.subjects, self.opens_with)
        return help_texts.whole(self, self.subjects)

    def help_on(self, word: str) -> str:
        """Help on a subject, a word in names of options, or all; exits with 2 for another one."""
        if word == help_texts.ALL:
            return help_texts.whole(self, self.subjects)
        if not (text := help_texts.on(self, self.subjects, word)):
            titles = "; ".join(each.title for each in self.subjects)
            self.error(f"argument -h/--help: nothing has {word!r} in its name; there are {titles}")
        return text

    def extended_by(self, add: Callable[[Parser, Iterable[str], Sequence[str]], None]) -> None:
        """Let words that are neither options nor their values add options, before any is parsed.

        They come one by one, since what follows an option that an earlier one added is its value;
        then all words.
        """
        self._extensions.append(add)

    def assume(self, name: str, texts: Sequence[str]) -> None:
        """Take these texts for an option, unless the command line has it or, if it adds, with it.

        Raises `ValueError` for what it does not take, or `argparse.ArgumentTypeError`.
        """
        action = self._option_string_actions[name]
        if action.nargs == 0:
            raise ValueError("takes no value, so it is for the command line")
        values = [action.type(text) if callable(action.type) else text for text in texts]
        if any(isinstance(value, Output) for value in values):
            raise ValueError("only the command line names files to write")
        if wrong := [value for value in values if action.choices and value not in action.choices]:
            raise ValueError(f"{wrong[0]!r} is none of {', '.join(map(str, action.choices or ()))}")
        several = action.nargs == "+" or isinstance(action.default, list)
        if action.nargs == "+" and not values:
            raise ValueError("takes at least one value")
        if len(values) != 1 and not several:
            raise ValueError(f"takes one value, not {len(values)}")
        action.required = False
        self.set_defaults(**{action.dest: values if several else values[0]})

    @property
    def names(self) -> list[str]:
        """The names of all options."""
        return list(self._option_string_actions)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Print the message on standard error, and exit."""
        if message:
            with suppress(AttributeError, OSError):  # nobody reads it
                sys.stderr.write(message)
        raise ParserExit(status)

    def error(self, message: str) -> NoReturn:
        """Name the option and the reason on standard error, and exit with 2."""
        message = _MEMBER.sub(r"\1", message)
        if choices := _CHOICES.search(message):
            message += did_you_mean(choices[1], re.findall(r"[^\s',]+", choices[2]))
        self.exit(BAD_INPUT, f"{self.prog}: {one_line(message)}\n")

    def parse(
        self, words: Sequence[str], namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """The options of a whole command line; exits with 2 where there are others.

        Options that are not known come first: what argparse misses may be what they mean.
        """
        self.refuse_unknown(words)
        options, surplus = self.parse_known_args(words, namespace)
        if surplus:
            self.error(f"unrecognized arguments: {shlex.join(surplus)}")
        return options

    def refuse_unknown(self, words: Sequence[str]) -> None:
        """Exit with 2 at the first word that looks like an option, and is none, or has no value."""
        for add in self._extensions:
            add(self, self._arguments(words), words)
        known = self.names
        for at, word in enumerate(words):
            if word == "--":
                return
            name, _, value = word.partition("=")
            if _is_option(word) and name not in known:
                rest = shlex.join(_with_its_values(words[at:]))
                self.error(f"unrecognized arguments: {rest}{did_you_mean(name, known, '--')}")
            if value == "--":  # which argparse takes away, leaving nothing
                self.error(f"argument {name}: expected a value, not '--'")

    def _arguments(self, words: Sequence[str]) -> Iterator[str]:
        """The words that are neither options nor the values of known ones."""
        for before, word in pairwise(["", *words]):
            if not _is_option(word) and not self._takes_value(before):
                yield word

    def _takes_value(self, word: str) -> bool:
        """True if the word is a known option whose value is the next word."""
        action = self._option_string_actions.get(word)
        return action is not None and action.nargs != 0


class _Help(argparse.Action):
    """Prints help and exits."""

    def __call__(self, parser: Any, _: object, word: Any, *__: object) -> None:
        sys.stdout.write(parser.help_on(word) if word else parser.format_help())
        parser.exit()


def _with_its_values(words: Sequence[str]) -> Iterator[str]:
    """The first of the words, and those up to the next option."""
    yield words[0]
    for word in words[1:]:
        if _is_option(word):
            return
        yield word


def _is_option(word: str) -> bool:
    """True if argparse takes the word for an option; with a space in it, it is a value."""
    return bool(_OPTION.match(word)) and " " not in word
