"""Words of a shell script and their expansion; nothing is executed.

What only the running shell knows stays as it is written: variables that the script does not set,
`$1` of no arguments, and the output of commands, `$(...)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from bfpp.launchers.sources.shell_arithmetic import AMOUNT, calculated
from bfpp.schedules import InvalidInput

Variables = Mapping[str, str | Sequence[str]]
"""Values of variables; those of arrays are their elements."""

LONGEST = 200_000
"""Letters that the words of a command may have when variables are written out."""

END, OPEN, CLOSE = "\n", "(", ")"

CONTINUED = "\\\n"
"""The end of a line that goes on in the next."""

UNKNOWN_PARTS, ALL_PARTS = "$`", "\\'\"$`"
"""First letters of parts of a word whose spaces divide nothing: that only a run tells, or any."""

OPERATORS = (";;", "&&", "||", "|&", "&>>", "&>", ">>", "<<<", "<<-", "<<", ">&", "<&", ";", "&",
             "|", ">", "<", OPEN, CLOSE)  # fmt: skip

HERE_DOCUMENTS = ("<<", "<<-")

_ASSIGNED = re.compile(r"[A-Za-z_]\w*\+?=")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_BRACED = re.compile(r"([A-Za-z_]\w*|[0-9]+)(\[[@*]\])?(?::?([-=])(.*))?", re.DOTALL)
_FROM = re.compile(r"@:([1-9][0-9]?)")
"""All arguments from one on."""
_ARRAY = re.compile(r"\$(?:\{([A-Za-z_]\w*)\[@\]\}|\{?(@)\}?)")


class Token(NamedTuple):
    """A word as it is written, or an operator, with its line; of an array the elements, too.

    The end of a line has the here-documents that follow it for elements, and `<<` its delimiter.
    """

    text: str
    line: int
    is_word: bool = True
    elements: tuple[str, ...] | None = None


class UnclosedQuote(InvalidInput):
    """A script that ends within quotes or brackets."""


def tokens(text: str) -> Iterator[Token]:
    """The words and operators of a script, without comments."""
    at, line, awaited = 0, 1, list[str]()
    while at < len(text):
        letter = text[at]
        if letter == "\n":
            ended, documents = at, list[str]()
            while awaited:
                begins, at = at + 1, _after_document(text, at + 1, awaited.pop(0))
                documents.append("".join(text[begins:at].rpartition("\n")[:2]))
            at = at if documents else at + 1
            yield Token(END, line, False, tuple(documents))
            line += text.count("\n", ended, at)
        elif text.startswith(CONTINUED, at):
            at, line = at + len(CONTINUED), line + 1
        elif letter in " \t\r":
            at += 1
        elif letter == "#":
            at = _end_of_line(text, at)
        elif (end := _after_arithmetic(text, at)) is not None:
            yield Token(text[at:end], line)
            line += text.count("\n", at, end)
            at = end
        elif operator := next((each for each in OPERATORS if text.startswith(each, at)), None):
            at, delimiter = at + len(operator), None
            if operator in HERE_DOCUMENTS:
                end = _end_of_word(text, at + len(text[at:]) - len(text[at:].lstrip(" ")))
                delimiter, at = text[at:end].strip(), end
                awaited.append(delimiter.strip("'\"\\"))
            yield Token(operator, line, False, None if delimiter is None else (delimiter,))
        else:
            begins = at
            token, at = _word(text, at, line)
            yield token
            line += text.count("\n", begins, at)


def _after_arithmetic(text: str, at: int) -> int | None:
    """The end of `((...))`; None where there is none."""
    if not text.startswith("((", at):
        return None
    end = _after_brackets(text, at)
    return end if text[:end].endswith("))") else None


def _word(text: str, at: int, line: int) -> tuple[Token, int]:
    end = _end_of_word(text, at)
    word = text[at:end]
    if word.isdigit() and text[end : end + 1] in ("<", ">"):  # a stream that is redirected
        operator = next(each for each in OPERATORS if text.startswith(each, end))
        return Token(operator, line, False), end + len(operator)
    if _ASSIGNED.fullmatch(word) and text[end : end + 1] == OPEN:
        elements, after = _elements(text, end + 1)
        return Token(word, line, True, elements), after
    return Token(word, line), end


def _elements(text: str, at: int) -> tuple[tuple[str, ...], int]:
    """The words of an array up to its closing bracket, and where it ends."""
    words: list[str] = []
    while at < len(text):
        if text[at] == CLOSE:
            return tuple(words), at + 1
        if text[at].isspace():
            at += 1
        elif text.startswith(CONTINUED, at):
            at += len(CONTINUED)
        elif text[at] == "#":
            at = _end_of_line(text, at)
        else:
            end = max(_end_of_word(text, at), at + 1)
            words.append(text[at:end])
            at = end
    raise UnclosedQuote("a bracket is not closed")


def _end_of_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _after_document(text: str, at: int, delimiter: str) -> int:
    """The end of a here-document, whose last line is the delimiter."""
    while at < len(text):
        end = _end_of_line(text, at)
        if text[at:end].strip() == delimiter:
            return end
        at = end + 1
    return at


def _end_of_word(text: str, at: int) -> int:
    while at < len(text) and text[at] not in " \t\r\n;&|<>()":
        at = _after_part(text, at)
    return at


def _after_part(text: str, at: int) -> int:
    """The end of a letter, or of a quoted or bracketed part of a word."""
    letter = text[at]
    if letter == "\\":
        return min(at + 2, len(text))
    if letter == "'":
        return _after(text, "'", at + 1)
    if letter == "`":
        return _after(text, "`", at + 1)
    if letter == '"':
        at += 1
        while at < len(text) and text[at] != '"':
            at = at + 1 if text[at] == "'" else _after_part(text, at)
        return _closed(text, at)
    if letter == "$" and text[at + 1 : at + 2] in ("{", OPEN):
        return _after_brackets(text, at + 1)
    return at + 1


def _after(text: str, mark: str, at: int) -> int:
    end = text.find(mark, at)
    return _closed(text, len(text) if end < 0 else end)


def _closed(text: str, at: int) -> int:
    if at >= len(text):
        raise UnclosedQuote("a quote is not closed")
    return at + 1


def _after_brackets(text: str, at: int) -> int:
    """The end of `{...}` or `(...)`, with brackets of the same kind inside."""
    opening, depth = text[at], 0
    closing = {"{": "}", OPEN: CLOSE}[opening]
    while at < len(text):
        depth += (text[at] == opening) - (text[at] == closing)
        at += 1
        if not depth:
            return at
    raise UnclosedQuote("a bracket is not closed")


class _Fields:
    """The fields that a word expands to, as they are collected."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.open: str | None = None
        self.letters = 0

    def add(self, text: str) -> None:
        self.open = (self.open or "") + text
        self._count(len(text))

    def add_words(self, words: Sequence[str]) -> None:
        """Words of which the first continues the text before, and the last the text after."""
        for number, word in enumerate(words):
            if number:
                self.end()
            self.add(word)

    def end(self) -> None:
        if self.open is not None:
            self.done.append(self.open)
            self._count(1)
        self.open = None

    def _count(self, letters: int) -> None:
        self.letters += letters
        if self.letters > LONGEST:
            raise InvalidInput(f"a word of more than {LONGEST:,} letters")


