"""The commands of a shell script, with its variables written out; none of them is executed.

Assignments, arrays, tests of texts and numbers, sourced files, and texts that a shell is to run are
understood. A test that depends on what runs, loops, functions and `case` are left out, and listed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from bfpp.launchers.arguments import FIELD
from bfpp.launchers.sources.documents import text_of_file
from bfpp.launchers.sources.gpu_counts import slurm_variables
from bfpp.launchers.sources.shell_words import END, Token, expand, tokens
from bfpp.schedules import InvalidConfiguration, InvalidInput
from bfpp.schedules.reading import exists

DECLARING = ("export", "declare", "local", "readonly", "typeset")

REDIRECTIONS = (">", ">>", "<", "&>", "&>>", ">&", "<&", "<<<")

BLOCKS = {"for": "done", "while": "done", "until": "done", "select": "done", "case": "esac"}
"""Keywords whose commands are left out, and the ends of these."""

SHELLS, SOURCING, BATCH = ("bash", "sh"), ("source", "."), "sbatch"
"""Programs that run a text or a file."""

DEEPEST, MOST_FOLLOWED = 8, 100
"""Files and texts that may be within each other, and in all."""

DOCUMENT = "<<EOF"
"""The token that has the here-documents of a statement."""

_UNKNOWN_FOLDER = re.compile(r"^(?:\$\(.*\)|`.*`|\$\{?\w+\}?)/")
"""A folder that only a run tells, which is most often that of the script."""

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_BATCH = re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE)

Value = str | list[str]


class Command(NamedTuple):
    """A command's words and variables set for it alone, in a line."""

    line: int
    words: tuple[str, ...]
    environment: dict[str, str]


class Script(NamedTuple):
    """A script's commands in order, its variables at the end, and omitted parts, by line."""

    commands: tuple[Command, ...]
    variables: dict[str, Value]
    left_out: tuple[tuple[int, str], ...]


