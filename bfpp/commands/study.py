"""`bfpp study`: a grid of experiments, predicted, run and compared."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bfpp.api.running.jobs import fail, is_first, require_torch, this_machine
from bfpp.api.study.estimate import Estimate, estimate, step_estimates
from bfpp.api.study.hosts.job_files import JobPaths, job_file
from bfpp.api.study.hosts.study_hosts import JOBS, HostKind
from bfpp.api.study.journal import NAME, StudyJournal
from bfpp.api.study.results import NETWORK, results_of
from bfpp.api.study.study import Study, StudyCell
from bfpp.api.study.study_file import read_study
from bfpp.api.study.table import TABLE
from bfpp.options import shared
from bfpp.options.cluster_notes import doubts_of, note_doubts
from bfpp.reports.pictures import write_figure
from bfpp.reports.studies import drawn, print_study, write_study_page, write_study_table
from bfpp.schedules import InvalidInput
from bfpp.terminal.error_lines import blaming
from bfpp.terminal.formats import HTML, JOB, STUDY_JOURNAL, STUDY_TABLE, SVG
from bfpp.terminal.outputs import Output, add_force_argument, add_output, add_output_folder
from bfpp.terminal.parser import Parser
from bfpp.terminal.printing import counted, note, print_json, print_table
from bfpp.traces.timeline.units import in_words

PAGE, FIGURE = "index.html", "step-times.svg"


FILES = {NAME: STUDY_JOURNAL, PAGE: HTML, TABLE: STUDY_TABLE, FIGURE: SVG}
"""Files in the folder of a study that others might have."""


def add_arguments(parser: Parser) -> None:
    """The options of `bfpp study`."""
    parser.add_argument(
        "file",
        metavar="FILE",
        help="study in a .toml file: values of experiments, a model, hosts and networks",
    )
    add_output_folder(
        parser,
        "--out",
        None,
        f"folder of the study: {NAME} with the times of all steps, profiles, timelines, "
        f"{TABLE}, {FIGURE} and the page {PAGE}",
        required=True,
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with the study that the folder holds"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the cells and how long the study will take, and run nothing",
    )
    add_output(
        parser,
        "--job",
        [JOB],
        "write the job that starts the study on its hosts (a script for bash, of ssh, or for "
        "sbatch, or YAML for kubectl), print the cells, and run nothing",
    )
    parser.add_argument(
        "--report",
        action="store_true",
        help="report what the folder holds so far, and run nothing",
    )
    shared.add_trust_argument(parser)
    add_force_argument(parser)
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Run what is left, and report."""
    study, folder = read_study(options.file, trust=options.trust), options.out
    if is_first():
        note_doubts(options.command, doubts_of(cell.experiment for cell in study.cells))
    outputs = {name: folder.inside(name, kind) for name, kind in FILES.items()}
    with blaming("--out"):
        for name, output in outputs.items():
            output.require_ours(options.force and name != NAME)
    if options.job and study.hosts.where not in JOBS:
        reason = f"is for hosts where is {', '.join(JOBS)}, not {study.hosts.where}"
        raise InvalidInput(f"--job: {reason}")
    if options.job or options.dry_run:
        _plan(study, StudyJournal(folder.path, study), options)
        if options.job:
            _write_job(study, folder.path, options)
        return 0
    keeps = is_first() and not options.report
    journal = StudyJournal(folder.path, study, _about() if keeps else None)
    if not options.report:
        if len(journal) and not options.resume:
            raise InvalidInput(
                f"--out: {journal.path} holds {len(journal)} repetitions: --resume goes on"
            )
        if code := _run(study, folder.path, journal):
            return code
    if not is_first():
        return 0
    return _report(study, journal, outputs, options)


def _write_job(study: Study, folder: Path, options: argparse.Namespace) -> None:
    steps = step_estimates(study)
    most = estimate(study, StudyJournal(folder, study), steps).most if steps else None
    is_there = study.hosts.where is not HostKind.KUBERNETES  # pods have other paths
    given = Path(options.file), folder
    grid, out = (each.resolve() for each in given) if is_there else given
    with options.job.written() as path:
        text = job_file(study.hosts, JobPaths(grid, out, NAME, Path.cwd()), most)
        path.write_text(text, encoding="utf-8")


def _run(study: Study, folder: Path, journal: StudyJournal) -> int:
    require_torch()
    from bfpp.api.study.running import run_study
    from bfpp.executor.processes import RunFailed
    from bfpp.executor.processes.environment import is_joined

    if study.hosts.are_joined != is_joined():
        where = study.hosts.where
        reason = "the command was not made for torchrun"
        if study.hosts.are_joined:
            reason = "--job writes what starts it" if where in JOBS else "torchrun is to start it"
        raise InvalidInput(f"FILE: hosts: where is {where}: {reason}")
    say = _say if is_first() else _nothing
    if is_first() and (steps := step_estimates(study)):
        say(_in_words(estimate(study, journal, steps)))
    try:
        run_study(study, folder, journal, say)
    except RunFailed as error:
        return fail("study", error)
    return 0


def _nothing(_: str) -> None:
    """The address of what other processes say."""


def _say(line: str) -> None:
    note(f"bfpp study: {line}")


def _in_words(expected: Estimate) -> str:
    least, most = (max(1, round(seconds / 60)) for seconds in expected)
    return f"will take {f'{least} to ' if least < most else ''}{counted(most, 'minute')}"


def _about() -> dict[str, Any]:
    return {**this_machine(), "cores": os.cpu_count()}


def _plan(study: Study, journal: StudyJournal, options: argparse.Namespace) -> None:
    """The cells, and the time that they will take."""
    known = step_estimates(study)
    expected = estimate(study, journal, known) if known else None
    steps: Sequence[tuple[StudyCell, float | None]]
    steps = known or [(cell, None) for cell in study.cells]
    if options.json:
        print_json(
            {
                "cells": [
                    {"network": cell.network, "values": dict(cell.values), "estimated": step}
                    for cell, step in steps
                ],
                "refused": study.refused_record,
                "seconds_least": expected and expected.least,
                "seconds_most": expected and expected.most,
            }
        )
        return
    rows = [
        (
            cell.network,
            *(str(cell.values.get(name, "")) for name in study.varied),
            "" if step is None else in_words(step),
            str(len(journal.of(cell))),
        )
        for cell, step in steps
    ]
    columns = (NETWORK, *study.varied, "step, roughly", "repetitions so far")
    print_table(f"{study.title}: {len(study.cells)} cells", columns, rows)
    if options.job:  # it says this when it runs
        return
    for values, reason in study.refused:
        _say(f"not run: {', '.join(map(str, values.values()))}: {reason}")
    _say(_in_words(expected) if expected else "no estimate of time where layers compute")


def _report(
    study: Study, journal: StudyJournal, outputs: dict[str, Output], options: argparse.Namespace
) -> int:
    result = results_of(study, journal)
    if options.json:
        print_json(result.record)
    else:
        print_study(result)
    write_study_table(outputs[TABLE], result)
    if result.results:
        write_figure(outputs[FIGURE], drawn(result))
    write_study_page(outputs[PAGE], result)
    return 0
