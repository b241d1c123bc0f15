"""Options that write pictures of results, and figures for print, and how they are written."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bfpp.api.predictions import Prediction
from bfpp.api.print_figures import FIGURES, WRITERS
from bfpp.api.results import Result
from bfpp.schedules import InvalidConfiguration
from bfpp.sim.experiment.experiment import Experiment
from bfpp.terminal import formats
from bfpp.terminal.number_types import length
from bfpp.terminal.outputs import Output, add_output
from bfpp.terminal.printing import output


def add_figure(group: argparse._ActionsContainer, option: str, purpose: str) -> None:
    """An option that names a figure to write."""
    add_output(group, option, FIGURES, f"{purpose}, as .svg, .pdf or .png by its name")


def add_width_argument(group: argparse._ActionsContainer, purpose: str) -> None:
    """Add `--width`, the printed width of figures."""
    group.add_argument(
        "--width",
        type=length,
        metavar="LENGTH",
        help=f"{purpose}, such as 84mm for a column; letters keep their size (default: a page's)",
    )


def write_figure(figure: Output, drawn: str) -> None:
    """Write a figure, drawn as SVG, in the format of its name."""
    with figure.written() as path:
        WRITERS[figure.format](drawn, path)


def add_picture_arguments(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options of pictures; returns their group, for more of them."""
    group = parser.add_argument_group("pictures")
    add_output(group, "--html", [formats.HTML], "interactive timeline")
    add_figure(group, "--svg", "timeline for print")
    add_width_argument(group, "printed width of --svg")
    group.add_argument("--text", action="store_true", help="timeline on the terminal")
    return group


def check_picture_arguments(options: argparse.Namespace) -> None:
    """Raise `InvalidConfiguration` for options that do not go together."""
    if options.json and options.text:
        raise InvalidConfiguration("text", "cannot be printed together with --json")
    if options.width and not options.svg:
        raise InvalidConfiguration("width", "needs --svg")


def add_memory_argument(group: argparse._ArgumentGroup) -> None:
    """Add `--memory-svg`."""
    add_figure(group, "--memory-svg", "what each rank's memory holds over the step, by part")


def require_memory(options: argparse.Namespace, experiment: Experiment) -> None:
    """Raise `InvalidConfiguration` for a drawing of memory without a model."""
    if options.memory_svg and experiment.physical is None:
        raise InvalidConfiguration("memory_svg", "needs --model and --cluster")


def write_memory(options: argparse.Namespace, result: Prediction) -> None:
    """The figure of each rank's memory, if it is asked for."""
    if not options.memory_svg:
        return
    timeline, device = result.timeline, result.record["device_memory_gb"]
    from bfpp.traces.figures.svg.memory import svg_memory  # start-up time

    figure = svg_memory(result.memory_curves, result.title, timeline.step_time, device)
    write_figure(options.memory_svg, figure)


def pictured(result: Result) -> list[Result]:
    """The result as it is drawn: of replicas that differ, those that stand for all others.

    First the one whose timeline it is (of a prediction, that others wait for); then, of all others,
    that with the median compute and that with the least.
    """
    replicas, shown = result.replicas, list[Result]()
    if replicas is None:
        return [result]
    timelines = replicas.timelines
    least_first = np.argsort([each.pass_seconds for each in timelines], kind="stable").tolist()
    median, least = least_first[(len(least_first) - 1) // 2], least_first[0]
    for place in dict.fromkeys((replicas.place, median, least)):
        words = replica_words(replicas.alike(place))
        if place == replicas.place:
            slowest = ": slowest" if isinstance(result, Prediction) else ""
            shown.append(replace(result, caption=f"{result.title}; {words}{slowest}"))
        else:
            shown.append(Result(timelines[place], f"{result.title}; {words}"))
    return shown


def replica_words(alike: Sequence[int]) -> str:
    """The first of alike replicas, and how many others there are."""
    return f"replica {alike[0]}" + (f", and {len(alike) - 1} like it" if alike[1:] else "")


def write_pictures(
    options: argparse.Namespace, results: Sequence[Result], title: str, lead: str = ""
) -> None:
    """Write the pictures asked for, all results below one another to one time scale.

    On a page, `lead` is the sentence that sums them up.
    """
    if options.html:
        _write_html(results, options.html, title, lead)
    if options.svg:
        _write_svg(results, options.svg, options.width)


def _write_html(results: Sequence[Result], page: Output, title: str, lead: str) -> None:
    """An interactive page of the results, each explained unless it is very large."""
    from bfpp.api.panel import panel_of  # start-up time
    from bfpp.traces.page.html import write_html

    with page.written() as path:
        write_html([panel_of(result) for result in results], path, title, lead)


def _write_svg(results: Sequence[Result], figure: Output, points: float | None) -> None:
    """A printable figure of the results, of this width."""
    from bfpp.traces.figures.panel import Panel
    from bfpp.traces.figures.svg.schedule import svg

    panels = [Panel(result.title, result.timeline) for result in results]
    write_figure(figure, svg(panels, points))


def print_text(options: argparse.Namespace, results: Sequence[Result]) -> None:
    """The timelines as text, as wide as the terminal, if asked for."""
    if not options.text:
        return
    from rich.text import Text

    from bfpp.traces.figures.terminal import text

    console = output()
    for result in results:
        console.print(Text(result.title))
        drawing = text(result.timeline, width=console.width, colour=sys.stdout.isatty())
        console.print(Text.from_markup(drawing) if sys.stdout.isatty() else Text(drawing))
