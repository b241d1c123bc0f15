"""An uneven experiment as a page: its workers, the worst step above the even one, and remedies."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bfpp.api.explanation import Explanation
from bfpp.api.predictions import Prediction
from bfpp.reports.jobs.page import MOST_ROWS
from bfpp.reports.jobs.remedies import REMEDY_COLUMNS, best_remedy, remedy_rows
from bfpp.schedules.columns import Seconds
from bfpp.schedules.operations.operations import OPERATIONS
from bfpp.sim.engines.engines import DEFAULT
from bfpp.sim.remedies.uneven_case import UnevenCase
from bfpp.sim.unevenness.uneven_costs import uneven_costs
from bfpp.sim.unevenness.uneven_steps import StepReplays, UnevenSteps
from bfpp.terminal.outputs import Output
from bfpp.terminal.printing import counted
from bfpp.traces.figures.appearance import fill
from bfpp.traces.figures.svg.heat_map import svg_heat_map
from bfpp.traces.figures.svg.worker_rows import WorkerRows, svg_worker_rows
from bfpp.traces.page.static_page import Section, static_page
from bfpp.traces.timeline.units import in_words


def write_uneven_page(file: Output, explained: Explanation) -> None:
    """Write the page of an experiment whose replicas, ranks or micro-batches differ."""
    result = explained.result
    assert isinstance(result, Prediction)  # noqa: S101
    assert result.uneven is not None  # noqa: S101
    case, uneven = UnevenCase(result.experiment, result.uneven), result.uneven
    remedies = Section(
        "Remedies",
        "The share of the mean step that each would save, for as much work.",
        columns=REMEDY_COLUMNS,
        rows=remedy_rows(explained.remedies),
    )
    sections = [_workers(case), _steps_drawn(case), remedies, _sources(uneven), _steps(uneven)]
    lead = [*_verdict(uneven, result.timeline.graph.layout.pp), *best_remedy(explained.remedies)]
    with file.written() as path:
        page = static_page(f"Unevenness: {result.title}", lead, sections)
        path.write_text(page, encoding="utf-8")


def _verdict(uneven: UnevenSteps, ranks: int) -> Iterator[str]:
    steps, even = counted(len(uneven.seconds), "step"), float(uneven.even.mean())
    yield (
        f"{steps} of {counted(len(uneven.of_replica), 'replica')} x "
        f"{counted(ranks, 'pipeline rank')}: {in_words(uneven.mean)} in the mean, "
        f"{in_words(even)} if all were even."
    )
    lost = max(1 - 1 / uneven.slowdown, 0.0) if uneven.slowdown else 0.0
    yield f"Slowdown S = {uneven.slowdown:.3f}: unevenness takes {lost:.1%} of the step."


def _workers(case: UnevenCase) -> Section:
    """The passes of each worker against those of the same rank where all is even."""
    step = case.step
    passes, base = step.graph.is_compute, step.costs.seconds_alone()
    taken, even = np.zeros((2, step.replicas, step.graph.layout.pp))
    for effects in case.effects:
        alike = [each.even(step, own) for each, own in zip(case.sources, effects, strict=True)]
        for sums, each in ((taken, effects), (even, alike)):
            seconds = step.with_effects(base, each)[:, passes]
            np.add.at(sums.T, step.graph.rank[passes], seconds.T)
    values = np.divide(taken, even, out=np.full_like(taken, np.nan), where=even > 0)
    ranks, replicas = (list(map(str, range(size))) for size in values.T.shape)
    titles = "pipeline rank", "replica"
    return Section(
        "Workers",
        "Seconds of a worker's passes, over those of its pipeline rank in an even step.",
        svg_heat_map(values.T, ranks, replicas, titles, least=1.0),
    )


def _steps_drawn(case: UnevenCase) -> Section:
    worst = int(case.seconds.argmax())
    effects = case.effects[worst]
    even = [each.even(case.step, own) for each, own in zip(case.sources, effects, strict=True)]
    replays = StepReplays(case.step, DEFAULT)
    most = max(MOST_ROWS // case.step.graph.layout.pp, 1)
    panels, drawn = list[WorkerRows](), list[int]()
    for words, each in ((f"Step {worst}", effects), ("The same, even", even)):
        costs = uneven_costs(case.step, each)
        joint = replays.timeline(costs)
        own = [joint.of(place) for place in range(len(joint.graph.replicas))]
        if not drawn:  # those that compute longest, of one that stands for all its like
            longest = np.argsort([-it.pass_seconds for it in own], kind="stable")[:most]
            drawn = sorted(int(np.argmax(costs.of_replica == place)) for place in longest)
        shown = [own[int(costs.of_replica[replica])] for replica in drawn]
        title = f"{words}: {in_words(joint.step_time)}"
        panels.append(_rows(case, title, drawn, [(it.start, it.end) for it in shown]))
    left_out = case.step.replicas - len(drawn)
    others = f" {left_out} replicas are not drawn: they are like these, or compute less."
    return Section(
        "The worst step, and the even one",
        "Rows are workers, replica/pipeline rank; blank is waiting." + others * (left_out > 0),
        svg_worker_rows(panels, _colours(case)),
    )


def _colours(case: UnevenCase) -> dict[str, str]:
    """Colours by what operations are called; passes last, which are drawn on top."""
    graph = case.step.graph
    return {
        OPERATIONS[code].called(graph.communication): fill(OPERATIONS[code])
        for code in _codes(case)
    }


def _codes(case: UnevenCase) -> list[int]:
    graph = case.step.graph
    codes = np.unique(graph.operation).tolist()
    passes = {*np.unique(graph.operation[graph.is_compute]).tolist()}
    return sorted(codes, key=lambda code: (code in passes, code))


def _rows(
    case: UnevenCase, title: str, replicas: list[int], times: list[tuple[Seconds, Seconds]]
) -> WorkerRows:
    graph, codes = case.step.graph, _codes(case)
    ranks, place = graph.layout.pp, {code: at for at, code in enumerate(codes)}
    colour = np.array([place[code] for code in graph.operation.tolist()], dtype=np.int32)
    row = [graph.rank + ranks * at for at in range(len(replicas))]
    names = [f"{replica}/{rank}" for replica in replicas for rank in range(ranks)]
    start, end = (np.concatenate(each) for each in zip(*times, strict=True))
    return WorkerRows(title, names, np.concatenate(row), np.tile(colour, len(replicas)), start, end)


def _sources(uneven: UnevenSteps) -> Section:
    rows = [
        (
            part.name.replace("_", " "),
            f"{part.slowdown:.4f}",
            "" if part.share is None else f"{part.share:.0%}",
        )
        for part in uneven.parts
    ]
    columns = ("source", "slowdown by it alone", "of the loss goes away without it")
    return Section("By source", columns=columns, rows=rows)


def _steps(uneven: UnevenSteps) -> Section:
    rows = [
        (str(number), in_words(step), in_words(even), f"{step / even:.4f}" if even else "")
        for number, (step, even) in enumerate(
            zip(uneven.seconds.tolist(), uneven.even.tolist(), strict=True)
        )
    ]
    return Section("Sampled steps", columns=("step", "seconds", "even", "slowdown"), rows=rows)
