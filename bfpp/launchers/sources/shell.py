"""The commands of a shell script, with its variables written out; none of them is executed.

Assignments, arrays, tests of texts and numbers, sourced files, and texts that a shell is to run are
understood, and so is `case` of a known text. A test that depends on what runs, loops, functions and
other `case` are left out, and listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from bfpp.launchers.arguments import FIELD
from bfpp.launchers.sources.command_words import BATCH, SHELLS, program_name
from bfpp.launchers.sources.documents import text_of_file
from bfpp.launchers.sources.gpu_counts import batch_words, slurm_variables
from bfpp.launchers.sources.shell_calls import (
    POSITIONAL,
    SOURCING,
    UNGIVEN,
    parameters,
    script_call,
    shell_text,
    unknown_in,
)
from bfpp.launchers.sources.shell_tests import tested
from bfpp.launchers.sources.shell_words import CLOSE, END, Token, expand, tokens
from bfpp.schedules import InvalidConfiguration, InvalidInput

DECLARING = ("export", "declare", "local", "readonly", "typeset")

REDIRECTIONS = (">", ">>", "<", "&>", "&>>", ">&", "<&", "<<<")

BLOCKS = {"for": "done", "while": "done", "until": "done", "select": "done", "case": "esac"}
"""Keywords whose commands are left out, and the ends of these."""

DEEPEST, MOST_FOLLOWED = 8, 100
"""Files and texts that may be within each other, and in all."""

DOCUMENT = "<<EOF"
"""The token that has the here-documents of a statement."""

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)

Value = str | list[str]


class Command(NamedTuple):
    """A command's words and variables set for it alone, in a line."""

    line: int
    words: tuple[str, ...]
    environment: dict[str, str]


class LeftOut(NamedTuple):
    """A part of a script that depends on what runs, and the variables that it depends on."""

    line: int
    text: str
    unknown: tuple[str, ...]


class Script(NamedTuple):
    """A script's commands in order, its variables at the end, and omitted parts."""

    commands: tuple[Command, ...]
    variables: dict[str, Value]
    left_out: tuple[LeftOut, ...]


class _Branch(NamedTuple):
    """A part of an `if`, or of the `case` of a text: does it run, and did one before it.

    None is not known.
    """

    runs: bool | None
    ran: bool | None
    subject: str | None = None


