"""`bfpp run`: train with a schedule, for real."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bfpp import options as shared
from bfpp.results import print_json
from bfpp.training import add_model_arguments, add_training_arguments, job_of

if TYPE_CHECKING:
    from executor.job import Job
    from executor.plan import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp run`."""
    shared.add_schedule_argument(parser)
    shared.add_layout_arguments(parser)
    shared.add_communication_arguments(parser)
    add_model_arguments(parser)
    add_training_arguments(parser)
    group = parser.add_argument_group("what comes of it")
    group.add_argument(
        "--verify",
        action="store_true",
        help="train again in one plain loop, and compare all losses and weights; exit with 1 if "
        "they differ by more than rounding",
    )
    group.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write the timeline of the step whose time is the median, for bfpp show and bfpp diff",
    )
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Train, and report."""
    from executor.processes import Limits, RunFailed, launch
    from executor.session import train
    from executor.verification import verify

    job = job_of(options)
    plan = job.plan()
    tokens = tokens_of_step(plan)
    with _final(job, wanted=options.verify) as job, _progress(options, job, tokens) as advance:
        try:
            outcome = launch(train, job, job.processes, Limits(hang=options.patience), advance)
        except RunFailed as error:
            return _report_failure(error)
        if outcome is None:
            return 0
        found = verify(plan, outcome.reports, job.final) if job.final else None
    _write_trace(options, job, plan, outcome)
    record = _record(job, outcome, tokens, found)
    if options.json:
        print_json(record)
    else:
        _print(job, record, found)
    return 0 if found is None or found.is_exact else 1


@contextmanager
def _final(job: Job, *, wanted: bool) -> Iterator[Job]:
    """The job, with a place for its last weights if they are wanted."""
    from dataclasses import replace

    if not wanted:
        yield job
        return
    with tempfile.TemporaryDirectory(prefix="bfpp-") as directory:
        yield replace(job, final=Path(directory))


def tokens_of_step(plan: Plan) -> int:
    """What a step predicts: tokens of a language model, else samples."""
    _, targets = plan.model.batch(0, range(1))
    return int(targets.numel()) * plan.microbatches * plan.microbatch_size


@contextmanager
def _progress(
    options: argparse.Namespace, job: Job, tokens: int
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A bar on standard error, with the loss and how fast it goes."""
    console = Console(stderr=True)
    if options.json or not console.is_terminal:
        yield lambda message: None
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[told]}"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(job.schedule, total=job.steps, told="starting")

        def advance(message: Mapping[str, Any]) -> None:
            told = f"loss {message['loss']:.4f}, {tokens / message['seconds']:,.0f} tokens/s"
            bar.update(task, completed=message["step"] + 1, told=told)

        yield advance


def _report_failure(error: Exception) -> int: ...
