"""`bfpp explain`: where a step's time goes, and what it depends on."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from rich.text import Text

from bfpp.api.explanation import Explanation
from bfpp.api.predictions import Prediction, predict
from bfpp.api.recorded.timers import is_timer_log
from bfpp.api.results import NOISE
from bfpp.api.saved import (
    NOT_MEASURED,
    SavedTimeline,
    is_job_file,
    is_timeline_file,
    is_trace_file,
    load,
)
from bfpp.launchers.recognise import is_launch_file
from bfpp.options import shared
from bfpp.options.model import assumptions, with_assumptions
from bfpp.options.named_experiments import holds_experiment, named, require_same_unit
from bfpp.reports.prediction_notes import print_cautions
from bfpp.reports.tables import print_idle, print_shares
from bfpp.schedules import InvalidConfiguration, InvalidInput, Schedule
from bfpp.sim.costs.parameters import what_if
from bfpp.sim.engines.cost_model import CostModel
from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.side_by_side import side_by_side
from bfpp.sim.experiment.values import of_group
from bfpp.sim.experiment.values.option import STAGES
from bfpp.terminal import formats
from bfpp.terminal.error_lines import one_line
from bfpp.terminal.outputs import add_force_argument, add_output
from bfpp.terminal.parser import Parser
from bfpp.terminal.printing import RANKS_SHOWN, output, print_json, print_table
from bfpp.traces.timeline.units import in_words

SENSITIVITIES_SHOWN = 12

DIVIDING = ("model", *of_group(STAGES))
"""Values that another schedule of the same model needs, to be divided alike."""

NOT_AGAINST = {"-h", "--help", "--json", "--json-schema", "--set", "--against", "--what-if"}
"""Options that say nothing of a configuration."""


def add_arguments(parser: Parser) -> None:
    """The options of `bfpp explain`."""
    shared.add_schedule_argument(
        parser,
        "FILE.json, FILE.json.gz: a saved timeline, as it ran, or a job from bfpp import",
        "FILE.parquet: the operations of a job, of many steps and replicas",
        "TRACE.json, TRACE.json.gz, TRACE.sqlite: a rank's trace from torch.profiler or Nsight",
        "TRACE.et: a rank's trace from chakra_converter, whose start times are replayed",
        "FILE.log, FILE.txt, FILE.out: a log of Megatron-LM with its timers",
    )
    parser.add_argument(
        "traces",
        nargs="*",
        metavar="TRACE",
        help="traces of further ranks",
    )
    shared.add_experiment_arguments(parser)
    parser.open_with(*shared.MOST_USED, "set", "against")
    shared.add_engine_argument(parser)
    group = parser.add_argument_group("comparisons, each explained cause by cause")
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="what if: set a parameter to VALUE, or scale it with NAME=xFACTOR: forward, backward, "
        "transfer, gather, reduce, optimizer, stage.N, or a number of the model or the cluster, "
        "such as inter_node.bandwidth; each --set is a separate case",
    )
    group.add_argument(
        "--what-if",
        action="append",
        default=[],
        metavar='"SCHEDULE"',
        help="of a timeline or a job: another schedule with the same durations, such as "
        '"breadth-first --loops 4"',
    )
    group.add_argument(
        "--against",
        action="append",
        default=[],
        metavar='"OPTIONS"',
        help='compare with these options changed, such as "--loops 8" or "gpipe --loops 1"; '
        "of a saved timeline, compare with another one",
    )
    add_output(
        parser.add_argument_group("jobs, and replicas that differ"),
        "--html",
        [formats.HTML],
        "a page: workers, the worst step and the even one, remedies",
    )
    add_force_argument(parser)
    shared.add_json_argument(parser)


Cases = dict[str, tuple[Explanation, Explanation]]
"""The two sides of each comparison, by the option that asks for it."""


def run(options: argparse.Namespace) -> int:
    """Explain one configuration or timeline, and how each other one differs from it; or a job."""
    if is_job_file(Path(options.schedule)):
        from bfpp.reports.jobs.printing import explain_job  # most often, it is no job

        what_if = {text: _rule(options.parser, text) for text in options.what_if}
        return explain_job(options, what_if)
    if is_trace_file(options.schedule):
        from bfpp.reports.kernels.printing import explain_traces  # most often, it is no trace

        return explain_traces(options)
    if is_timer_log(options.schedule):
        from bfpp.reports.jobs.timers import explain_timers  # most often, it is no log

        return explain_timers(options)
    if options.traces:
        raise InvalidInput(f"TRACE: {options.traces[0]}: further files are of traces alone")
    is_saved = is_timeline_file(options.schedule) and not is_launch_file(options.schedule)
    if options.html and is_saved:
        raise InvalidConfiguration("html", "is of no timeline; bfpp show draws one")
    base, cases, assumed = _saved(options) if is_saved else _predicted(options)
    if options.html and isinstance(base.result, Prediction) and base.result.uneven is None:
        reason = "is of jobs and of experiments whose replicas differ; bfpp simulate draws others"
        raise InvalidConfiguration("html", reason)
    if options.json:
        differences = [
            {"case": text, **before.difference(after), **_unknown(after)}
            for text, (before, after) in cases.items()
        ]
        print_json(with_assumptions({**base.record(), "what_if": differences}, assumed))
    else:
        _print(base)
        if base.rule:
            name = base.rule.result.name
            _print_difference(
                f"{name}, the fastest schedule that needs no more memory", base, base.rule
            )
        for text, (before, after) in cases.items():
            _print_difference(text, before, after)
    if options.html:
        from bfpp.reports.jobs.uneven_page import write_uneven_page  # figures, as of a job

        write_uneven_page(options.html, base)
    return 0


def _predicted(options: argparse.Namespace) -> tuple[Explanation, Cases, list[str]]:
    """The experiment's prediction, and its cases."""
    experiment = shared.experiment(options)
    assumed = assumptions(options)
    if options.what_if:
        raise InvalidConfiguration("what_if", "is of a timeline; --against compares experiments")
    compared = []
    for text in options.set:
        costs = what_if(experiment.costs, text)
        compared.append((text, experiment, costs))
    for text in options.against:
        words = _with_options(options, text)
        case = shared.experiment(words)
        require_same_unit([experiment, case])
        compared.append((text, case, case.costs))
        if case.model != experiment.model:
            assumed += assumptions(words)
    base = Explanation(predict(experiment, options.engine))
    cases = {
        text: (base, Explanation(predict(case, options.engine, costs)))
        for text, case, costs in compared
    }
    return base, cases, assumed


