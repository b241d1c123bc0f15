"""Results of the tests of a shell script, `[ ... ]` and `[[ ... ]]`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

ASKING = ("test", "[", "[[", "grep", "diff", "cmp", "command", "type", "which")
"""Commands whose results only a run tells; others are taken to succeed."""


def is_question(program: str) -> bool:
    """True for a command that a run answers."""
    return program in ASKING or program.startswith(("((", "$", "`"))


_VARIABLE = re.compile(r"\$\{?(?!SLURM_)([A-Za-z_]\w*)(?:\[[@*]\]|:?\+\w*)?\}?")
"""A variable that is not known, but for those that Slurm sets."""


def questioned(words: Sequence[str]) -> str | None:
    """The variable of which a test asks whether it is set, if that is not known."""
    match [word for word in words if word not in ("test", "[", "[[", "!", "]", "]]")]:
        case ["-n" | "-z", text] if name := _VARIABLE.fullmatch(text):
            return name[1]
    return None


def chained(results: Iterable[tuple[bool | None, str]]) -> bool | None:
    """The result of tests joined by && and ||, from left to right, each with what follows it."""
    holds: bool | None = True
    joint = "&&"
    for this, after in results:
        if joint == "&&":
            holds = False if False in (holds, this) else None if None in (holds, this) else True
        else:
            holds = True if True in (holds, this) else None if None in (holds, this) else False
        joint = after
    return holds


def not_(holds: bool | None) -> bool | None:
    """The opposite of a result, as far as it is known."""
    return None if holds is None else not holds


def tested(words: Sequence[str]) -> bool | None:
    """The result of a test, `true` or `false`; None where it depends on a command that runs."""
    if [*words] in (["true"], ["false"]):
        return words[0] == "true"
    if words[:1] == ["test"]:
        words = ["[", *words[1:], "]"]
    if words[:1] not in (["["], ["[["]) or len(words) < 2:
        return None
    inside = [word for word in words[1:-1] if word not in ("(", ")")]
    return not_(_compared(inside[1:])) if inside[:1] == ["!"] else _compared(inside)


def _compared(inside: Sequence[str]) -> bool | None:
    if any("$" in word or "`" in word for word in inside):
        return None
    match inside:
        case ["-n", text]:
            return bool(text)
        case ["-z", text]:
            return not text
        case []:
            return False
        case [text]:
            return bool(text)
        case [one, other] if {one, other} & {*_TEXTS, *_NUMBERS}:
            return False  # a side that is empty, without quotes, is none
        case [left, operator, right] if operator in _TEXTS:
            return _TEXTS[operator](left, right)
        case [left, operator, right] if operator in _NUMBERS:
            known = left.isdecimal() and right.isdecimal() and len(left + right) < 30
            return _NUMBERS[operator](int(left), int(right)) if known else None
    return None


_TEXTS: dict[str, Callable[[str, str], bool]] = {
    "=": lambda left, right: left == right,
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
}
_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda left, right: left == right,
    "-ne": lambda left, right: left != right,
    "-gt": lambda left, right: left > right,
    "-ge": lambda left, right: left >= right,
    "-lt": lambda left, right: left < right,
    "-le": lambda left, right: left <= right,
}