class _Reader:
    """Goes through the statements of a script."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.followed = 0
        self.nested: list[int] = []
        """Lines whose files or texts are read now, the outermost first."""
        self.variables: dict[str, Value] = {}
        self.commands: list[Command] = []
        self.left_out: list[LeftOut] = []
        self.branches: list[_Branch] = []

    @property
    def runs(self) -> bool:
        return all(branch.runs for branch in self.branches)

    def read(self, statements: list[list[Token]]) -> None:
        at = 0
        while at < len(statements):
            statement = _without_keywords(statements[at], self)
            end = BLOCKS.get(statement[0].text) if statement else None
            if end == "esac" and self._begins_case(statement):
                statement = []
            elif end or _is_function(statement):
                if self.runs:
                    self._leave_out(statement, decides=end == "esac")
                at = _after_block(statements, at, end or "}")
                continue
            if statement and self.runs:
                self._run(statement)
            at += 1

    def condition(self, statement: Sequence[Token]) -> None:
        """Begin a branch by its condition."""
        holds = self._holds(statement) if self.runs else False
        self.branches.append(_Branch(holds, holds))
        if holds is None:
            self._leave_out(statement, "if ")

    def otherwise(self, statement: Sequence[Token] | None) -> None:
        """The next branch of the last `if`: by a condition, or else any."""
        if not self.branches:
            return
        before = self.branches[-1].ran
        holds = None if before is None else False
        if before is False and self.runs_around():
            holds = True if statement is None else self._holds(statement)
            if holds is None:
                self._leave_out(statement or (), "elif ")
        self.branches[-1] = _Branch(before is False and holds, before or holds)

    def pattern(self, patterns: Sequence[Token]) -> None:
        """The next branch of the last `case`."""
        _, before, subject = self.branches[-1]
        texts = [" ".join(self._fields(each, whole=True)) for each in patterns]
        holds = not before and any(fnmatchcase(subject or "", text) for text in texts)
        self.branches[-1] = _Branch(holds, before or holds, subject)

    def _begins_case(self, statement: Sequence[Token]) -> bool:
        """Begin the branches of a `case`, if its text is known."""
        subject = " ".join(self._fields(statement[1])) if len(statement) > 1 else "$"
        if not self.runs or "$" in subject or "`" in subject:
            return False
        self.branches.append(_Branch(False, False, subject))
        return True

    def runs_around(self) -> bool:
        """True if the `if` itself is reached."""
        return all(branch.runs for branch in self.branches[:-1])

    def _holds(self, statement: Sequence[Token]) -> bool | None:
        """The result of tests joined by && and ||, from left to right; None where it is unknown."""
        holds: bool | None = True
        joint = "&&"
        for part, after in _joined(statement):
            this = tested([word for token in part for word in self._fields(token, whole=True)])
            if joint == "&&":
                holds = False if False in (holds, this) else None if None in (holds, this) else True
            else:
                holds = True if True in (holds, this) else None if None in (holds, this) else False
            joint = after
        return holds

    def _fields(self, token: Token, *, whole: bool = False) -> list[str]:
        fields = expand(token.text, self.variables)
        return (fields or [""]) if whole else fields

    def _run(self, statement: list[Token]) -> None:
        """Assign variables, or note a command."""
        for part, _ in _joined(statement, ("&&", "||", "|", "|&", "&")):
            words = [token for token in _without_redirections(part) if token.is_word]
            if words and words[0].text in DECLARING:
                words = [each for each in words[1:] if not each.text.startswith("-")]
                self._assign([each for each in words if _ASSIGNMENT.match(each.text)])
                continue
            before = 0
            while before < len(words) and _ASSIGNMENT.match(words[before].text):
                before += 1
            if before == len(words):
                self._assign(words)
                continue
            own = {
                match[1]: self._joined_value(match[3])
                for match in (_ASSIGNMENT.match(each.text) for each in words[:before])
                if match
            }
            fields = [field for token in words[before:] for field in self._fields(token)]
            documents = [
                text for each in part if each.text == DOCUMENT for text in each.elements or ()
            ]
            if fields[:1] == ["shift"]:
                self._shift(fields[1:])
            elif fields and not self._is_followed(words[before].line, fields, documents, own):
                line, *_ = [*self.nested, words[before].line]
                self.commands.append(Command(line, tuple(fields), own))

    def _shift(self, given: Sequence[str]) -> None:
        """Drop the first arguments, if they are known."""
        number = int(given[0]) if given and given[0].isdecimal() else 1
        if "#" in self.variables:
            self._give(parameters(self.variables["@"][number:]))

    def _is_followed(
        self, line: int, fields: list[str], documents: list[str], own: Mapping[str, str]
    ) -> bool:
        """True for a file that is sourced, or a text that a shell runs: their commands are read.

        Those of a text run as what starts its shell says, as `srun ... bash -c "..."`.
        """
        if len(self.nested) == DEEPEST or self.followed == MOST_FOLLOWED:
            return False
        launcher, text = shell_text(fields)
        program = program_name(fields[0])
        if text is None and documents and program in (*SHELLS, BATCH):
            text = documents[0]
        arguments = {key: self.variables[key] for key in POSITIONAL if key in self.variables}
        inner: Mapping[str, Value] = arguments
        if text is None and (call := script_call(fields, self.folder)):
            text = text_of_file(str(call.file))
            if call.arguments or program not in SOURCING:
                inner = parameters(call.arguments) if call.arguments else UNGIVEN
            self.variables |= {**own, **slurm_variables(batch_words(text))}
        if text is None:
            return False
        self.followed += 1
        if program == BATCH:
            self.variables |= slurm_variables(fields[1:])
        first = len(self.commands)
        self.nested.append(line)
        self._give(inner)
        self.read([*_statements(text)])
        self._give(arguments)
        self.nested.pop()
        self.commands[first:] = [
            each._replace(words=(*launcher, *each.words)) for each in self.commands[first:]
        ]
        return True

    def _give(self, arguments: Mapping[str, Value]) -> None:
        """Have these arguments of a script and no others."""
        others = {key: value for key, value in self.variables.items() if key not in POSITIONAL}
        self.variables = {**others, **arguments}

    def _joined_value(self, text: str) -> str:
        return " ".join(expand(text, self.variables))

    def _assign(self, words: Sequence[Token]) -> None:
        for token in words:
            match = _ASSIGNMENT.match(token.text)
            if match is None:
                continue
            name, appends, text = match[1], bool(match[2]), match[3]
            value: Value
            if token.elements is not None:
                value = [part for each in token.elements for part in expand(each, self.variables)]
            else:
                value = self._joined_value(text)
            self.variables[name] = _appended(self.variables.get(name), value) if appends else value

    def _leave_out(
        self, statement: Sequence[Token], keyword: str = "", *, decides: bool = True
    ) -> None:
        """Note a statement, and the variables that decide whether it is left out, if some do."""
        text = keyword + " ".join(token.text for token in statement)
        fields = " ".join(field for token in statement for field in self._fields(token))
        line = statement[0].line if statement else 0
        self.left_out.append(LeftOut(line, text, unknown_in(fields) if decides else ()))


def _appended(before: Value | None, value: Value) -> Value:
    if before is None:
        return value
    if isinstance(before, str) and isinstance(value, str):
        return before + value
    return [*([before] if isinstance(before, str) else before),
            *([value] if isinstance(value, str) else value)]  # fmt: skip


def read_script(
    path: str,
    text: str,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Script:
    """The commands of a script; raises `InvalidConfiguration` where its quotes are not closed."""
    reader = _Reader(Path(path).parent)
    reader.variables |= {**slurm_variables(batch_words(text)), **environment}
    reader.variables |= parameters(arguments) if arguments else UNGIVEN
    try:
        reader.read([*_statements(text)])
    except InvalidInput as error:
        raise InvalidConfiguration(FIELD, f"{path} is not a shell script: {error}") from None
    except RecursionError:
        raise InvalidConfiguration(FIELD, f"{path}: nested too deeply") from None
    return Script(tuple(reader.commands), reader.variables, tuple(reader.left_out))


def _statements(text: str) -> Iterator[list[Token]]:
    """The statements of a script, split at line ends and semicolons."""
    statement: list[Token] = []
    for token in tokens(text):
        if not token.is_word and token.text in (END, ";", ";;"):
            if statement and token.elements:
                statement.append(Token(DOCUMENT, token.line, False, token.elements))
            if statement and not (statement[-1].text in ("&&", "||", "|") and token.text == END):
                yield statement
                statement = []
        else:
            statement.append(token)
    if statement:
        yield statement


def _without_keywords(statement: list[Token], reader: _Reader) -> list[Token]:
    """The statement without `if`, `then` and the like; the reader notes conditions."""
    while statement:
        if patterns := _patterns(statement, reader):
            reader.pattern(patterns[::2])
            statement = statement[len(patterns) + 1 :]
            continue
        word, rest = statement[0].text, statement[1:]
        if word == "if":
            reader.condition(rest)
            return []
        if word == "elif":
            reader.otherwise(rest)
            return []
        if word == "else":
            reader.otherwise(None)
        elif word in ("fi", "esac"):
            if reader.branches:
                reader.branches.pop()
        elif word not in ("then", "do", "{", "}", "!"):
            break
        statement = rest
    return statement


def _patterns(statement: Sequence[Token], reader: _Reader) -> list[Token]:
    """The patterns of a branch of a `case`, and the bars between them, if it begins with some."""
    if not reader.branches or reader.branches[-1].subject is None:
        return []
    marks = [token.text for token in statement if not token.is_word]
    bars = marks.index(CLOSE) if CLOSE in marks else 0
    patterns = list(statement[: 2 * bars + 1])
    begins = CLOSE in marks and [each.is_word for each in patterns[::2]] == [True] * (bars + 1)
    closes = [token.text for token in statement[2 * bars + 1 : 2 * bars + 2]] == [CLOSE]
    return patterns if begins and closes else []


def _is_function(statement: Sequence[Token]) -> bool:
    texts = [token.text for token in statement[:3]]
    return texts[:1] == ["function"] or texts[1:3] == ["(", ")"]


def _after_block(statements: list[list[Token]], at: int, end: str) -> int:
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


def _joined(
    statement: Sequence[Token], joints: Sequence[str] = ("&&", "||")
) -> Iterator[tuple[list[Token], str]]:
    """The parts of a statement, each with the operator after it."""
    part: list[Token] = []
    for token in statement:
        if not token.is_word and token.text in joints:
            yield part, token.text
            part = []
        else:
            part.append(token)
    yield part, ""


def _without_redirections(part: Sequence[Token]) -> Iterator[Token]:
    skip = False
    for token in part:
        if skip:
            skip = False
        elif not token.is_word and token.text in REDIRECTIONS:
            skip = True
        else:
            yield token