def _saved(options: argparse.Namespace) -> tuple[Explanation, Cases, list[str]]:
    """The timeline, and its comparisons: replays with changed costs, or other timelines."""
    if given := shared.given(options):
        raise InvalidConfiguration(min(given), "a saved timeline is as it ran; --set changes it")
    saved = SavedTimeline(load(Path(options.schedule), "SCHEDULE"))
    base = Explanation(saved)

    def replayed(costs: CostModel) -> Explanation:
        return Explanation(SavedTimeline(simulate(saved.timeline.graph, costs, options.engine)))

    cases: Cases = {}
    for text in options.set:
        costs = what_if(saved.costs, text)
        cases[text] = replayed(saved.costs), replayed(costs)
    for text in options.what_if:
        rule, parts = _rule(options.parser, text)
        cases[text] = Explanation(saved.as_itself()), Explanation(saved.as_schedule(rule, parts))
    for text in options.against:
        cases[text] = base, Explanation(SavedTimeline(load(Path(text), "--against")))
    return base, cases, []


def _rule(parser: Parser, text: str) -> tuple[Schedule, int | None]:
    """The schedule of --what-if, and the parts of a rank that it gives, if any."""
    parsed = parser.parse(_split("what_if", text))
    values = shared.given(parsed)
    if refused := values.keys() - of_group(STAGES):
        reason = f"{min(refused)} is that of the timeline; only a schedule and its parameters"
        raise InvalidConfiguration("what_if", f"{reason} can be others")
    return shared.experiment(parsed).rule, values.get("loops") or values.get("units_per_stage")


