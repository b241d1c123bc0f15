"""Studies as files: TOML with the values of their cells, the model, the hosts and networks.

Every fault is an `InvalidConfiguration` of one line that names the file, the table and the key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from hashlib import sha256
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from bfpp.api.study.hosts.study_hosts import HostKind, StudyHosts, read_hosts
from bfpp.api.study.study import (
    BACKEND,
    BACKENDS,
    SCHEDULE,
    Measuring,
    Study,
    StudyCell,
    file_name,
)
from bfpp.launchers.own.model import SIZES, VOCABULARY, require_layers
from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.formats.python_file import require_trust
from bfpp.schedules.layout.cut import cut_layers
from bfpp.sim.costs.measured.profile import PASSES
from bfpp.sim.experiment.experiment import Experiment, experiment_of
from bfpp.sim.experiment.side_by_side import side_by_side
from bfpp.sim.experiment.values import of_group
from bfpp.sim.experiment.values.option import ABSTRACT, MEASURED, PHYSICAL, UNEVEN
from bfpp.sim.models.model import Transformer, load_model
from bfpp.sim.presets.file_kinds import STUDY, require_kind
from bfpp.sim.presets.files import Table, read_toml, require_keys

FIELD = "file"

TABLES = {
    "format": str, "title": str, "experiment": list, "model": dict, "compute": dict, "hosts": dict,
    "networks": dict, "measuring": dict,
}  # fmt: skip

OPTIONAL = ("format", "title", "model", "compute", "hosts", "networks", "measuring")

AS_IT_IS = "as it is"
"""The network of hosts whose links are not limited."""

RANGE = ("from", "to", "by")
"""Keys of a range of whole numbers, its end included."""

MOST_CELLS = 10_000


def read_study(path: str, *, trust: bool = False) -> Study:
    """The study of a file, which names schedules in Python files only with `trust`."""
    table = read_toml(FIELD, path)
    require_kind(FIELD, path, table, STUDY)
    if isinstance(only := table.get("experiment"), dict):
        table = {**table, "experiment": [only]}
    table = require_keys(FIELD, path, table, TABLES, OPTIONAL)
    hosts = read_hosts(path, table.get("hosts", {}))
    networks = _networks(path, table.get("networks"), hosts)
    grids = [_grid(path, each, trust=trust) for each in table["experiment"]]
    model = _model(path, table.get("model", {}))
    cells: list[StudyCell] = []
    refused: list[tuple[Table, str]] = []
    for values in _combinations(path, grids):
        try:
            experiment = cell_experiment(values)
            cut_layers(model.layers, experiment.configuration.layout.units)
        except InvalidConfiguration as error:
            refused.append((values, str(error)))
        else:
            hosts.require(experiment.pp * (experiment.dp or 1), f"{path}: hosts")
            cells += [StudyCell(network, values, experiment) for network in networks]
    if not cells:
        values, reason = refused[0]
        raise InvalidConfiguration(FIELD, f"{path}: no cell can be run; the first: {reason}")
    return Study(
        table.get("title", Path(path).stem),
        tuple(_distinct(cells)),
        tuple(refused),
        model,
        _mocked(path, table.get("compute")),
        hosts,
        networks,
        _measuring(path, table.get("measuring", {})),
        _digest(table),
    )


CONDITIONS = ("model", "compute", "hosts", "networks")
"""Tables that measurements hold for."""


def _digest(table: Table) -> str:
    said = json.dumps([table.get(name) for name in CONDITIONS], sort_keys=True)
    return sha256(said.encode()).hexdigest()[:16]


def _grid(path: str, table: object, *, trust: bool) -> dict[str, list[Any]]:
    """The values to try of each name, by one of the file's tables."""
    where = f"{path}: experiment"
    if not isinstance(table, dict):
        raise InvalidConfiguration(FIELD, f"{where}: must be a table, or several")
    grid = {name: _listed(f"{where}: {name}", value) for name, value in table.items()}
    _require_runnable(where, grid)
    for name in grid.get(BACKEND, ()):
        if name not in BACKENDS:
            reason = f"{name!r} is not one of {', '.join(BACKENDS)}"
            raise InvalidConfiguration(FIELD, f"{where}: {BACKEND}: {reason}")
    for schedule in grid["schedule"]:
        require_trust(path, schedule, trust=trust)
    return grid


def _listed(where: str, value: object) -> list[Any]:
    """The values of a list, of a range, or one alone."""
    if isinstance(value, dict):
        given = require_keys(FIELD, where, value, dict.fromkeys(RANGE, int))
        first, last, by = (given[key] for key in RANGE)
        if last < first:
            raise InvalidConfiguration(FIELD, f"{where}: to must be at least {first}")
        return [*range(first, last + 1, by)]
    values = value if isinstance(value, list) else [value]
    if not values:
        raise InvalidConfiguration(FIELD, f"{where} must hold at least one value")
    return values


