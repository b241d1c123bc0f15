"""Settings of a launch file by name, typed, with the use that was made of each.

A reader takes values from `Arguments`, which knows the ones that were given and never read, so
that no setting is ignored in silence: the counterpart of `Launch` for writers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

from bfpp.schedules import InvalidConfiguration
from bfpp.sim.presets.numbers import is_usable, real, whole

FIELD = "schedule"

Words = tuple[str, ...]
"""The values that are given for a setting: none for a flag alone."""

UNKNOWN = "not known to bfpp"
"""The reason why a setting is left out of which nothing is known: it may matter."""

OFF = (("false",), ("False",))

NOT_SET = (("null",), ("",), ("None",), ("~",))
"""Values of YAML that say nothing."""

USUALLY_ON = "fusion"
"""Part of the names of settings that are on unless they are said to be off."""

GPUS, BATCH = ("dp", "gpus"), ("microbatches", "microbatch_size", "batch")
"""Options that say another number of GPUs, or of samples, than a launch file."""

MOST_LETTERS = 60
"""Letters of a value in a message."""


class ValueKind(NamedTuple):
    """A kind of value: its description, and its reader, which returns None for anything else."""

    title: str
    read: Callable[[Words], Any]


class Flag(NamedTuple):
    """A setting of a framework: the kind of its value, and its default there."""

    kind: ValueKind
    default: Any = None


class Ignored(NamedTuple):
    """A setting that the prediction leaves out, or takes for another: if that matters, and why."""

    name: str
    value: str
    matters: bool
    reason: str


def shortened(text: str) -> str:
    """A text of a bounded length."""
    return text if len(text) <= MOST_LETTERS else text[: MOST_LETTERS - 3] + "..."


def _whole(words: Words) -> int | None:
    number = whole(words[0]) if len(words) == 1 else None
    return number if number is not None and 0 <= number < 2**31 else None


def _wholes(words: Words) -> tuple[int, ...] | None:
    numbers = [_whole((word,)) for word in words]
    return tuple(each for each in numbers if each is not None) if None not in numbers else None


def _number(words: Words) -> float | None:
    number = real(words[0]) if len(words) == 1 else -1.0
    return number if is_usable(number) else None


def _switch(words: Words) -> bool | None:
    return _SWITCHED.get(words[0].lower()) if len(words) == 1 else (None if words else True)


def _text(words: Words) -> str | None:
    return words[0] if len(words) == 1 and words[0] else None


def _listed(words: Words) -> Words | None:
    return tuple(part for word in words for part in word.strip("[]()").replace(",", " ").split())


_SWITCHED = {"true": True, "1": True, "false": False, "0": False}

COUNT = ValueKind("a whole number", _whole)
COUNTS = ValueKind("whole numbers", _wholes)
NUMBER = ValueKind("a number of at least 0", _number)
SWITCH = ValueKind("a flag alone, or true or false", _switch)
TEXT = ValueKind("one value", _text)
LIST = ValueKind("a list", _listed)


def rows(before: str, kind: ValueKind, names: str) -> dict[str, Flag]:
    """Settings of a kind: `name=default`, or a name alone, each with the same text before it."""
    flags = {}
    for word in names.split():
        name, mark, default = word.partition("=")
        usual = kind.read((default,)) if mark else False if kind is SWITCH else None
        flags[f"{before}{name}"] = Flag(kind, usual)
    return flags


class Arguments:
    """The settings that a launch file gives, by name; some are `called` otherwise there.

    One that is called by an empty text is not in the file: something else in it says it.
    """

    def __init__(
        self,
        source: str,
        given: Mapping[str, Words],
        known: Mapping[str, Flag],
        called: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.source, self.given, self.known, self.called = source, given, known, called
        self.read: set[str] = set()
        self.assumed: dict[str, tuple[str, ...]] = {}
        self._replaced: dict[str, str] = {}

    def __getitem__(self, name: str) -> Any:
        """The value of a setting as its kind has it, or the default; it counts as understood."""
        flag = self.known[name]
        self.read.add(name)
        if name not in self.given:
            return flag.default
        if (value := flag.kind.read(self.given[name])) is None:
            self.refuse(name, f"must be {flag.kind.title}, not {self.shown(name)!r}")
        return value

    def __contains__(self, name: str) -> bool:
        return name in self.given

    def required(self, name: str) -> Any:
        """The value of a setting without a default; refused if it is missing."""
        if name not in self:
            self.refuse(name, "is missing")
        return self[name]

    def shown(self, name: str) -> str:
        """The given value as a text of bounded length."""
        return shortened(" ".join(self.given[name]))

    def replace(self, name: str, reason: str) -> None:
        """Say that a setting is taken for another, which matters."""
        self._replaced[name] = reason

    def assume(self, sentence: str, *instead: str) -> None:
        """Note an assumption, as the file does not give the value; options say others `instead`."""
        self.assumed[sentence] = instead

    def refuse(self, name: str, reason: str) -> NoReturn:
        """Raise `InvalidConfiguration` that names the file and the setting."""
        raise InvalidConfiguration(FIELD, f"{self.source}: {self._title(name)}: {reason}")

    def _title(self, name: str) -> str:
        return self.called.get(name) or name

    @property
    def understood(self) -> list[str]:
        """The given settings that the prediction is made of, with their values."""
        return [
            f"{self._title(name)} {self.shown(name)}".strip()
            for name in self.given
            if name in self.read and name not in self._replaced and self.called.get(name, name)
        ]

    def ignored(self, reason_of: Callable[[str], tuple[bool, str]]) -> Iterator[Ignored]:
        """The others; `reason_of` says of a setting that was not read if it matters, and why."""
        for name in self.given:
            if name in self._replaced:
                yield Ignored(self._title(name), self.shown(name), True, self._replaced[name])
            elif name not in self.read:
                matters, reason = reason_of(name)
                if self.given[name] in OFF and USUALLY_ON not in name:
                    matters, reason = False, f"off; {reason}"
                yield Ignored(self._title(name), self.shown(name), matters, reason)
        for name in self._replaced.keys() - self.given.keys():
            yield Ignored(name, "", True, self._replaced[name])
