"""A job of many steps on the terminal: a verdict in a few lines, and who slows it down."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from rich.text import Text

from bfpp.api.recorded.stragglers import JobExplanation, load_job
from bfpp.options import shared
from bfpp.reports.jobs.remedies import print_remedies
from bfpp.reports.jobs.verdict import SLOWDOWN_COLUMNS, TITLES, slowdown_rows, verdict
from bfpp.schedules import InvalidConfiguration, InvalidInput, Schedule
from bfpp.terminal.printing import output, print_json, print_table

SHOWN = 6
"""Culprits of each kind in text; JSON has all of them."""


def explain_job(
    options: argparse.Namespace, what_if: Mapping[str, tuple[Schedule, int | None]]
) -> int:
    """Explain the job of a file: print, and draw its page if one is asked for."""
    for name in ("set", "against"):
        if getattr(options, name):
            raise InvalidConfiguration(name, "is of a configuration or a timeline, not of a job")
    if given := shared.given(options).keys() - {"layers"}:
        raise InvalidConfiguration(min(given), "a job is as it ran; --layers alone is asked for")
    path = Path(options.schedule)
    explained = JobExplanation(load_job(path, "TRACE"), options.layers, what_if)
    try:
        explained.require_replayable()
    except InvalidInput as error:
        raise InvalidInput(f"TRACE: {path}: {error}") from None
    if options.json:
        print_json(explained.record())
    else:
        _print(explained)
    if options.html:
        from bfpp.reports.jobs.page import write_job_page  # figures, which text does without

        write_job_page(options.html, explained, path.name)
    return 0


def _print(explained: JobExplanation) -> None:
    for line in verdict(explained):
        output().print(Text(line), soft_wrap=True)
    output().print()
    for kind, title in TITLES.items():
        rows = slowdown_rows(explained.by[kind], explained.steps, SHOWN)
        left_out = len(explained.by[kind]) - len(rows)
        more = f" (the largest {len(rows)}; --json has all)" if left_out else ""
        if rows:
            columns = title, *SLOWDOWN_COLUMNS
            print_table(f"Slowdown by {title}, all others made even{more}", columns, rows)
    print_remedies(explained.remedies)
