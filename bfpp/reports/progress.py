"""Progress of a run: a bar, log lines, the metrics file."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bfpp.api.running.jobs import about
from bfpp.executor.events import Listener, Message, to_all
from bfpp.executor.run import listeners
from bfpp.executor.run.listeners import LastWords, LogLines, MetricsFile, speed
from bfpp.terminal.error_lines import one_line

if TYPE_CHECKING:
    from bfpp.executor.train.job import Job


def say(line: str) -> None:
    """A line on standard error, in the command's name."""
    listeners.say(f"bfpp run: {one_line(line)}")


@contextmanager
def listening(
    options: argparse.Namespace, job: Job, tokens: int, peak_seconds: float | None
) -> Iterator[Listener]:
    """The listeners to a run that the options ask for, with `tokens` tokens in a step.

    It would take `peak_seconds` at the devices' peak, if that is known.

    A terminal gets a bar, and any other output log lines; with --json, each only
    if it is asked for.
    """
    console = Console(stderr=True)
    has_bar = console.is_terminal and not options.json
    heard: list[Listener] = [LastWords(say)]
    if options.metrics:
        appends = options.resume is not None
        heard.append(
            MetricsFile(options.metrics.path, _about(job), tokens, appends, say, peak_seconds)
        )
    if options.log_every or not (has_bar or options.json):
        heard.append(LogLines(tokens, options.log_every, peak_seconds=peak_seconds))
    if not has_bar:
        yield to_all(*heard)
        return
    with _bar(console, job, tokens, peak_seconds) as advance:
        yield to_all(advance, *heard)


def _about(job: Job) -> dict[str, object]:
    """The run's settings, for the metrics file."""
    layout, saving = job.layout, job.saving
    return {
        "schedule": job.schedule.name,
        **about(job),
        "microbatches": layout.microbatches,
        "loops": layout.loops,
        "units_per_stage": layout.units // layout.stages,
        "sharding": str(job.communication.sharding),
        "microbatch_size": job.microbatch_size,
        "learning_rate": job.optimization.learning_rate,
        "weight_decay": job.optimization.weight_decay,
        "clip": job.optimization.clip,
        "seed": job.seed,
        "checkpoint": saving and str(saving.directory),
    }


@contextmanager
def _bar(console: Console, job: Job, tokens: int, peak_seconds: float | None) -> Iterator[Listener]:
    """A bar on standard error, with the loss and how fast it goes."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(job.schedule.name, total=job.steps, state="starting")

        def advance(message: Message) -> None:
            if message["event"] == "step":
                fast = speed(tokens, peak_seconds, message["elapsed"])
                state = f"loss {message['loss']:.4f}, {fast}"
                bar.update(task, completed=message["step"] + 1, state=state)

        yield advance