def expand(word: str, variables: Variables) -> list[str]:
    """The fields of a word: without quotes, and with variables written out."""
    fields = _Fields()
    _expand(word, variables, fields, quoted=False)
    fields.end()
    return fields.done


def expanded_document(text: str, variables: Variables) -> str:
    """A here-document with variables written out; its quotes are letters."""
    fields = _Fields()
    _expand(text, variables, fields, quoted=True)
    fields.end()
    return " ".join(fields.done)


def _expand(text: str, variables: Variables, fields: _Fields, *, quoted: bool) -> None:
    at = 0
    while at < len(text):
        letter, end = text[at], _after_part(text, at) if text[at] in "\\$`" else at + 1
        if letter == "\\" and text[at:end] != CONTINUED:
            kept = quoted and text[at + 1 : end] not in ("$", '"', "\\", "`")
            fields.add(text[at:end] if kept else text[at + 1 : end])
        elif letter == "'" and not quoted:
            end = _after_part(text, at)
            fields.add(text[at + 1 : end - 1])
        elif letter == '"' and not quoted:
            end = _after_part(text, at)
            array = _ARRAY.fullmatch(text, at + 1, end - 1)
            if array is None or variables.get(array[1] or array[2]) != []:
                fields.add("")
            _expand(text[at + 1 : end - 1], variables, fields, quoted=True)
        elif letter == "$":
            end = _expand_variable(text, at, end, variables, fields, quoted=quoted)
        elif letter != "\\":
            fields.add(text[at:end])
        at = end


def _expand_variable(
    text: str, at: int, end: int, variables: Variables, fields: _Fields, *, quoted: bool
) -> int:
    """Write out a variable, if its value is known; returns where it ends."""
    if text.startswith("$((", at):
        with_values = expand(AMOUNT.sub(r"$\1", text[at + 3 : end - 2]), variables)
        fields.add(calculated(" ".join(with_values)) or text[at:end])
        return end
    if text.startswith("$(", at):
        fields.add(text[at:end])
        return end
    if text.startswith("${", at):
        value = _braced(text[at + 2 : end - 1], variables)
    else:
        match = _NAME.match(text, at + 1)
        end = match.end() if match else at + 1
        value = variables.get(match[0]) if match else None
    if quoted and isinstance(value, list) and text.endswith("[*]}", at, end):
        value = " ".join(value)
    if value is None:
        fields.add(text[at:end])
    elif isinstance(value, tuple):  # a default, whose fields are known
        fields.add_words([" ".join(value)] if quoted else value)
    elif not isinstance(value, str):
        words = [part for each in value for part in ([each] if quoted else _raw_words(each))]
        fields.add_words(words)
    elif quoted:
        fields.add(value)
    else:
        _add_split(value, fields)
    return end


def _add_split(value: str, fields: _Fields) -> None:
    """Add a value whose spaces divide words."""
    if value[:1].isspace():
        fields.end()
    fields.add_words([*_raw_words(value)])
    if value[-1:].isspace():
        fields.end()


def _braced(inside: str, variables: Variables) -> str | Sequence[str] | None:
    """The value of `NAME`, `NAME[@]`, or `NAME:-default` in braces; None where it is not known.

    That of a default is a tuple of its fields.
    """
    if from_one := _FROM.fullmatch(inside):
        return [*variables["@"]][int(from_one[1]) - 1 :]
    match = _BRACED.fullmatch(inside)
    if match is None:
        return None
    name, _, mark, default = match.groups()
    value = variables.get(name)
    if mark is None or value:
        return value
    words = _raw_words(default, ALL_PARTS)
    return tuple(field for word in words for field in expand(word, variables))


def _raw_words(text: str, parts: str = UNKNOWN_PARTS) -> Iterator[str]:
    """The words of a text, divided at spaces that are not in parts that begin with these letters.

    In a value, quotes are letters like others.
    """
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        end = at
        while end < len(text) and not text[end].isspace():
            try:
                end = _after_part(text, end) if text[end] in parts else end + 1
            except UnclosedQuote:
                parts = ""  # a value's letters, whatever they are
        yield text[at:end]
        at = end
