"""The commands and examples of a page: what they are, what they print, and how they run.

On any page, README's too,

- a `console` block holds commands, `$ bfpp ...`, each with the lines that it prints, or none of
  them to leave that open. `...` stands for any text.
- a `python` block is an example that runs; blocks of one page share their names.
- a block with a title, such as `title="mine.py"`, is a file that the commands find.

They run in order, in a folder of their own: later ones read what earlier ones wrote. What takes
long (it trains, or ends with `# a minute`) runs when the site is built, and in the slow tests.
What else is to be read, and not run, is in blocks of other kinds (`py`, `text`, `bash`).
"""

from __future__ import annotations

import doctest
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_BLOCK = re.compile(r"^```(\w+)(?: title=\"(.+?)\")?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_TRAINS = re.compile(r"\b(launch|bfpp\.train)\(")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    title: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command, and the lines below it."""

    line: str
    printed: tuple[str, ...] = ()

    @cached_property
    def words(self) -> list[str]:
        """Its words, without what its output is written to."""
        words = shlex.split(self.line, comments=True)
        return words[: words.index(">")] if ">" in words else words

    @property
    def target(self) -> str | None:
        """The file that its output is written to."""
        words = shlex.split(self.line, comments=True)
        return words[words.index(">") + 1] if ">" in words else None

    @property
    def files(self) -> set[str]:
        """The files that it names."""
        return {word for word in shlex.split(self.line, comments=True) if "." in Path(word).name}

    @property
    def is_long(self) -> bool:
        """True if it starts processes with torch, or says that it takes a minute."""
        trains = self.words[0] == "torchrun" or self.words[1:2] in (["run"], ["calibrate"])
        return trains or self.line.endswith("# a minute")


@dataclass(frozen=True)
class Example:
    """Python code of a page."""

    code: str

    @property
    def is_long(self) -> bool:
        """True if it starts processes with torch."""
        return bool(_TRAINS.search(self.code))


Step = Command | Example


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    found = _BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [Block(each[1], each[2] or "", each[3]) for each in found]


def steps(page: Path) -> list[Step]:
    """The commands and examples of a page, in order."""
    found: list[Step] = []
    for block in blocks(page):
        if block.language == "console":
            found += _commands(block.text)
        elif block.language == "python" and not block.title:
            found.append(Example(block.text))
    return found


def _commands(text: str) -> Iterator[Command]:
    lines = text.rstrip("\n").split("\n")
    starts = [at for at, line in enumerate(lines) if line.startswith("$ ")]
    for at, until in zip(starts, [*starts[1:], len(lines)], strict=True):
        printed = "\n".join(lines[at + 1 : until]).rstrip("\n")
        yield Command(lines[at].removeprefix("$ "), tuple(printed.splitlines()))


def quick(page: Path) -> list[Step]:
    """Those that take seconds, and read nothing that the long ones write."""
    found: list[Step] = []
    missing: set[str] = set()
    given = {block.title for block in blocks(page)}
    for step in steps(page):
        needs = step.files - given if isinstance(step, Command) else set[str]()
        if step.is_long or missing & needs:
            missing |= needs
        else:
            found.append(step)
    return found


def run(page: Path, chosen: Sequence[Step]) -> None:
    """Run these steps of a page in the working folder; they must print what the page says."""
    for block in blocks(page):
        if block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")
    names: dict[str, object] = {"__name__": "__page__"}
    with _importing_from_here():
        for step in chosen:
            if isinstance(step, Example):
                with redirect_stdout(StringIO()):
                    code = compile(step.code, page.name, "exec", dont_inherit=True)
                    exec(code, names)  # noqa: S102
                continue
            printed = RUNNERS[step.words[0]](step.words)
            if step.target:
                Path(step.target).parent.mkdir(parents=True, exist_ok=True)
                Path(step.target).write_text(printed, encoding="utf-8")
            assert agrees(step, printed), f"{page.name}: {step.line} prints\n{printed}"


@contextmanager
def _importing_from_here() -> Iterator[None]:
    """A page's examples import its files, as they do where a reader has saved them."""
    here = str(Path.cwd())
    before = set(sys.modules)
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
        for name in set(sys.modules) - before:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(here):
                del sys.modules[name]


def agrees(command: Command, printed: str) -> bool:
    """True if the lines below a command are those that it prints."""
    if not command.printed:
        return True
    said = "".join(f"{line.rstrip()}\n" for line in command.printed)
    found = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    return doctest.OutputChecker().check_output(said, found, doctest.ELLIPSIS)


def _bfpp(words: Sequence[str]) -> str:
    from bfpp.command_line import main

    printed = StringIO()
    with redirect_stdout(printed):
        code = main(words[1:])
    assert code == 0, (code, shlex.join(words), printed.getvalue())
    return printed.getvalue()


def _torchrun(words: Sequence[str]) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", *words[1:]]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603


def _make(words: Sequence[str]) -> str:
    """Check that make has a target of that name; each is tested by itself."""
    targets = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{words[1]}:", targets, re.MULTILINE), words
    return ""


def _benchmarks(words: Sequence[str]) -> str:
    """Benchmarks take minutes: here, that all named ones are there."""
    from benchmarks.__main__ import NAMES

    assert words[1:3] == ["-m", "benchmarks"], words
    named = [word for word in words[3:] if not word.startswith("-") and "/" not in word]
    assert set(named) <= set(NAMES), words
    return ""


RUNNERS: dict[str, Callable[[Sequence[str]], str]] = {
    "bfpp": _bfpp,
    "torchrun": _torchrun,
    "make": _make,
    "python": _benchmarks,
}
"""How commands run, by their first word."""
