"""Files that a command writes: declared by their options, checked before any work.

Theory of operation: an option that is declared by `add_output` has an `Output` for its
value, so that the command line finds all outputs of any command. Before the command
runs, `prepared` checks all of them, makes their folders, and tries to write there. When
it has printed its results, the command writes each file in `Output.written`: to a
temporary file, moved into place once all of it is on disk. So the file is either
complete or unchanged.

- The name's ending fits the format, and decides it where an option has several.
- No two outputs are one file, and none is an input of the same command.
- Links are followed only from a name that the user gave.
- An existing file is overwritten only if it is one of ours, or with `--force`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from errno import EISDIR, ENOTDIR
from functools import partial
from importlib import import_module
from itertools import combinations
from pathlib import Path
from secrets import token_hex
from stat import S_ISREG
from tempfile import TemporaryFile

from bfpp.schedules import InvalidInput
from bfpp.schedules.formats.python_file import MARK, file_of
from bfpp.terminal.error_lines import blaming, one_line
from bfpp.terminal.formats import FileFormat
from bfpp.terminal.printing import announce

FILE_ENDINGS = (".toml", ".json", ".csv")
"""Endings of file names, where a preset's name is valid too: no schedule or preset ends so."""


@dataclass(frozen=True)
class Output:
    """A file that is to be written, or the folder of some files (`is_folder`).

    One that `grows` is written to as the command goes on, after what it holds already. Where the
    user has not named the file itself, but its folder, it must not be a link (`is_inside`).
    """

    option: str
    path: Path
    formats: tuple[FileFormat, ...]
    is_folder: bool = False
    grows: bool = False
    is_inside: bool = False

    @property
    def format(self) -> FileFormat:
        """The format that the name's ending stands for."""
        return next(each for each in self.formats if _ends(self.path.name, each))

    @property
    def place(self) -> Path:
        """The file itself, where the path is that of a link."""
        if self.is_inside:
            return Path(os.path.realpath(self.path.parent), self.path.name)
        return Path(os.path.realpath(self.path))

    @contextmanager
    def written(self) -> Iterator[Path]:
        """A path to write to; its content in the end is moved, complete, to the file's name.

        Raises `InvalidInput` if it cannot be written; then nothing has changed.
        """
        place = self.place
        ending = next((each for each in self.format.suffixes if place.name.endswith(each)), "")
        # Beside the file: a move is all or nothing within one file system only.
        aside = place.with_name(f".{token_hex(8)}{ending}")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            yield aside
            if place.exists():
                shutil.copymode(place, aside)
            aside.replace(place)
        except OSError as error:
            reason = error.strerror or error
            raise InvalidInput(f"{self.option}: {self.path}: {reason}") from None
        finally:
            with suppress(OSError):
                aside.unlink(missing_ok=True)
        announce(self.path)

    def inside(self, name: str, format_: FileFormat) -> Output:
        """A file in the folder that this is."""
        return Output(self.option, self.path / name, (format_,), is_inside=True)

    def require_ours(self, force: bool) -> None:
        """Raises unless the path is free, or is a regular file that may be overwritten."""
        place = self.place
        if self.is_inside and place.is_symlink():
            raise InvalidInput(f"{self.option}: {self.path} is a link, and may lead anywhere")
        if not place.exists():
            return
        if place.is_dir():
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR), str(self.path))
        status = place.stat()
        if not S_ISREG(status.st_mode):
            raise InvalidInput(f"{self.option}: {self.path} is not a regular file")
        with place.open("ab"):  # whether it may be written to
            pass
        alike = [each for each in self.formats if each.suffixes == self.format.suffixes]
        if not status.st_size or any(each.is_ours(place) for each in alike):
            return
        if not force:
            raise InvalidInput(
                f"{self.option}: {self.path} already exists, and bfpp did not write it as "
                f"{self.format.title}; --force overwrites it"
            )
        if self.grows:
            os.truncate(place, 0)


def add_output(
    group: argparse._ActionsContainer,
    option: str,
    formats: Sequence[FileFormat],
    purpose: str,
    *,
    required: bool = False,
    grows: bool = False,
) -> None:
    """An option that names a file to write, in one of these formats by its ending."""
    kind = partial(_file, Output(option, Path(), tuple(formats), grows=grows))
    group.add_argument(option, type=kind, metavar="FILE", help=purpose, required=required)


