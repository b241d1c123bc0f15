"""Errors of your model's code on the meta device: reason, source line, and remedy."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from traceback import FrameSummary, StackSummary, extract_stack, extract_tb

import torch

OTHERS = (
    Path(torch.__file__).parent,
    Path(__file__).parents[1],
    Path(sysconfig.get_paths()["stdlib"]),
)
"""Directories of code that no user has written."""

VALUES = ("cannot be called on meta tensors", "with Meta tensors", "no data")
"""Torch's messages for values asked of meta tensors."""


def reason_of(error: BaseException) -> str:
    """An error of user code in one line: its message, and the line that raised it.

    Code that asks for values, of which there are none yet, gets a line of its own.
    """
    words = str(error).strip().split("\n")[0] or type(error).__name__
    where = _line_of(extract_tb(error.__traceback__))
    at = f" ({where})" if where else ""
    if asks_for_values(error):
        return (
            f"it needs the values of a tensor{at}, and only shapes are known before training: use "
            "torch.where, or a number that is no tensor"
        )
    return f"{words}{at}"


def asks_for_values(error: BaseException) -> bool:
    """True if code needed a tensor's values."""
    return any(words in str(error) for words in VALUES)


def line_here() -> str:
    """The innermost line of a user's code that is being run."""
    return _line_of(extract_stack())


def _line_of(trace: StackSummary) -> str:
    """The innermost line that a user has written: its file, its number and itself."""
    own = [each for each in trace if _is_users(each)]
    if not own:
        return ""
    last = own[-1]
    code = f": {last.line}" if last.line else ""
    return f"{Path(last.filename).name}:{last.lineno}{code}"


def _is_users(frame: FrameSummary) -> bool:
    """Code of packages that are installed is, but torch's."""
    file = Path(frame.filename)
    is_installed = "site-packages" in file.parts
    others = OTHERS[:1] if is_installed else OTHERS
    return frame.filename[:1] != "<" and not any(file.is_relative_to(each) for each in others)