def _require_runnable(where: str, grid: Mapping[str, object]) -> None:
    """Refuse values of an experiment that only a simulation has."""
    if SCHEDULE not in grid:
        raise InvalidConfiguration(FIELD, f"{where}: the key 'schedule' is missing")
    not_run = {*of_group(*PHYSICAL, ABSTRACT, MEASURED, UNEVEN), "tp", "cp", "ep", "balance"}
    for name in grid:
        if name in not_run:
            raise InvalidConfiguration(FIELD, f"{where}: {name}: a study does not vary it")


def _combinations(path: str, grids: Sequence[Mapping[str, list[Any]]]) -> Iterator[dict[str, Any]]:
    """Of each grid, all values of a name with all others."""
    count = sum(prod(map(len, grid.values())) for grid in grids)
    if count > MOST_CELLS:
        raise InvalidConfiguration(FIELD, f"{path}: {count:,} combinations; at most {MOST_CELLS:,}")
    for grid in grids:
        for values in product(*grid.values()):
            yield dict(zip(grid, values, strict=True))


def cell_experiment(values: Mapping[str, Any]) -> Experiment:
    """The experiment of some values, with as many units a rank whether its schedule loops or not.

    Raises `InvalidConfiguration` for values that cannot be.
    """
    others = {name: value for name, value in values.items() if name not in (SCHEDULE, BACKEND)}
    alone = experiment_of({SCHEDULE: values[SCHEDULE]})
    (experiment,) = side_by_side([alone], others)
    experiment.rule.require(experiment.configuration.layout)
    return experiment


def _distinct(cells: list[StudyCell]) -> Iterator[StudyCell]:
    """Cells without those that are the same experiment as one before: some value is not its own."""
    seen = set()
    for cell in cells:
        if (same := (cell.network, cell.backend, repr(cell.experiment))) not in seen:
            seen.add(same)
            yield cell


def _model(path: str, table: Table) -> Transformer:
    """The model: a preset or a file by `name`, or a small transformer, with these sizes."""
    kinds = {"name": str, **dict.fromkeys(SIZES, int)}
    given = require_keys(FIELD, f"{path}: model", table, kinds, tuple(kinds))
    name = given.pop("name", None)
    sizes = {"sequence" if each == "context" else each: size for each, size in given.items()}
    if name is not None:
        beside = Path(path).parent / name
        model = replace(load_model(str(beside) if beside.is_file() else name), **sizes)
    else:
        default = {each: size for each, (size, _) in SIZES.items()}
        default["sequence"] = default.pop("context")
        model = Transformer("small", vocabulary=VOCABULARY, **default | sizes)
    require_layers(model)
    return replace(model, tied_embeddings=False)  # which a profile does not price


def _mocked(path: str, table: Table | None) -> dict[str, float] | None:
    """Seconds of each layer's passes; a backward pass in halves takes as long as a whole one."""
    if table is None:
        return None
    kinds = dict.fromkeys(PASSES, float)
    given = require_keys(FIELD, f"{path}: compute", table, kinds, PASSES[2:])
    half = dict.fromkeys(PASSES[2:], given["backward"] / 2)
    return {**half, **given}


def _networks(path: str, table: Table | None, hosts: StudyHosts) -> dict[str, float | None]:
    if table is None:
        return {AS_IT_IS: None}
    if hosts.where is not HostKind.NAMESPACES:
        reason = "only namespaces have networks of a given speed"
        raise InvalidConfiguration(FIELD, f"{path}: networks: {reason}")
    rates = require_keys(FIELD, f"{path}: networks", table, dict.fromkeys(table, float))
    if not rates:
        raise InvalidConfiguration(FIELD, f"{path}: networks must hold at least one")
    by_file: dict[str, str] = {}
    for name in rates:
        other = by_file.setdefault(file_name(name), name)
        if other != name:
            reason = f"{other!r} and {name!r} have the same files; give one another name"
            raise InvalidConfiguration(FIELD, f"{path}: networks: {reason}")
    return dict(rates)


def _measuring(path: str, table: Table) -> Measuring:
    kinds = {each.name: each for each in fields(Measuring)}
    types = {name: float if name == "width" else int for name in kinds}
    optional = tuple(name for name, each in kinds.items() if each.default is not MISSING)
    where = f"{path}: measuring"
    given = require_keys(FIELD, where, table, types, optional, ("warm_up", "seed"))
    measuring = Measuring(**given)
    if measuring.most < measuring.least:
        raise InvalidConfiguration(FIELD, f"{where}: most must be at least {measuring.least}")
    return measuring
