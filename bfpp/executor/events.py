"""The events of a run and their listeners: one seam for bars, logs, files and your own code.

A listener is any callable that takes an event. It is given to `launch` as
`on_message`, and called in the process that called `launch` (under torchrun, in
process 0). An event is a dict that JSON can hold; `event` says which it is:

- `begin`, once, before the first step: `first_step`, `steps` (where it ends),
  `resumed_from` (a checkpoint's path, or None), `notes` and `warnings` (lines).
- `step`, after each: `step`, `loss`, `seconds` (of its tasks), `elapsed` (since
  the step before was done, with the loading of the batch), `skipped` (why it was
  left out, or nothing).
- `evaluation`, after each: `step` (how many are done), `loss`, and over how many `steps` of
  held-out batches.
- `save`, after each: `step` (how many steps are in it) and `path`.
- `turn`, after each of `bfpp.executor.measure.turns`: `job` (its number), `seconds` and
  `elapsed` of each step, and `columns`, the times of tasks in the median step, from the first
  start on.
- `profile`, after a calibration between these: `profile`, the measurements.
- `end`, once: `how` (done, stopped, failed or interrupted) and `reason`.

A run that goes on reports no step twice; one that is resumed begins anew. Listeners
to other entries than these receive only `end`. An exception
of a listener ends the run and is raised by `launch`; under torchrun, it is a
failure of process 0. A listener that must not end a run catches its own errors,
as `bfpp.executor.run.listeners.MetricsFile` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Message = Mapping[str, Any]
"""An event: a mapping that JSON can hold."""

Listener = Callable[[Message], None]


def begun(
    first_step: int,
    steps: int,
    resumed_from: Path | None,
    notes: Sequence[str],
    warnings: Sequence[str],
) -> Message:
    """A run is about to train the steps from the first one to `steps`, exclusively."""
    return {
        "event": "begin",
        "first_step": first_step,
        "steps": steps,
        "resumed_from": resumed_from and str(resumed_from),
        "notes": [*notes],
        "warnings": [*warnings],
    }


def stepped(**report: Any) -> Message:
    """A step is done, or was left out: all that its `executor.training.Report` says."""
    return {"event": "step", **report}


def evaluated(step: int, loss: float, steps: int) -> Message:
    """The mean loss over `steps` steps of held-out batches, after `step` steps of training."""
    return {"event": "evaluation", "step": step, "loss": loss, "steps": steps}


def saved(step: int, path: Path) -> Message:
    """A checkpoint after `step` steps is complete."""
    return {"event": "save", "step": step, "path": str(path)}


def taken(
    job: int,
    seconds: Sequence[float],
    elapsed: Sequence[float],
    columns: Sequence[Any],
    clocks: Mapping[str, Any],
) -> Message:
    """A job has had its turn; before it, `clocks` were compared."""
    return {
        "event": "turn",
        "job": job,
        "seconds": [*seconds],
        "elapsed": [*elapsed],
        "columns": columns,
        "clocks": clocks,
    }


def calibrated(profile: Mapping[str, Any]) -> Message:
    """A calibration is done."""
    return {"event": "profile", "profile": profile}


def ended(how: str, reason: str = "") -> Message:
    """The run is over."""
    return {"event": "end", "how": how, "reason": reason}


def to_all(*listeners: Listener) -> Listener:
    """Passes each event to several listeners in turn."""

    def send(message: Message) -> None:
        for listener in listeners:
            listener(message)

    return send