def add_output_folder(
    group: argparse._ActionsContainer,
    option: str,
    default: Path | None,
    purpose: str,
    *,
    required: bool = False,
) -> None:
    """An option that names a folder to write files to."""
    declared = Output(option, default or Path(), (), is_folder=True)
    group.add_argument(
        option,
        type=partial(_folder, declared),
        default=default and declared,
        metavar="DIR",
        help=purpose,
        required=required,
    )


def add_force_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--force`, for every command that has outputs."""
    parser.add_argument(
        "--force", action="store_true", help="overwrite files that bfpp did not write"
    )


def _folder(declared: Output, text: str) -> Output:
    return replace(declared, path=Path(text))


def _file(declared: Output, text: str) -> Output:
    name = Path(text).name
    if not name or not any(_ends(name, each) for each in declared.formats):
        known = " or ".join(suffix for each in declared.formats for suffix in each.suffixes)
        what = f"must end in {known}" if known else "must name a file"
        raise argparse.ArgumentTypeError(f"{what}, not {text!r}")
    return replace(declared, path=Path(text))


def _ends(name: str, format_: FileFormat) -> bool:
    return not format_.suffixes or name.endswith(format_.suffixes)


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[None]:
    """Checks all outputs, and makes their folders; those stay empty only if all goes well."""
    outputs = [value for value in vars(options).values() if isinstance(value, Output)]
    _require_apart(outputs, options)
    made: list[Path] = []
    try:
        for output in outputs:
            with blaming(output.option):
                made += _made_ready(output, getattr(options, "force", False))
        yield
    except BaseException:
        for folder in reversed(made):
            with suppress(OSError):
                folder.rmdir()
        raise


def _made_ready(output: Output, force: bool) -> list[Path]:
    """The folders made for it, outermost first."""
    folder = output.place if output.is_folder else output.place.parent
    missing = []
    for each in (folder, *folder.parents):
        if each.exists():
            if not each.is_dir():
                named = output.path if each == output.place else each
                raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR), str(named))
            break
        missing.append(each)
    if not output.is_folder:
        output.require_ours(force)
        require_installed(output.option, output.format)
    folder.mkdir(parents=True, exist_ok=True)
    with _about(output), TemporaryFile(dir=folder):
        pass
    return missing[::-1]


def require_installed(option: str, format_: FileFormat) -> None:
    """Raises `InvalidInput` without the package that writes the format."""
    if format_.needs is None:
        return
    package, extra = format_.needs
    try:
        import_module(package)
    except (ImportError, OSError) as error:  # an installed one may lack a library of the system
        ending = format_.suffixes[0]
        raise InvalidInput(
            f"{option}: {ending} needs bfpp[{extra}]: {one_line(str(error))}"
        ) from None


@contextmanager
def _about(output: Output) -> Iterator[None]:
    """Names the output, not the file by which it was tried whether it can be written."""
    try:
        yield
    except OSError as error:
        raise InvalidInput(f"{output.option}: {output.path}: {error.strerror or error}") from None


def _require_apart(outputs: Sequence[Output], options: argparse.Namespace) -> None:
    for one, other in combinations(outputs, 2):
        if one.place == other.place or _is_same(one.path, other.path):
            raise InvalidInput(f"{one.option}, {other.option}: both name {other.path}")
    read = [*_files_read(options)]
    for output in outputs:
        if any(_is_same(output.path, each) for each in read):
            raise InvalidInput(f"{output.option}: {output.path} is what this command reads")
        if _is_standard_output(output.path):
            raise InvalidInput(f"{output.option}: {output.path} is also standard output")


def _files_read(options: argparse.Namespace) -> Iterator[str | Path]:
    """The paths among the options' values, and the texts that name a file, not a preset."""
    for value in vars(options).values():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Path) or (isinstance(each, str) and each.endswith(FILE_ENDINGS)):
                yield each
            elif isinstance(each, str) and MARK in each:
                yield file_of(each)


def _is_same(one: str | Path, other: str | Path) -> bool:
    try:
        return Path(one).samefile(other)
    except (OSError, ValueError):
        return False


def _is_standard_output(path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(sys.stdout.fileno()), path.stat())
    except (OSError, ValueError, AttributeError):
        return False