def _split(option: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InvalidConfiguration(option, f"{text!r}: {error}") from None


def _with_options(options: argparse.Namespace, text: str) -> argparse.Namespace:
    """The options as they would be with some more words on the command line.

    With another schedule, the values of an experiment file stay, and so does the model: a schedule
    that is not looped has as many units. Parameters of a schedule are inherited by those that have
    them.
    """
    parser: Parser = options.parser
    words = _split("against", text)
    if refused := NOT_AGAINST.intersection(word.partition("=")[0] for word in words):
        raise InvalidConfiguration("against", f"{min(refused)} is not an option of an experiment")
    base, inherited = vars(options), shared.given(options)
    if not words or words[0].startswith("-"):
        words = [options.schedule, *words]
    elif not holds_experiment(words[0]):
        inherited = named(options.schedule, trust=options.trust).record | inherited
        dividing = {name: inherited[name] for name in DIVIDING if name in inherited}
        [other] = side_by_side([named(words[0], trust=options.trust)], dividing)
        base = base | inherited | {name: getattr(other, name) for name in DIVIDING}
    trusted = [shared.TRUST] * options.trust
    compared = parser.parse(
        [*words, *trusted], shared.with_parameters(argparse.Namespace(**base), {})
    )
    inherited |= shared.given_parameters(compared)
    own = shared.experiment(compared).rule.parameters
    parameters = {name: inherited[name] for name in own if name in inherited}
    return shared.with_parameters(compared, parameters)


def _print(explained: Explanation) -> None:
    result = explained.result
    if isinstance(result, SavedTimeline):
        print_table("Where it is from", ("", ""), result.origins)
    print_table(result.title, ("", ""), result.highlights())
    if isinstance(result, Prediction):
        print_cautions([result])
    if not explained.step_time:
        return
    print_shares(explained.causes.shares)
    print_idle(explained.idle)
    if fullest := explained.fullest_rank:
        output().print(Text(f"{fullest}\n"), soft_wrap=True)
    if result.timeline.is_measured:
        _print_paces(explained)
    print_table(
        "The critical path, by operation",
        ("operation", "tasks", "seconds", "share"),
        [
            (title, str(tasks), in_words(seconds), f"{seconds / explained.step_time:.1%}")
            for title, tasks, seconds in explained.path_by_operation()
            if seconds
        ],
    )
    if explained.bounds:
        print_table(
            "Communication: the longest of each kind, alone, and what bounds it",
            ("what", "GPUs", "bytes", "takes", "seconds", "latency", "bound by"),
            [
                (
                    each.what,
                    f"{each.members:,}",
                    f"{each.bytes:.3g}",
                    f"{each.algorithm}, {each.protocol}",
                    in_words(each.seconds),
                    in_words(each.latency),
                    "latency" if each.is_latency else each.level,
                )
                for each in explained.bounds
            ],
        )
    if explained.remedies:
        from bfpp.reports.jobs.remedies import print_remedies  # an even step has none

        print_remedies(explained.remedies)
    strongest = explained.depends_on[:SENSITIVITIES_SHOWN]
    print_table(
        f"What the step time depends on (the {len(strongest)} strongest)",
        ("parameter", "per 1 % more of each", "of the step"),
        [
            (
                each.parameter,
                _signed(each.seconds_per_percent),
                f"{each.seconds_per_percent / explained.step_time:+.3%}",
            )
            for each in strongest
        ],
    )


def _print_paces(explained: Explanation) -> None:
    """Stragglers, the slowest rank first."""
    slowest = sorted(explained.paces, key=lambda pace: -pace.excess)[:RANKS_SHOWN]
    print_table(
        "Stragglers: passes compared with the median rank's, and what the step would gain",
        ("rank", "passes take", "step would be"),
        [
            (
                str(pace.rank),
                f"{pace.excess:+.1%}",
                f"{explained.result.in_words(pace.gain)} shorter ({pace.gain / step:.1%})",
            )
            for step in (explained.step_time,)
            for pace in slowest
        ],
    )


def _print_difference(text: str, base: Explanation, other: Explanation) -> None:
    difference = base.difference(other)
    longest = max(base.step_time, other.step_time)
    rows = [
        (cause, _signed(seconds))
        for cause, seconds in difference["by_cause"].items()
        if abs(seconds) > NOISE * longest
    ]
    rows.append(("step time", _signed(difference["difference"])))
    share = difference["difference"] / base.step_time if base.step_time else None
    change = "" if share is None else f"step time {share:+.2%}, "
    title = f"With {one_line(text)}: {change}by cause on the mean rank"
    print_table(title, ("cause", "difference"), rows)
    for names in _unknown(other).values():
        output().print(Text(f"Not measured, and left out: {', '.join(names)}."), soft_wrap=True)


def _unknown(after: Explanation) -> dict[str, list[str]]:
    """Operations that no duration is known of, where another schedule is replayed."""
    about = after.result.timeline.about
    return {NOT_MEASURED: str(about[NOT_MEASURED]).split(", ")} if NOT_MEASURED in about else {}


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{in_words(abs(seconds))}"
