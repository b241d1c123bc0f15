"""Errors for invalid input, and suggestions for misspelt names.

Every user error raises an `InvalidInput` where it is detected, with a message for that
user, which the command line prints in one line. Every other exception is a bug, and is
shown as one.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, TypeVar


class InvalidInput(ValueError):
    """Input that cannot be used; the message names the field at fault, and the reason.

    >>> import bfpp
    >>> try:
    ...     bfpp.Experiment("gpipe", pp=100_000, microbatches=1).graph()
    ... except bfpp.InvalidInput as error:
    ...     print(error)
    --pp: 100,000 ranks; at most 10,000 can be simulated
    """


class InvalidConfiguration(InvalidInput):
    """A configuration that cannot be built; `field` names the setting at fault.

    >>> import bfpp
    >>> try:
    ...     bfpp.Experiment("depth-first", pp=4, microbatches=6).graph()
    ... except bfpp.InvalidConfiguration as error:
    ...     print(error.field, "-", error.reason)
    microbatches - 6 in sequences of 4 leave 2 for the last, which cannot fill 4 ranks
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as field and reason, whatever a subclass takes: errors cross processes."""
        return _again, (type(self), self.field, self.reason)


class InvalidFile(InvalidConfiguration):
    """A file whose contents are not as they should be; the reason is one line."""

    def __init__(self, reason: str) -> None:
        super().__init__("file", reason)


def _again(kind: type[InvalidConfiguration], field: str, reason: str) -> InvalidConfiguration:
    error = kind.__new__(kind)
    InvalidConfiguration.__init__(error, field, reason)
    return error


Kind = TypeVar("Kind", bound=StrEnum)


def chosen(kinds: type[Kind], field: str, text: str) -> Kind:
    """The member of that name; raises `InvalidConfiguration` of `field` for any other."""
    try:
        return kinds(text)
    except InvalidInput:
        raise
    except ValueError:
        known = ", ".join(kinds)
        reason = f"{text!r} is not one of {known}{did_you_mean(str(text), kinds)}"
        raise InvalidConfiguration(field, reason) from None


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Suggestion of the closest known name, as the end of a sentence; "" if none is close.

    A `prefix` that all of them have does not count as likeness.
    """
    rest = [each.removeprefix(prefix) for each in known if each.startswith(prefix)]
    close = get_close_matches(word.removeprefix(prefix), rest, n=1)
    return f"; did you mean {prefix + close[0]!r}?" if close else ""
