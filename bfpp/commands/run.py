"""`bfpp run`: train with a schedule, for real."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bfpp.api.running.jobs import (
    about,
    checked_plan,
    fail,
    is_first,
    job_of,
    require_torch,
    sleeps_of,
)
from bfpp.options import shared
from bfpp.options.cluster_files import noted_cluster
from bfpp.options.model import assumptions, with_assumptions
from bfpp.options.running.run import (
    add_device_arguments,
    add_model_arguments,
    add_process_arguments,
    limits_of,
)
from bfpp.options.running.settings import (
    device_settings,
    require_consistent,
    training_settings,
    uneven_experiment,
    with_file_values,
)
from bfpp.options.running.trained_model import source_of
from bfpp.options.running.training import add_training_arguments
from bfpp.reports.memory_tables import (
    memory_record,
    print_dry_run,
    print_memory,
    start_in_words,
    start_record,
)
from bfpp.reports.progress import listening, say
from bfpp.schedules import InvalidConfiguration
from bfpp.sim.costs.measured.profile import load_profile
from bfpp.terminal.error_lines import refusing
from bfpp.terminal.formats import METRICS, TIMELINE
from bfpp.terminal.number_types import index, whole_number
from bfpp.terminal.outputs import add_force_argument, add_output
from bfpp.terminal.parser import Parser
from bfpp.terminal.printing import print_json, print_table
from bfpp.traces.formats.timeline_json import save_timeline
from bfpp.traces.timeline.units import in_words

if TYPE_CHECKING:
    from bfpp.executor.plan.plan import Plan
    from bfpp.executor.run.session import TrainingResult
    from bfpp.executor.run.verification import Verification
    from bfpp.executor.train.job import Job

MOST_USED = (
    "model", "text", "pp", "dp", "microbatches", "loops", "steps", "precision", "checkpoint",
    "resume", "verify",
)  # fmt: skip
"""Options that help opens with."""

DRY_CLUSTER = "dgx-h100"
"""The cluster of a dry run that names none."""


def add_arguments(parser: Parser) -> None:
    """The options of `bfpp run`."""
    shared.add_schedule_argument(parser)
    shared.add_layout_arguments(parser, "cut")
    parser.open_with(*MOST_USED)
    shared.add_communication_arguments(parser, "dp_replicate", "offload_share")
    add_model_arguments(parser)
    add_device_arguments(parser)
    add_process_arguments(parser)
    add_training_arguments(parser)
    shared.add_uneven_arguments(parser)
    group = parser.add_argument_group("output")
    group.add_argument(
        "--dry-run",
        action="store_true",
        help="start nothing: print the tasks, process groups, communicators and memory of one rank",
    )
    group.add_argument(
        "--rank",
        type=index,
        metavar="R",
        help="process of --dry-run, numbered as torchrun's RANK (default: 0)",
    )
    group.add_argument(
        "--cluster",
        metavar="NAME|FILE",
        help="cluster that --dry-run is for, or whose peak MFU is a share of: a preset, or a TOML "
        f"file (default: {DRY_CLUSTER} for --dry-run, and no MFU)",
    )
    group.add_argument(
        "--verify",
        action="store_true",
        help="train again in a plain single-process loop and compare all losses and weights; exit "
        "with 1 if they differ by more than rounding",
    )
    add_output(
        group,
        "--trace",
        [TIMELINE],
        "write the timeline of the median step of the last 64, for bfpp show and bfpp diff",
    )
    add_output(
        group,
        "--metrics",
        [METRICS],
        "write a JSON line for each step as it ends; with --resume, append to those of the run "
        "before",
        grows=True,
    )
    group.add_argument(
        "--log-every",
        type=whole_number,
        metavar="N",
        help="print a line to standard error every N steps (default: one every few seconds unless "
        "it is a terminal; none with --json)",
    )
    add_force_argument(parser)
    shared.add_json_argument(parser)


def job_of_options(options: argparse.Namespace) -> Job:
    """The job of the options of `bfpp run`.

    Raises `InvalidConfiguration` for options that contradict each other, or cannot be run.
    """
    require_consistent(options)
    if options.cluster and is_first():
        noted_cluster(getattr(options, shared.COMMAND, None), options.cluster)
    options = with_file_values(options)
    experiment = uneven_experiment(options) or shared.pipeline(options)
    configuration = experiment.configuration
    if options.sleep and configuration.communication.offload:
        raise InvalidConfiguration("sleep", "keeps no activations: not with --offload")
    if options.sleep and configuration.degrees.tp > 1:
        raise InvalidConfiguration("sleep", "mocks whole layers: not with --tp")
    settings = training_settings(options)
    require_torch()
    settings |= device_settings(options)
    # An experiment file may ask for clipping without a norm to clip to, which only options give.
    clipped = experiment.changed(clipping=settings["optimization"].needs_norm)
    return job_of(clipped, source_of(options), **settings)


def run(options: argparse.Namespace) -> int:
    """Train, and report."""
    job = job_of_options(options)
    if options.dry_run:
        return _dry_run(options, job)
    from bfpp.api.running.run_memory import (
        memory_of_job,
        peak_seconds_of_step,
        require_memory,
        start_of_job,
    )
    from bfpp.executor.processes import STOPPED, RunFailed, Terminated, launch, prepare, use_cores
    from bfpp.executor.run.session import train
    from bfpp.executor.run.verification import verify

    prepare(options.interface)
    plan = checked_plan(job)
    if job.saving:
        _require_checkpoints(options, job, plan)
    assumed = assumptions(options) if is_first() else []
    predicted = memory_of_job(job, plan) if is_first() else []
    starts = start_of_job(job, plan) if is_first() else []
    if options.memory_check:
        require_memory(job, plan, predicted, starts)
    tokens = tokens_of_step(plan)
    peak_seconds = peak_seconds_of_step(job, plan, options.cluster) if options.cluster else None
    sleeps = (
        sleeps_of(load_profile(options.sleep), plan, uneven_experiment(options))
        if options.sleep
        else None
    )
    job = replace(job, collects_weights=options.verify, sleeps=sleeps)
    try:
        with listening(options, job, tokens, peak_seconds) as listener:
            limits = limits_of(options, peak_seconds)
            outcome = launch(train, job, job.processes, limits, listener, options.interface)
    except RunFailed as error:
        return fail("run", error)
    except Terminated:
        say("ended at once by SIGTERM")
        return STOPPED
    if outcome is None:  # a process of torchrun's that is not the first
        return 0
    if outcome.stopped:
        say(_stopped(outcome))
    use_cores(job.workers)
    verification = verify(plan, outcome) if options.verify and not outcome.stopped else None
    memory = memory_record(outcome.memory, predicted, plan.graph)
    record = _record(job, outcome, (tokens, peak_seconds), verification)
    record |= {"memory": memory, "start_memory": start_record(outcome.start, starts)}
    if options.json:
        print_json(with_assumptions(record, assumed))
    else:
        _print(job, record, outcome, verification)
        print_memory(memory)
    _write_trace(options, job, plan, outcome)
    if outcome.stopped:
        return STOPPED
    return 0 if verification is None or verification.is_exact else 1


def _dry_run(options: argparse.Namespace, job: Job) -> int:
    """Report on one rank of a job that is not run."""
    from bfpp.api.running.dry_run import dry_run

    assumed = assumptions(options)
    record = dry_run(job, options.rank or 0, options.cluster or DRY_CLUSTER)
    if options.json:
        print_json(with_assumptions(record, assumed))
    else:
        print_dry_run(record)
    return 0


def _stopped(outcome: TrainingResult) -> str:
    """Note on a run that SIGTERM stopped."""
    last = outcome.reports[-1].step
    if outcome.saved is None:
        return f"stopped by SIGTERM after step {last}; nothing is saved without --checkpoint"
    return f"stopped by SIGTERM after step {last}; saved {outcome.saved}, go on with --resume"


def _require_checkpoints(options: argparse.Namespace, job: Job, plan: Plan) -> None:
    """Raise `InvalidConfiguration` where the run could not begin, or never save.

    Before any process starts; of torchrun's, the first process is asked.
    """
    from bfpp.executor.checkpoint import CheckpointError, read_manifest, require_usable
    from bfpp.executor.run.history import require_same_training
    from bfpp.executor.run.resume import start_of, will_save

    saving = job.saving
    if saving is None or not is_first():
        return
    with refusing("resume" if saving.resumes else "checkpoint", CheckpointError):
        start = start_of(saving)
        if start:
            read_manifest(start.path)
        if options.verify and start:
            require_same_training(plan, start.path)
    with refusing("checkpoint", CheckpointError):
        if will_save(saving, job.steps):
            require_usable(saving.directory)


def tokens_of_step(plan: Plan) -> int:
    """Input of a step: tokens of a language model, else samples."""
    from bfpp.executor.devices.messages import tensors_of

    _, targets = plan.model.batch(0, range(1))
    largest = max((tensor.numel() for tensor in tensors_of(targets)), default=1)
    return int(largest) * plan.microbatches * plan.microbatch_size


def _write_trace(
    options: argparse.Namespace, job: Job, plan: Plan, outcome: TrainingResult
) -> None:
    if not options.trace:
        return
    from bfpp.executor.train.measured_timeline import replicas_of, timeline_of

    if outcome.columns is None:
        raise InvalidConfiguration("trace", "no step is left to trace")
    timeline = timeline_of(outcome.columns, plan.graph)
    memory = [each.held for each in outcome.memory if each.replica == each.tp_rank == 0]
    replicas = replicas_of(outcome.columns, plan.graph, plan.dp_replicate)
    timeline = replace(timeline, about=about(job), memory=memory, replicas=replicas)
    with options.trace.written() as path:
        save_timeline(timeline, path)


def _record(
    job: Job,
    outcome: TrainingResult,
    work: tuple[int, float | None],
    verification: Verification | None,
) -> dict[str, Any]:
    """The results; times in seconds. A step's `work` is its tokens, and its time at the peak."""
    tokens, peak_seconds = work
    seconds = [report.seconds for report in outcome.reports]
    elapsed = [report.elapsed for report in outcome.reports]
    record = {
        "schedule": job.schedule.name,
        "backend": str(job.backend),
        "first_step": outcome.first,
        "losses": [_finite(report.loss) for report in outcome.reports],
        "step_times": seconds,
        "median_step_time": statistics.median(seconds) if seconds else None,
        "elapsed_times": elapsed,
        "tokens_per_second": tokens / statistics.median(elapsed) if elapsed else None,
        "mfu": peak_seconds / statistics.median(elapsed) if elapsed and peak_seconds else None,
        "stopped": outcome.stopped,
        "saved": outcome.saved and str(outcome.saved),
        "resumed_from": outcome.resumed_from and str(outcome.resumed_from),
        "changed": [*outcome.changed],
        "skipped_steps": [report.step for report in outcome.reports if report.skipped],
        "evaluations": [
            {"step": step, "loss": _finite(loss)} for step, loss in outcome.evaluations
        ],
    }
    if _is_bound(outcome):
        record["numa_nodes"] = [*outcome.numa_nodes]
    if verification:
        record |= {
            "reference_losses": list(map(_finite, verification.reference_losses)),
            "max_loss_error": _finite(verification.max_loss_error),
            "max_weight_error": _finite(verification.max_weight_error),
            "movement_error": _finite(verification.movement_error),
            "tolerance": vars(verification.tolerance),
            "exact": verification.is_exact,
        }
    return record


