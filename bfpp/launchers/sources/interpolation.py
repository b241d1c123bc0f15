"""Settings of YAML that are worked out of others, as OmegaConf does: `${model.hidden_size}`.

References, `oc.env` and the arithmetic that NeMo's launcher adds are worked out; all else is left
as it is written, with a reason. Nothing is executed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil, floor

from bfpp.launchers.arguments import Words
from bfpp.sim.presets.numbers import LARGEST, real, whole

BEGINS = "${"

LONGEST, DEEPEST = 2000, 20
"""Letters of a value, and references that lead to each other, at most."""

UNSET = ("null", "None", "")
"""Values of a default that is none."""

_REFERENCE = re.compile(r"(\.*)([A-Za-z_][\w/-]*(?:\.[\w/-]+)*)")
_ALONE = re.compile(rf"\$\{{\s*{_REFERENCE.pattern}\s*\}}")
_QUOTED = re.compile(r"(['\"])(.*)\1")


class _Unknown(Exception):
    """A value that cannot be worked out, and why."""


def interpolated(
    settings: Mapping[str, Words], environment: Mapping[str, str] = os.environ
) -> tuple[dict[str, Words], dict[str, str]]:
    """The settings with all values that can be worked out; and why the others cannot, by name."""
    values = _Values(settings, environment)
    known, unknown = dict[str, Words](), dict[str, str]()
    for name, words in settings.items():
        try:
            known[name] = values.of(name)
        except _Unknown as reason:
            known[name], unknown[name] = words, str(reason)
    return known, unknown


class _Values:
    def __init__(self, settings: Mapping[str, Words], environment: Mapping[str, str]) -> None:
        self.settings, self.environment = settings, environment
        self.roots = {name.partition(".")[0] for name in settings}
        self.known: dict[str, Words] = {}
        self.asked: list[str] = []

    def of(self, name: str) -> Words:
        """The value of a setting."""
        if name in self.known:
            return self.known[name]
        if name in self.asked:
            raise _Unknown("refers to itself")
        if len(self.asked) == DEEPEST:
            raise _Unknown(f"refers to others more than {DEEPEST} times")
        self.asked.append(name)
        try:
            self.known[name] = self._worked_out(name, self.settings[name])
        finally:
            self.asked.pop()
        return self.known[name]

    def _worked_out(self, name: str, words: Words) -> Words:
        if len(words) == 1 and (alone := _ALONE.fullmatch(words[0])):
            return self._referred(alone, name)
        return tuple(self._text(word, name) for word in words)

    def _text(self, text: str, name: str) -> str:
        """The text with all that is in `${...}` worked out, from the inside."""
        done, at = "", 0
        while (begins := text.find(BEGINS, at)) >= 0:
            end = _closing(text, begins + len(BEGINS))
            inside = self._text(text[begins + len(BEGINS) : end], name).strip()
            done, at = done + text[at:begins] + self._value(inside, name), end + 1
            if len(done) > LONGEST:
                raise _Unknown(f"is longer than {LONGEST:,} letters")
        return done + text[at:]

    def _value(self, inside: str, name: str) -> str:
        if match := _REFERENCE.fullmatch(inside):
            return " ".join(self._referred(match, name))
        resolver, mark, text = inside.partition(":")
        if not mark:
            raise _Unknown(f"{inside!r} is no reference")
        arguments = [_unquoted(each.strip()) for each in text.split(",")]
        if resolver in ("oc.env", "env"):
            return self._variable(arguments)
        if resolver not in ARITHMETIC:
            raise _Unknown(f"{resolver}: a resolver that is not known")
        numbers = list(_numbers(resolver, arguments))
        try:
            return _plain(ARITHMETIC[resolver](*numbers))
        except (TypeError, ZeroDivisionError, OverflowError):
            raise _Unknown(f"{resolver}: cannot be worked out of {text.strip()}") from None

    def _variable(self, arguments: Sequence[str]) -> str:
        """A variable of the environment, or its default."""
        variable, *default = arguments
        if variable in self.environment:
            return self.environment[variable]
        if default and default[0] not in UNSET:
            return ",".join(default)
        raise _Unknown(f"depends on ${variable}, which is not set")

    def _referred(self, match: re.Match[str], name: str) -> Words:
        """The setting that is referred to: seen from its table with dots before it, or the root.

        A launcher has the file at a place of its own, whose name comes first then (`training.`).
        """
        dots, target = match.groups()
        if dots:
            above = name.split(".")[: -len(dots)]
            target = ".".join([*above, target])
        first, _, rest = target.partition(".")
        found = target if target in self.settings or first in self.roots else rest
        if found not in self.settings:
            raise _Unknown(f"{target} is no setting of the file")
        return self.of(found)


def _closing(text: str, at: int) -> int:
    """The place of the bracket that closes the one before `at`."""
    depth = 1
    while at < len(text):
        depth += (text[at] == "{") - (text[at] == "}")
        if not depth:
            return at
        at += 1
    raise _Unknown("a bracket is not closed")


def _unquoted(text: str) -> str:
    match = _QUOTED.fullmatch(text)
    return match[2] if match else text


def _numbers(resolver: str, arguments: Sequence[str]) -> Iterator[float]:
    for text in arguments:
        number = whole(text)
        yield number if number is not None else real(text)
        if not -LARGEST <= real(text) <= LARGEST:
            raise _Unknown(f"{resolver}: {text!r} is no number")


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


def _divided(one: float, other: float) -> float:
    return one / other


ARITHMETIC: Mapping[str, Callable[..., float]] = {
    "multiply": lambda one, other: one * other,
    "int_multiply": lambda one, other: int(one * other),
    "divide": _divided,
    "divide_ceil": lambda one, other: ceil(one / other),
    "divide_floor": lambda one, other: floor(one / other),
    "int_div": lambda one, other: one // other,
    "floor_div": lambda one, other: one // other,
    "add": lambda *each: sum(each),
    "sum": lambda *each: sum(each),
    "subtract": lambda one, other: one - other,
    "min": min,
    "max": max,
}
"""Resolvers that NeMo's launcher, and configurations after its example, add to OmegaConf."""