class _Reader:
    """Goes through the statements of a script."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.followed = 0
        self.nested: list[int] = []
        """Lines whose files or texts are read now, the outermost first."""
        self.variables: dict[str, Value] = {"@": []}  # a script is read without arguments
        self.commands: list[Command] = []
        self.left_out: list[tuple[int, str]] = []
        self.branches: list[list[bool | None]] = []
        """For each open `if`: does this branch run, and did one before it; None: not known."""

    @property
    def runs(self) -> bool:
        return all(branch[0] for branch in self.branches)

    def read(self, statements: list[list[Token]]) -> None:
        at = 0
        while at < len(statements):
            statement = _without_keywords(statements[at], self)
            end = BLOCKS.get(statement[0].text) if statement else None
            if end or _is_function(statement):
                if self.runs:
                    self._leave_out(statement)
                at = _after_block(statements, at, end or "}")
                continue
            if statement and self.runs:
                self._run(statement)
            at += 1

    def condition(self, statement: Sequence[Token]) -> None:
        """Begin a branch by its condition."""
        holds = self._holds(statement) if self.runs else False
        self.branches.append([holds, holds])
        if holds is None:
            self._leave_out(statement, "if ")

    def otherwise(self, statement: Sequence[Token] | None) -> None:
        """The next branch of the last `if`: by a condition, or else any."""
        if not self.branches:
            return
        branch = self.branches[-1]
        before = branch[1]
        branch[0] = False
        if before is False and self.runs_around():
            branch[0] = True if statement is None else self._holds(statement)
            branch[1] = branch[0]

    def runs_around(self) -> bool:
        """True if the `if` itself is reached."""
        return all(branch[0] for branch in self.branches[:-1])

    def _holds(self, statement: Sequence[Token]) -> bool | None:
        """The result of tests joined by && and ||, from left to right; None where it is unknown."""
        holds: bool | None = True
        joint = "&&"
        for part, after in _joined(statement):
            this = _tested([word for token in part for word in self._fields(token, whole=True)])
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
            if fields and not self._is_followed(words[before].line, fields, documents):
                line, *_ = [*self.nested, words[before].line]
                self.commands.append(Command(line, tuple(fields), own))

    def _is_followed(self, line: int, fields: list[str], documents: list[str]) -> bool:
        """True for a file that is sourced, or a text that a shell runs: their commands are read.

        Those of a text run as what starts its shell says, as `srun ... bash -c "..."`.
        """
        if len(self.nested) == DEEPEST or self.followed == MOST_FOLLOWED:
            return False
        launcher, text = _shell_text(fields)
        program = PurePosixPath(fields[0]).name or "."
        if text is None and documents and program in (*SHELLS, BATCH):
            text = documents[0]
        if text is None and program in (*SOURCING, *SHELLS, BATCH):
            files = [self.folder / _UNKNOWN_FOLDER.sub("", field) for field in fields[1:]]
            file = next((each for each in files if exists(each) and each.is_file()), None)
            text = text_of_file(str(file)) if file else None
            self.variables |= slurm_variables(_batch_words(text or ""))
        if text is None:
            return False
        self.followed += 1
        if program == BATCH:
            self.variables |= slurm_variables(fields[1:])
        first = len(self.commands)
        self.nested.append(line)
        self.read([*_statements(text)])
        self.nested.pop()
        self.commands[first:] = [
            each._replace(words=(*launcher, *each.words)) for each in self.commands[first:]
        ]
        return True

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

    def _leave_out(self, statement: Sequence[Token], keyword: str = "") -> None:
        text = keyword + " ".join(token.text for token in statement)
        self.left_out.append((statement[0].line if statement else 0, text))


def _shell_text(fields: list[str]) -> tuple[list[str], str | None]:
    """The text that a command has a shell run, and the words before the shell."""
    if fields[0] == "eval":
        return [], " ".join(fields[1:])
    for at, word in enumerate(fields[:-1]):
        if word == "-c" and any(PurePosixPath(each).name in SHELLS for each in fields[:at]):
            begins = next(n for n, each in enumerate(fields) if PurePosixPath(each).name in SHELLS)
            return fields[:begins], fields[at + 1]
    return [], None


def _appended(before: Value | None, value: Value) -> Value:
    if before is None:
        return value
    if isinstance(before, str) and isinstance(value, str):
        return before + value
    return [*([before] if isinstance(before, str) else before),
            *([value] if isinstance(value, str) else value)]  # fmt: skip


def read_script(path: str, text: str) -> Script:
    """The commands of a script; raises `InvalidConfiguration` where its quotes are not closed."""
    reader = _Reader(Path(path).parent)
    reader.variables |= slurm_variables(_batch_words(text))
    try:
        reader.read([*_statements(text)])
    except InvalidInput as error:
        raise InvalidConfiguration(FIELD, f"{path} is not a shell script: {error}") from None
    except RecursionError:
        raise InvalidConfiguration(FIELD, f"{path}: nested too deeply") from None
    return Script(tuple(reader.commands), reader.variables, tuple(reader.left_out))


def _batch_words(text: str) -> list[str]:
    """The options of sbatch in a script."""
    return [word for line in _BATCH.findall(text) for word in line.split()]


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
        word, rest = statement[0].text, statement[1:]
        if word == "if":
            reader.condition(rest)
            return []
        if word == "elif":
            reader.otherwise(rest)
            return []
        if word == "else":
            reader.otherwise(None)
        elif word == "fi":
            if reader.branches:
                reader.branches.pop()
        elif word not in ("then", "do", "{", "}", "!"):
            break
        statement = rest
    return statement


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


def _tested(words: Sequence[str]) -> bool | None:
    """The result of `[ ... ]` or `[[ ... ]]`; None where it depends on a command that runs."""
    if words[:1] not in (["["], ["[["]) or len(words) < 3:
        return None
    inside = [word for word in words[1:-1] if word not in ("(", ")")]
    if inside[:1] == ["!"]:
        result = _compared(inside[1:])
        return None if result is None else not result
    return _compared(inside)


def _compared(inside: Sequence[str]) -> bool | None:
    if any("$" in word or "`" in word for word in inside):
        return None
    match inside:
        case ["-n", text]:
            return bool(text)
        case ["-z", text]:
            return not text
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
