"""Listeners of a run: a metrics file, log lines, and a summary if it fails."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from bfpp.executor.events import Message
from bfpp.traces.timeline.units import in_words

AT_FIRST = 10
"""The first steps, with a line each."""

SECONDS = 5.0
"""Seconds between two lines after that."""

Say = Callable[[str], None]


def say(line: str) -> None:
    """A line on standard error."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201


def mfu(peak_seconds: float | None, elapsed: float) -> float | None:
    """Model FLOPs utilisation of a step that would take `peak_seconds` at the devices' peak."""
    return peak_seconds / elapsed if peak_seconds is not None and elapsed > 0 else None


def speed(tokens: int, peak_seconds: float | None, elapsed: float) -> str:
    """The speed of a step: `5,000 tokens/s, MFU 41.2 %`."""
    share = mfu(peak_seconds, elapsed)
    return f"{tokens / elapsed:,.0f} tokens/s" + (f", MFU {share:.1%}" if share else "")


class MetricsFile:
    """JSON lines: the run, each step, evaluation and checkpoint, and how the run ended.

    Each event is written at once, that of a step with its MFU where `peak_seconds` are known, which
    it would take at the devices' peak. A resumed run (`appends`) continues the file with a
    begin line of its own; if a step occurs twice, the later line counts. Each line
    names the `run` that wrote it.

    A failing disk does not end the run: it is reported once, and the lines are kept
    and written with the next one.
    """

    def __init__(
        self,
        path: Path,
        about: Mapping[str, Any],
        tokens: int,
        appends: bool = False,
        say: Say = say,
        peak_seconds: float | None = None,
    ) -> None:
        self._path, self._about, self._say = path, about, say
        self._tokens, self._peak_seconds = tokens, peak_seconds
        self._run = uuid4().hex[:8]
        self._flags = os.O_APPEND | (0 if appends else os.O_TRUNC)
        self._file: int | None = None
        self._left = b""
        self._has_begun = self._has_failed = False
        self._turn = threading.Lock()

    def __call__(self, message: Message) -> None:
        """Write the line of an event."""
        event = str(message.get("event"))
        self._has_begun |= event == "begin"
        if event not in LINES or not self._has_begun:  # the file of an earlier run stays
            return
        line = {
            "event": event,
            "run": self._run,
            **LINES[event](self, message),
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }
        # When a run fails, another thread may report its end.
        if self._turn.acquire(timeout=1.0):
            try:
                self._left += json.dumps(line, allow_nan=False).encode() + b"\n"
                self._write()
                if event == "end":
                    self._close()
            finally:
                self._turn.release()

    def _begin(self, message: Message) -> Mapping[str, Any]:
        steps = {key: message[key] for key in ("first_step", "steps", "resumed_from")}
        return {**self._about, **steps, "tokens_per_step": self._tokens, "process": os.getpid()}

    def _step(self, message: Message) -> Mapping[str, Any]:
        elapsed = message["elapsed"]
        return {
            **self._with_loss(message),
            "tokens_per_second": self._tokens / elapsed if elapsed > 0 else None,
            "mfu": mfu(self._peak_seconds, elapsed),
        }

    def _with_loss(self, message: Message) -> Mapping[str, Any]:
        loss = message["loss"]
        return {**self._fields(message), "loss": loss if math.isfinite(loss) else None}

    def _fields(self, message: Message) -> Mapping[str, Any]:
        return {key: value for key, value in message.items() if key != "event"}

    def _write(self) -> None:
        try:
            if self._file is None:
                self._file = self._opened()
            while self._left:
                written = os.write(self._file, self._left)
                self._left = self._left[written:]
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                self._say(
                    f"{self._path}: {error.strerror}: metrics are kept, and tried again with the "
                    "next step; the run goes on"
                )

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _opened(self) -> int:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | self._flags, 0o666)
        self._flags = os.O_APPEND
        length = os.fstat(file).st_size
        if length and os.pread(file, 1, length - 1) != b"\n":
            self._left = b"\n" + self._left  # its writer was interrupted within a line
        return file


LINES: Mapping[str, Callable[[MetricsFile, Message], Mapping[str, Any]]] = {
    "begin": MetricsFile._begin,
    "step": MetricsFile._step,
    "evaluation": MetricsFile._with_loss,
    "save": MetricsFile._fields,
    "end": MetricsFile._fields,
}
"""The fields of each event's line, besides the event, the run and the time."""


class LogLines:
    """A line for each of the first steps, then every few seconds; or every `every` steps.

    Also the notes at the beginning of a run.
    """

    def __init__(
        self,
        tokens: int,
        every: int | None = None,
        say: Say = say,
        clock: Callable[[], float] = time.monotonic,
        peak_seconds: float | None = None,
    ) -> None:
        self._every, self._say, self._clock = every, say, clock
        self._tokens, self._peak_seconds = tokens, peak_seconds
        self._steps = 0
        self._lines = 0
        self._last = -math.inf

    def __call__(self, message: Message) -> None:
        """Print the lines that are due."""
        event = message.get("event")
        if event == "begin":
            self._steps = message["steps"]
            for note in message["notes"]:
                self._say(note)
        if event == "evaluation":
            self._say(
                f"evaluation after step {message['step'] - 1}: loss {message['loss']:.4f} over "
                f"{message['steps']} steps of held-out batches"
            )
        if event == "step" and self._is_due(message["step"]):
            self._lines, self._last = self._lines + 1, self._clock()
            elapsed = message["elapsed"]
            self._say(
                f"step {message['step']} of {self._steps}: loss {message['loss']:.4f}, "
                f"{in_words(elapsed)}, {speed(self._tokens, self._peak_seconds, elapsed)}"
            )

    def _is_due(self, step: int) -> bool:
        if self._every is not None:
            return step % self._every == 0
        return self._lines < AT_FIRST or self._clock() >= self._last + SECONDS


class LastWords:
    """The warnings of a run: at its beginning, for skipped steps, and after a failure."""

    def __init__(self, say: Say = say) -> None:
        self._say = say
        self._losses: list[tuple[int, float]] = []
        self._saved = ""

    def __call__(self, message: Message) -> None:
        """Print a line that a user must see in every mode."""
        event = message.get("event")
        if event == "begin":
            for warning in message["warnings"]:
                self._say(warning)
        if event == "step" and message["skipped"]:
            self._say(f"step {message['step']} is skipped: {message['skipped']}")
        if event == "step":
            self._losses.append((message["step"], message["loss"]))
        if event == "save":
            self._saved = f"; the last checkpoint is {message['path']}"
        if event == "end" and message["how"] in ("failed", "interrupted") and self._losses:
            (first, before), *_, (last, after) = [self._losses[0], *self._losses]
            self._say(
                f"done before: steps {first} to {last}; loss, first and last: "
                f"{before:.4f}, {after:.4f}{self._saved}"
            )
