"""The commands of a shell script, with its variables written out; none of them is executed.

Assignments, arrays, tests of texts and numbers, sourced files, and texts that a shell is to run are
understood, and so is `case` of a known text. A test that depends on what runs, loops, functions and
other `case` are left out, and listed. Where a test asks whether a variable is set, which nothing
says, it is taken not to be, and an `exit` for that case not to be reached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType

from bfpp.launchers.arguments import FIELD
from bfpp.launchers.sources.command_words import BATCH, SHELLS, program_name
from bfpp.launchers.sources.documents import text_of_file
from bfpp.launchers.sources.gpu_counts import batch_words, slurm_variables
from bfpp.launchers.sources.shell_calls import (
    EVALUATING,
    POSITIONAL,
    SOURCING,
    UNGIVEN,
    parameters,
    script_call,
    shell_text,
    unknown_in,
)
from bfpp.launchers.sources.shell_files import WrittenFiles
from bfpp.launchers.sources.shell_parts import (
    ASSIGNMENT,
    Command,
    LeftOut,
    Script,
    ScriptBranch,
    Value,
    Variables,
)
from bfpp.launchers.sources.shell_statements import (
    BLOCKS,
    GROUPS,
    Document,
    after_block,
    bracket_in,
    documents_of,
    is_function,
    joined,
    patterns_of,
    statements_of,
    targets_of,
    without_redirections,
)
from bfpp.launchers.sources.shell_tests import chained, is_question, not_, questioned, tested
from bfpp.launchers.sources.shell_words import OPEN, Token, expanded_document
from bfpp.schedules import InvalidConfiguration, InvalidInput

DECLARING = ("export", "declare", "local", "readonly", "typeset")

CHAINED = ("&&", "||")
"""Operators by which a command runs if the one before it succeeded, or failed."""

EXIT, RETURN, REPLACING = "exit", "return", "exec"
"""Commands after which a script does not go on."""

DEEPEST, MOST_FOLLOWED = 8, 100
"""Files and texts that may be within each other, and in all."""


class _Reader:
    """Goes through the statements of a script."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.followed = 0
        self.nested: list[int] = []
        """Lines whose files or texts are read now, the outermost first."""
        self.variables = Variables()
        self.files = WrittenFiles(folder)
        self.commands: list[Command] = []
        self.left_out: list[LeftOut] = []
        self.branches: list[ScriptBranch] = []
        self.left: str | None = None
        """How the script was left, by `exit` or `return`: nothing that follows runs."""
        self.group_held: bool | None = True
        """The result of the group that ended last."""
        self.unset: dict[str, LeftOut] = {}
        self.supposes = False
        """Do the tests of this statement suppose that a variable is not set?"""

    @property
    def runs(self) -> bool:
        return self.left is None and all(branch.runs for branch in self.branches)

    def read(self, statements: list[list[Token]]) -> None:
        at = 0
        while at < len(statements):
            statement = _without_keywords(statements[at], self)
            end = BLOCKS.get(statement[0].text) if statement else None
            if end == "esac" and self._begins_case(statement):
                statement = []
            elif end or is_function(statement):
                if self.runs:
                    self._leave_out(statement, decides=end == "esac")
                at = after_block(statements, at, end or "}")
                continue
            rest = self._run_to_bracket(statement)
            if rest is None:
                at += 1
            else:
                statements[at] = rest

    def _run_to_bracket(self, statement: list[Token]) -> list[Token] | None:
        """Run a statement up to where a group begins or ends; returns the rest, if it has some."""
        at = bracket_in(statement, self.branches[-1].bracket if self.branches else "")
        before = statement if at is None else statement[:at]
        reached = self._run(before) if self.runs else self._skip(before)
        if at is None:
            return None
        if (bracket := statement[at].text) in GROUPS:
            self.branches.append(ScriptBranch(reached is not False, reached, bracket=bracket))
        else:
            self.group_held = self.branches.pop().ran
        return statement[at + 1 :]

    def condition(self, statement: Sequence[Token]) -> None:
        """Begin a branch by its condition."""
        self.supposes = False
        holds = self._holds(statement) if self.runs else False
        self.branches.append(ScriptBranch(holds, holds, supposes=self.supposes))
        if holds is None:
            self._leave_out(statement, "if ")

    def otherwise(self, statement: Sequence[Token] | None) -> None:
        """The next branch of the last `if`: by a condition, or else any."""
        if not self.branches:
            return
        before = self.branches[-1].ran
        self.supposes = self.branches[-1].supposes
        holds = None if before is None else False
        if before is False and self.runs_around():
            holds = True if statement is None else self._holds(statement)
            if holds is None:
                self._leave_out(statement or (), "elif ")
        ran = before or holds
        self.branches[-1] = ScriptBranch(before is False and holds, ran, supposes=self.supposes)

    def pattern(self, patterns: Sequence[Token]) -> None:
        """The next branch of the last `case`."""
        _, before, subject, *_ = self.branches[-1]
        texts = [" ".join(self.variables.fields(each, whole=True)) for each in patterns]
        holds = not before and any(fnmatchcase(subject or "", text) for text in texts)
        self.branches[-1] = ScriptBranch(holds, before or holds, subject)

    def _begins_case(self, statement: Sequence[Token]) -> bool:
        """Begin the branches of a `case`, if its text is known."""
        subject = " ".join(self.variables.fields(statement[1])) if len(statement) > 1 else "$"
        if not self.runs or "$" in subject or "`" in subject:
            return False
        self.branches.append(ScriptBranch(False, False, subject))
        return True

    def runs_around(self) -> bool:
        """True if the `if` itself is reached."""
        return all(branch.runs for branch in self.branches[:-1])

    def _holds(self, statement: Sequence[Token]) -> bool | None:
        """The result of tests joined by && and ||, from left to right; None where it is unknown."""
        return chained((self._tested(part), after) for part, after in joined(statement, CHAINED))

    def _tested(self, part: Sequence[Token]) -> bool | None:
        """The result of a test; the variable of which it asks whether it is set is not."""
        whole = any(token.text == "[[" for token in part)
        words = [word for token in part for word in self.variables.fields(token, whole=whole)]
        if name := questioned(words):
            text = " ".join(token.text for token in part)
            self.unset.setdefault(name, LeftOut(part[0].line, text, (name,)))
            self.supposes = True
            is_word = whole or any('"' in token.text for token in part)
            words = ["" if "$" in word else word for word in words if is_word or "$" not in word]
        return tested(words)

    def _run(self, statement: list[Token]) -> bool | None:
        """Run the parts that are reached; returns whether what follows the last one is.

        Commands that would run are taken to succeed; what depends on what only a run tells may run.
        """
        holds, self.group_held, self.supposes = self.group_held, True, False
        reached: bool | None = True
        for part, after in joined(statement, (*CHAINED, "&")):
            if part and reached is not False and self.left is None:
                holds = self._pipeline(part, certain=reached is True) if reached else None
            if after:
                reached = holds if after == "&&" else not_(holds) if after == "||" else True
        return reached

    def _pipeline(self, statement: Sequence[Token], *, certain: bool) -> bool | None:
        """Run commands whose output goes to the next; returns the result of the last."""
        holds: bool | None = True
        text: str | None = None
        for part, _ in joined(statement, ("|", "|&")):
            words = [token for token in without_redirections(part) if token.is_word]
            if words and words[0].text in DECLARING:
                words = [each for each in words[1:] if not each.text.startswith("-")]
                self.variables.assign([each for each in words if ASSIGNMENT.match(each.text)])
                continue
            before = 0
            while before < len(words) and ASSIGNMENT.match(words[before].text):
                before += 1
            if before == len(words):
                self.variables.assign(words)
                continue
            own = {
                match[1]: self.variables.text(match[3])
                for match in (ASSIGNMENT.match(each.text) for each in words[:before])
                if match
            }
            holds = self._command(words[before:], documents_of(part), own, certain=certain)
            text = self._written(words[before:], part, text)
        return holds

    def _written(
        self, words: Sequence[Token], part: Sequence[Token], given: str | None
    ) -> str | None:
        """The output of a command, which is kept for the files that it goes to, if it is plain."""
        for document in documents_of(part):
            expands = document.is_expanded
            given = expanded_document(document.text, self.variables) if expands else document.text
        fields = [field for token in words for field in self.variables.fields(token)]
        targets = [(self.variables.text(token.text), more) for token, more in targets_of(part)]
        return self.files.written(fields, given, targets)

    def _command(
        self,
        words: Sequence[Token],
        documents: Sequence[Document],
        own: dict[str, str],
        *,
        certain: bool,
    ) -> bool | None:
        """Note a command, or do what the shell itself does; returns its result."""
        fields = [field for token in words for field in self.variables.fields(token)]
        if (holds := self._tested(words)) is not None or not fields:
            return holds is not False
        certain = certain and not self.supposes
        certain = certain and all(each.ran and not each.supposes for each in self.branches)
        replaces = fields[0] == REPLACING and len(fields) > 1
        fields = fields[1:] if replaces else fields
        line, *_ = [*self.nested, words[0].line]
        if fields[0] == EXIT or (fields[0] == RETURN and self.nested):
            replaces = True
        elif fields[0] == "shift":
            self.variables.shift(fields[1:])
        elif not self._is_followed(words[0].line, fields, documents, own, certain=certain):
            self.commands.append(Command(line, tuple(fields), own))
        if replaces and certain:
            self._leave(fields[0])
        return None if is_question(fields[0]) else True

    def _skip(self, statement: Sequence[Token]) -> bool:
        """Variables of a part that is known not to run are empty, if nothing else sets them."""
        if all(branch.ran is not None for branch in self.branches):
            self.variables.leave_empty(statement)
        return False

    def _leave(self, how: str) -> None:
        """Run nothing more: of a subshell, or else of the script."""
        for at in reversed(range(len(self.branches))):
            if self.branches[at].bracket == OPEN:
                self.branches[at] = self.branches[at]._replace(runs=False)
                return
        self.left = how

    def _is_followed(
        self,
        line: int,
        fields: list[str],
        documents: Sequence[Document],
        own: Mapping[str, str],
        *,
        certain: bool,
    ) -> bool:
        """True for a file that is sourced, or a text that a shell runs: their commands are read.

        Those of a text run as what starts its shell says, as `srun ... bash -c "..."`.
        """
        if len(self.nested) == DEEPEST or self.followed == MOST_FOLLOWED:
            return False
        launcher, text = shell_text(fields)
        program = program_name(fields[0])
        if text is None and documents and program in (*SHELLS, BATCH):
            text = documents[0].text
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
        around, self.branches = self.branches, []
        self.variables.give(inner)
        self.read([*statements_of(text)])
        self.variables.give(arguments)
        self.nested.pop()
        self.branches = around
        if self.left == RETURN or not certain or program not in (*SOURCING, EVALUATING):
            self.left = None
        self.commands[first:] = [
            each._replace(words=(*launcher, *each.words)) for each in self.commands[first:]
        ]
        return True

    def _leave_out(
        self, statement: Sequence[Token], keyword: str = "", *, decides: bool = True
    ) -> None:
        """Note a statement, and the variables that decide whether it is left out, if some do."""
        text = keyword + " ".join(token.text for token in statement)
        fields = " ".join(field for token in statement for field in self.variables.fields(token))
        line = statement[0].line if statement else 0
        self.left_out.append(LeftOut(line, text, unknown_in(fields) if decides else ()))


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
        reader.read([*statements_of(text)])
    except InvalidInput as error:
        raise InvalidConfiguration(FIELD, f"{path} is not a shell script: {error}") from None
    except RecursionError:
        raise InvalidConfiguration(FIELD, f"{path}: nested too deeply") from None
    return Script(
        tuple(reader.commands),
        reader.variables,
        tuple(reader.left_out),
        reader.files.texts,
        tuple(reader.unset.values()),
    )


def _without_keywords(statement: list[Token], reader: _Reader) -> list[Token]:
    """The statement without `if`, `then` and the like; the reader notes conditions."""
    while statement:
        if patterns := reader.branches and patterns_of(statement, reader.branches[-1].subject):
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
        elif word not in ("then", "do", "!"):
            break
        statement = rest
    return statement
