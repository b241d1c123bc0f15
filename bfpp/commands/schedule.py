"""`bfpp schedule`: find an order of passes, within a memory limit, and how good it is."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from bfpp.options import shared
from bfpp.options.cluster_notes import note_doubts
from bfpp.options.launch_notes import report_left_out
from bfpp.options.named_experiments import holds_experiment, named
from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.formats.torch_csv import write_orders
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.synthesis.outcome import Interrupted, Peak, Synthesis
from bfpp.sim.synthesis.problem.memory_limits import FIELD
from bfpp.sim.synthesis.problem.objectives import Aim
from bfpp.sim.synthesis.problem.placements import PLACEMENTS
from bfpp.sim.synthesis.problem.problem import TOLERANCE
from bfpp.sim.synthesis.synthesis import synthesize
from bfpp.terminal.formats import ORDERS
from bfpp.terminal.interrupts import INTERRUPTED
from bfpp.terminal.number_types import GIGABYTES, amount, seconds, share
from bfpp.terminal.outputs import add_force_argument, add_output
from bfpp.terminal.parser import Parser
from bfpp.terminal.printing import print_json, print_table
from bfpp.traces.timeline.units import in_words

NOT_SAID = {"schedule", "pp", "microbatches", "loops"}
"""Values that the orders state themselves."""

SOUGHT = {Aim.PERIOD: "period, from step to step", Aim.ROBUSTNESS: "step with jitter"}


def add_arguments(parser: Parser) -> None:
    """The options of `bfpp schedule`."""
    parser.add_argument(
        "experiment",
        nargs="?",
        metavar="EXPERIMENT",
        help="experiment file (*.toml), or launch file, to find an order for; options override it",
    )
    shared.add_experiment_arguments(parser)
    parser.open_with(*shared.MOST_USED, "memory-limit", "seconds", "out")
    parser.add_argument(
        "--memory-limit",
        metavar="M[,M...]",
        help="most activations that a rank may hold, in micro-batches of its work "
        "(peak_microbatches), or with a model the memory it may reserve, as in 40GiB; one limit "
        "for all ranks, or one per rank (default: the device's memory with a model, else none)",
    )
    parser.add_argument(
        "--placement",
        choices=PLACEMENTS,
        default=PLACEMENTS[0],
        help="one stage per rank, two on a V, --loops looped, or the best of these "
        "(default: contiguous)",
    )
    parser.add_argument(
        "--no-split",
        dest="split",
        action="store_false",
        help="do not split backward passes into halves",
    )
    parser.add_argument(
        "--choose",
        metavar="WHAT[,WHAT]",
        type=lambda text: text.split(","),
        default=[],
        help="with a model, choose together with the order: cut (the layers of each stage), "
        "recompute (how many of them are recomputed), or both",
    )
    _add_objective(parser)
    parser.add_argument(
        "--seconds",
        type=seconds,
        default=10.0,
        metavar="S",
        help="time limit of the search (default: 10; ends early once the order is proven optimal, "
        "or with the best so far on Ctrl-C)",
    )
    add_output(parser, "--out", [ORDERS], "write the order to a file that can be given as SCHEDULE")
    add_force_argument(parser)
    shared.add_json_argument(parser)


def _add_objective(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--objective",
        choices=[*Aim],
        default=Aim.STEP,
        help="what to minimise: the step time, the period from step to step, a quantile of the "
        "step time under jitter, or the peak memory (max over ranks) (default: step)",
    )
    parser.add_argument(
        "--slack",
        type=share,
        default=0.0,
        metavar="SHARE",
        help="with --objective memory: how much longer than the shortest step it may take, as in "
        "5%% (default: 0)",
    )


def run(options: argparse.Namespace) -> int:
    """Search, report how good the order is, and write it."""
    experiment = _experiment(options)
    counted, gigabytes = memory_limits(options.memory_limit)
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("searching"),
        BarColumn(),
        TextColumn("best {task.fields[best]}"),
        console=console,
        transient=True,
        disable=options.json or not console.is_terminal,
    )
    exit_code = 0
    with bar:
        task = bar.add_task("", total=1.0, best="-")
        try:
            result = synthesize(
                experiment,
                memory_limit=counted,
                memory_gb=gigabytes,
                placement=options.placement,
                split=options.split,
                choose=options.choose,
                objective=options.objective,
                slack=options.slack,
                seconds=options.seconds,
                progress=lambda over, best: bar.update(task, completed=over, best=in_words(best)),
            )
        except Interrupted as interrupted:
            result, exit_code = interrupted.best, INTERRUPTED
    if exit_code:
        sys.stderr.write("bfpp schedule: interrupted: this is the best order found so far\n")
    if options.json:
        print_json(_record(result))
    else:
        _print(result, str(options.out.path) if options.out else None)
    if options.out:
        with options.out.written() as path:
            path.write_text(orders_text(result), encoding="utf-8")
    return exit_code


def _experiment(options: argparse.Namespace) -> Experiment:
    """The given experiment, whose schedule does not matter."""
    if options.experiment:
        if not holds_experiment(options.experiment):
            raise InvalidConfiguration(
                "experiment", "must be an experiment file (*.toml), or a launch file"
            )
        report_left_out("schedule", options.experiment, shared.given(options))
        experiment = named(options.experiment, trust=options.trust)
    else:
        experiment = Experiment("1f1b")
    experiment = experiment.changed(**shared.given(options))
    note_doubts(options.command, experiment.cluster_doubts)
    return experiment


def memory_limits(text: str | None) -> tuple[list[float] | None, list[float] | None]:
    """Memory limits of ranks, in micro-batches or gigabytes."""
    if text is None:
        return None, None
    limits = [limit.strip() for limit in text.split(",")]
    in_gigabytes = {limit.endswith(GIGABYTES) for limit in limits}
    numbers = [amount(limit) for limit in limits]
    for limit, number in zip(limits, numbers, strict=True):
        if not number > 0:
            raise InvalidConfiguration(
                FIELD, f"{limit!r} must be a number above 0, or a size as in 40GiB"
            )
    if len(in_gigabytes) > 1:
        raise InvalidConfiguration(FIELD, "must be in micro-batches or in gigabytes, not both")
    return (None, numbers) if in_gigabytes == {True} else (numbers, None)


def orders_text(result: Synthesis) -> str:
    """The order as a file, with the values of its experiment."""
    experiment = result.experiment
    said = {name: value for name, value in experiment.record.items() if name not in NOT_SAID}
    return "\n".join(
        [
            "# made by bfpp schedule",
            *(f"# {name} = {value}" for name, value in said.items()),
            write_orders(experiment.rule.orders(experiment.configuration.layout)),
        ]
    )


def _record(result: Synthesis) -> dict[str, Any]:
    software = result.experiment.software
    return {
        **({"implementation": software} if software else {}),
        "objective": result.aim,
        "step_time": result.step_time,
        "seconds": result.seconds,
        "lower_bound": result.bound.seconds,
        "bound_by": result.bound.by,
        "gap": result.gap,
        "best_rule": result.rule.rule.name if result.rule else None,
        "best_rule_step_time": result.rule_step_time,
        "best_rule_seconds": result.rule_seconds,
        "placement": result.placement,
        "cut": result.experiment.cut,
        "recompute": result.experiment.recompute,
        **(_peak_record(result.peak) if result.peak else {}),
    }


def _peak_record(peak: Peak) -> dict[str, Any]:
    return {
        "peak_memory": peak.amount,
        "peak_memory_unit": peak.unit,
        "within": peak.within,
        "peak_memory_bound": peak.bound,
        "peak_memory_bound_by": peak.by,
        "best_rule_peak_memory": peak.of_rule,
    }


def _print(result: Synthesis, path: str | None) -> None:
    rows = [
        ("step time", in_words(result.step_time)),
        *_chosen(result.experiment),
        *_sought(result),
    ]
    print_table(f"Order of {result.placement} stages", ("", ""), rows)
    sys.stdout.write(f"Lower bound from {(result.peak or result.bound).by}.\n\n")
    if path:
        name = shlex.quote(path)
        sys.stdout.write(f"Next: bfpp simulate {name} --text")
        if result.rule is not None:
            sys.stdout.write(f"; bfpp compare {name} {result.rule.rule.name}")
        sys.stdout.write("\n")


def _chosen(experiment: Experiment) -> list[tuple[str, str]]:
    """Cut and recomputation of stages, where not the default."""
    said = {
        "implementation": experiment.software,
        "layers of stages": experiment.cut,
        "recomputed": experiment.recompute,
    }
    return [(name, str(value)) for name, value in said.items() if value is not None]


def _sought(result: Synthesis) -> list[tuple[str, str]]:
    """The objective, its bound and gap, and the best rule's."""
    if (peak := result.peak) is not None:
        unit, least = peak.unit, peak.of_rule
        rule = None if least is None else (f"{least:.4g} {unit}", least / peak.amount - 1)
        rows = [
            ("within", in_words(peak.within)),
            ("peak memory", f"{peak.amount:.4g} {unit}"),
            ("lower bound", f"{peak.bound:.4g} {unit}"),
        ]
        best, none = "best schedule within the step time", "none: no such order keeps less"
    else:
        seconds = result.rule_seconds
        rule = None if seconds is None else (in_words(seconds), seconds / result.seconds - 1)
        rows = [
            *([] if result.aim is Aim.STEP else [(SOUGHT[result.aim], in_words(result.seconds))]),
            ("lower bound", in_words(result.bound.seconds)),
        ]
        best, none = "best schedule within the limit", "none: no order is faster"
    gap = f"{result.gap:.2%}" if result.gap > TOLERANCE else none
    if result.rule is None or rule is None:
        return [*rows, ("gap", gap), (best, "none")]
    took, gain = rule
    return [*rows, ("gap", gap), (best, f"{result.rule.rule.name}, {took} ({gain:+.1%})")]
