"""Statements of a shell script, and their parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from bfpp.launchers.sources.shell_words import (
    CLOSE,
    END,
    HERE_DOCUMENTS,
    OPEN,
    Token,
    tokens,
)

WRITING, APPENDING = ">", ">>"
REDIRECTIONS = (WRITING, APPENDING, "<", "&>", "&>>", ">&", "<&", "<<<")

BLOCKS = {"for": "done", "while": "done", "until": "done", "select": "done", "case": "esac"}
"""Keywords whose commands are left out, and the ends of these."""

GROUPS = {"{": "}", OPEN: CLOSE}
"""Brackets around commands, of which round ones begin a subshell."""

JOINTS = ("&&", "||", "|", "|&", "&")
"""Operators between commands."""

QUOTES = ("'", '"', "\\")
"""First letters of a here-document's delimiter whose text is as it stands."""


class Document(NamedTuple):
    """A here-document, and whether variables in it are written out."""

    text: str
    is_expanded: bool


def statements_of(text: str) -> Iterator[list[Token]]:
    """The statements of a script, split at line ends and semicolons."""
    statement: list[Token] = []
    for token in tokens(text):
        if not token.is_word and token.text in (END, ";", ";;"):
            if statement and token.elements:
                statement = _with_documents(statement, token.elements)
            if statement and not (statement[-1].text in ("&&", "||", "|") and token.text == END):
                yield statement
                statement = []
        else:
            statement.append(token)
    if statement:
        yield statement


def _with_documents(statement: Sequence[Token], documents: Sequence[str]) -> list[Token]:
    """The statement, of whose operators `<<` each has its here-document."""
    texts = iter(documents)
    return [
        token._replace(elements=(*token.elements, next(texts, "")))
        if token.text in HERE_DOCUMENTS and token.elements and len(token.elements) == 1
        else token
        for token in statement
    ]


def bracket_in(statement: Sequence[Token], innermost: str) -> int | None:
    """The place where a group of commands begins, or the innermost one ends."""
    begins = True
    for at, token in enumerate(statement):
        if begins and token.text in GROUPS:
            return at
        if innermost and token.text == GROUPS[innermost] and (begins or not token.is_word):
            return at
        begins = not token.is_word and token.text in JOINTS
    return None


def documents_of(part: Sequence[Token]) -> list[Document]:
    """The here-documents that a command reads."""
    return [
        Document(token.elements[1], not token.elements[0].startswith(QUOTES))
        for token in part
        if token.text in HERE_DOCUMENTS and token.elements and len(token.elements) == 2
    ]


def targets_of(part: Sequence[Token]) -> list[tuple[Token, bool]]:
    """The files that a command's output goes to, each with whether it is appended."""
    return [
        (after, token.text == APPENDING)
        for token, after in pairwise(part)
        if not token.is_word and token.text in (WRITING, APPENDING) and after.is_word
    ]


def is_function(statement: Sequence[Token]) -> bool:
    """True for the beginning of a function."""
    texts = [token.text for token in statement[:3]]
    return texts[:1] == ["function"] or texts[1:3] == ["(", ")"]


def after_block(statements: list[list[Token]], at: int, end: str) -> int:
    """The statement after the end of a block; blocks of the same kind may be inside."""
    starts = {word for word, closing in BLOCKS.items() if closing == end} or {"{"}
    depth = 0
    while at < len(statements):
        words = [token.text for token in statements[at] if token.is_word]
        depth += sum(word in starts for word in words[:1]) if end != "}" else words.count("{")
        depth -= words.count(end) if end == "}" else int(words[:1] == [end])
        at += 1
        if depth <= 0:
            return at
    return at


def joined(statement: Sequence[Token], joints: Sequence[str]) -> Iterator[tuple[list[Token], str]]:
    """The parts of a statement, each with the operator after it."""
    part: list[Token] = []
    for token in statement:
        if not token.is_word and token.text in joints:
            yield part, token.text
            part = []
        else:
            part.append(token)
    yield part, ""


def without_redirections(part: Sequence[Token]) -> Iterator[Token]:
    """The words and operators of a command, without the files that it reads and writes."""
    skip = False
    for token in part:
        if skip:
            skip = False
        elif not token.is_word and token.text in REDIRECTIONS:
            skip = True
        else:
            yield token


def patterns_of(statement: Sequence[Token], subject: str | None) -> list[Token]:
    """The patterns of a branch of a `case`, and the bars between them, if it begins with some."""
    if subject is None:
        return []
    marks = [token.text for token in statement if not token.is_word]
    bars = marks.index(CLOSE) if CLOSE in marks else 0
    patterns = list(statement[: 2 * bars + 1])
    begins = CLOSE in marks and [each.is_word for each in patterns[::2]] == [True] * (bars + 1)
    closes = [token.text for token in statement[2 * bars + 1 : 2 * bars + 2]] == [CLOSE]
    return patterns if begins and closes else []
