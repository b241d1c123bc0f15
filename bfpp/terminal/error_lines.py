"""Errors as the one line that a user reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bfpp.schedules import InvalidConfiguration, InvalidInput

OPTION_OF_FIELD = {
    "schedule": "SCHEDULE",
    "file": "FILE",
    "sleep": "--mock-compute",
    "ends": "--embedding-stage",
    "activations": "--recompute",
    "keeps_float32": "--keep-fp32",
    "evaluation": "--evaluate-every",
}
"""The option that sets a field of a configuration; by default `--field`."""


LONGEST = 4000
"""Letters of a message: a file may hold a name of any length, and have it quoted."""


def explain(error: InvalidInput) -> str:
    """One line that names the option at fault, if the error names it, and the reason."""
    text = str(error)
    if isinstance(error, InvalidConfiguration):
        option = OPTION_OF_FIELD.get(error.field, "--" + error.field.replace("_", "-"))
        text = f"{option}: {error.reason}"
    line = one_line(text)
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."


def one_line(text: str) -> str:
    """The text without line breaks, and with terminal control characters escaped."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in " ".join(text.split())
    )


@contextmanager
def blaming(option: str) -> Iterator[None]:
    """Names the option whose file cannot be read or written, or holds something else."""
    try:
        yield
    except InvalidConfiguration as error:
        is_known = error.field == "file" or option == f"--{error.field}"
        reason = error.reason if is_known else error
        raise InvalidInput(f"{option}: {reason}") from None
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{option}: is not text: byte {error.start} is not UTF-8") from None
    except OSError as error:
        raise InvalidInput(f"{option}: {_reason(error, option)}") from None


@contextmanager
def refusing(field: str, error: type[Exception]) -> Iterator[None]:
    """Names the field of a configuration for which something is refused."""
    try:
        yield
    except error as refused:
        raise InvalidConfiguration(field, str(refused)) from None


def _reason(error: OSError, option: str) -> str:
    """With the file's name, unless the field at fault has it already."""
    name = "" if error.filename is None else str(error.filename)
    where = f"{name}: " if name and not option.endswith(f": {name}") else ""
    return where + (error.strerror or str(error))