def _is_bound(outcome: TrainingResult) -> bool:
    """True if a process stays on the CPUs of its GPU's NUMA node, of several."""
    return any(each is not None for each in outcome.numa_nodes)


def _finite(value: float) -> float | None:
    """The number, if it is one that JSON has: training may diverge."""
    return value if math.isfinite(value) else None


def _print(
    job: Job, record: Mapping[str, Any], outcome: TrainingResult, verification: Verification | None
) -> None:
    replicas = f", {job.dp} data-parallel replicas" if job.dp > 1 else ""
    divided = f", {job.tp} tensor-parallel ranks" if job.tp > 1 else ""
    layout = job.layout
    title = (
        f"{job.schedule.name}: {layout.pp} ranks, {layout.units} stages, "
        f"{layout.microbatches} micro-batches{replicas}{divided}"
    )
    if reports := outcome.reports:
        rows = [
            ("steps", f"{reports[0].step} to {reports[-1].step}"),
            ("loss, first and last", f"{reports[0].loss:.4f}, {reports[-1].loss:.4f}"),
            ("step time, median", in_words(record["median_step_time"])),
            ("iteration time, median", in_words(statistics.median(record["elapsed_times"]))),
            ("tokens per second", f"{record['tokens_per_second']:,.0f}"),
        ]
        if record["mfu"] is not None:
            rows.append(("MFU", f"{record['mfu']:.1%}"))
        if losses := [each.loss for each in outcome.evaluations]:
            rows.append(("evaluation, first and last", f"{losses[0]:.4f}, {losses[-1]:.4f}"))
        if skipped := record["skipped_steps"]:
            rows.append(("steps left out", ", ".join(map(str, skipped))))
    else:
        rows = [("steps", f"none left after {record['first_step']}")]
    rows.append(
        ("memory of a process before the first step", start_in_words(record["start_memory"]))
    )
    if _is_bound(outcome):
        nodes = ", ".join("-" if each is None else str(each) for each in outcome.numa_nodes)
        rows.append(("NUMA node of each process", nodes))
    if verification:
        rows += [
            ("matches the single-process reference", "yes" if verification.is_exact else "NO"),
            ("largest loss error", f"{verification.max_loss_error:.1e}"),
            ("largest weight error", f"{verification.max_weight_error:.1e}"),
            ("weight error (RMS, of the distance trained)", f"{verification.movement_error:.1e}"),
        ]
    print_table(title, ("", ""), rows)
