"""Published runs whose machine, or site, is left out: tables of docs/accuracy.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from benchmarks.helpers.measure import Results
from benchmarks.sim.components import Coverage, Deviation, grouped, left_out, residuals
from bfpp.schedules import TaskGraph
from bfpp.sim.cluster.constants import Constants
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.experiment.residuals import kind_of
from bfpp.sim.experiment.uncertainty import constants_spread
from bfpp.sim.measurements.published import Machine, machines
from bfpp.sim.measurements.recipes import recipes
from bfpp.sim.measurements.validation import Measurement, case_of

MACHINES = (
    "A machine is a GPU. What was fitted to runs on it is as other machines have it "
    "(`bfpp/sim/measurements/machines.toml`), and its intervals know no residual of it. Its sites "
    "weigh the same. Of V100, nothing but its data sheet is then known: its power limit is in its "
    "runs alone."
)

RECIPES = "NVIDIA's recipes"


def percent(value: float | None, signed: bool = False) -> str:
    return "" if value is None else f"{value:+.1f}" if signed else f"{value:.1f}"


def mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def covered(found: Coverage) -> dict[str, str]:
    ends = (percent(100 * each, signed=True) for each in (found.low, found.high))
    return {"inside (%)": percent(100 * found.inside), "mean ends (%)": " to ".join(ends)}


def of_machines(deviations: Sequence[Deviation]) -> Results:
    """Errors and coverage, each machine left out: of its constants, and of the residuals."""
    rows = []
    for name, each in grouped(deviations, lambda run: run.machine).items():
        sites = grouped(each, lambda run: run.site).values()
        errors = [[100 * (np.exp(-run.distance) - 1) for run in site] for site in sites]
        others = [run for run in deviations if run.machine != name]
        rows.append(
            {
                "machine": name,
                "sites": len(sites),
                "runs": len(each),
                "mean error (%)": percent(mean(mean(map(abs, site)) for site in errors)),
                "bias": percent(mean(mean(site) for site in errors), signed=True),
                **covered(left_out(others, each)),
            }
        )
    errors_of, inside = (
        [float(row[name]) for row in rows] for name in ("mean error (%)", "inside (%)")
    )
    counts = [row["runs"] for row in rows]
    return Results(
        "Each machine left out",
        "a mean over machines of 12 %, and 70 % to 90 % of the runs inside",
        rows,
        [
            f"Mean over machines: {mean(errors_of):.1f} %, and {mean(inside):.0f} % inside.",
            f"Of all runs {np.average(inside, weights=counts):.0f} % are inside.",
            MACHINES,
        ],
    )


def of_sites(deviations: Sequence[Deviation]) -> Results:
    """Coverage, each site left out: a source's runs on one cluster."""
    rows = []
    for name, each in grouped(deviations, lambda run: run.site).items():
        others = [run for run in deviations if run.site != name]
        errors = [100 * (np.exp(-run.distance) - 1) for run in each]
        rows.append(
            {
                "site": name,
                "runs": len(each),
                "mean error (%)": percent(mean(map(abs, errors))),
                "bias": percent(mean(errors), signed=True),
                **covered(left_out(others, each)),
            }
        )
    inside = mean(float(row["inside (%)"]) for row in rows)
    remark = f"Of a mean site, {inside:.0f} % are inside. Errors are those of the table before."
    return Results(
        "Each site left out", "70 % to 90 % of a mean site's runs inside", rows, [remark]
    )


def of_residuals(deviations: Sequence[Deviation], known: Sequence[Deviation]) -> Results:
    found = residuals(deviations, known)
    components = {"of a machine": found.machine, "of a site": found.site}
    components |= {f"of a run: {kind}": value for kind, value in found.run.items()}
    components |= {f"of a rival: {kind}": value for kind, value in found.rival.items()}
    rows = [{"component": name, "residual": f"{value:.3f}"} for name, value in components.items()]
    return Results(
        "Components of variance",
        "as in bfpp/sim/presets/residuals.toml",
        rows,
        [
            "Standard deviations of the logarithm that constants do not explain.",
            "Of runs with their machines left out; 80 % of a mean machine's are inside.",
            "Of rivals, which share a machine and a site: of runs as shipped constants have them.",
        ],
    )


def machines_left_out(rows: Iterable[tuple[str, Measurement]]) -> list[Deviation]:
    """Published runs, each with its source, and recipes: without what was fitted to machines."""
    known, found = machines(), []
    for source, row in rows:
        experiment = row.experiment
        machine = known[str(experiment.cluster)]
        case = case_of(row)
        step = Step(source, machine, case.graph, row.step_seconds, case.physical)
        found.append(_of_unseen(step))
    for recipe in recipes():
        if recipe.refusal is None:
            experiment = recipe.experiment
            machine = known[str(experiment.cluster)]
            step = Step(
                RECIPES,
                machine,
                experiment.graph(),
                recipe.step_seconds,
                partial(_costs, experiment),
            )
            found.append(_of_unseen(step))
    return found


class Step(NamedTuple):
    """A measured step: whose it is, where, and its costs with some constants."""

    source: str
    machine: Machine
    graph: TaskGraph
    seconds: float
    physical: Callable[[Constants | None], PhysicalCosts]


def _costs(experiment: Experiment, constants: Constants | None) -> PhysicalCosts:
    changed = experiment if constants is None else experiment.changed(constants=constants)
    return changed.require_physical()


def _of_unseen(step: Step) -> Deviation:
    physical = step.physical(step.machine.left_out)
    timeline = simulate(step.graph, physical)
    spread = constants_spread(timeline, physical, fitted=step.machine.left_out is None)
    distance = float(np.log(step.seconds / timeline.step_time))
    site = f"{step.source} {physical.cluster.name}"
    kind = kind_of(physical, step.graph.layout)
    return Deviation(step.machine.name, site, kind, distance, spread)
