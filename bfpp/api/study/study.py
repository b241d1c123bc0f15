"""A study: experiments over networks, how often each is measured, and in which order."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bfpp.api.study.hosts.study_hosts import StudyHosts
from bfpp.executor.settings import BackendName
from bfpp.schedules.settings.sharding import P2P
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.models.model import Transformer


def file_name(text: str) -> str:
    """A text as the name of a file: what is between words is a dash."""
    return re.sub(r"[^\w.=]+", "-", text)


@dataclass(frozen=True)
class Measuring:
    """Repetitions of a cell, in blocks: all cells once, in an order drawn anew for each block.

    A repetition has `steps` steps after `warm_up` others. There are at `least` and at `most` so
    many; in between, until half of the interval is narrower than the share `width` of the mean.
    """

    steps: int = 3
    warm_up: int = 1
    least: int = 3
    most: int = 6
    width: float = 0.05
    seed: int = 0


@dataclass(frozen=True)
class Session:
    """The cells that the same processes run by one profile: those of one network and division."""

    network: str
    pp: int
    dp: int
    microbatch_size: int

    @property
    def name(self) -> str:
        """The name of its files."""
        return f"{self.network}-{self.pp}x{self.dp}x{self.microbatch_size}"

    @property
    def profile(self) -> str:
        """The name of the profile's file, in the folder of the study."""
        return f"{file_name(self.name)}.toml"


def session_of(network: str, experiment: Experiment) -> Session:
    """The processes that run an experiment on a network."""
    return Session(network, experiment.pp, experiment.dp or 1, experiment.microbatch_size)


def cell_key(network: str, values: Mapping[str, Any]) -> str:
    """A name that no other cell of a study has."""
    return json.dumps([network, dict(values)], sort_keys=True)


SCHEDULE, BACKEND = "schedule", "backend"

BACKENDS = (BackendName.CPU, BackendName.TORCH_PIPELINING)
"""The runtimes of a study's cells: ours, and PyTorch's."""


def schedule_of(values: Mapping[str, Any], experiment: Experiment) -> str:
    """The schedule, with those of its own parameters that are said: `depth-first, sequence 8`."""
    own = (f"{name} {values[name]}" for name in experiment.rule.parameters if name in values)
    return ", ".join((str(values[SCHEDULE]), *own))


@dataclass(frozen=True)
class StudyCell:
    """An experiment on a network, with the values by which a study's file says it."""

    network: str
    values: Mapping[str, Any]
    experiment: Experiment

    @property
    def key(self) -> str:
        """A name that no other cell of a study has."""
        return cell_key(self.network, self.values)

    @property
    def backend(self) -> BackendName:
        """The runtime of its passes and transfers."""
        return BackendName(self.values.get(BACKEND, BackendName.CPU))

    @property
    def times_tasks(self) -> bool:
        """True if each task has a time of its own: PyTorch's runtime does a step at once."""
        return self.backend is not BackendName.TORCH_PIPELINING

    @property
    def predicted(self) -> Experiment:
        """The experiment with transfers posted as its runtime does it."""
        posts = self.experiment.communication
        if self.backend is not BackendName.TORCH_PIPELINING or not posts.pp_overlap:
            return self.experiment
        return self.experiment.changed(p2p=P2P.POSTED)

    @property
    def schedule(self) -> str:
        """The schedule, with its own parameters."""
        return schedule_of(self.values, self.experiment)

    def value(self, name: str) -> Any:
        """A value by its name, also if the file does not say it."""
        if name == BACKEND:
            return self.backend
        return self.values.get(name, getattr(self.experiment, name))

    @property
    def others(self) -> dict[str, Any]:
        """The values that are not the schedule's own."""
        own = (SCHEDULE, *self.experiment.rule.parameters)
        return {name: value for name, value in self.values.items() if name not in own}

    @property
    def timeline(self) -> str:
        """The name of its timeline's file: by its values, since other cells may be added."""
        others = (f"{name}={value}" for name, value in sorted(self.others.items()))
        words = "-".join((self.session.name, self.schedule, *others))
        return f"{file_name(words)}.json.gz"

    @property
    def session(self) -> Session:
        """The processes that run it."""
        return session_of(self.network, self.experiment)


@dataclass(frozen=True)
class Study:
    """All cells; `refused` are combinations of values that cannot be, and why.

    `networks` are bits/s out of each host and into it, None where it is as it is. Where passes are
    `mocked`, each layer's take these seconds. Studies with one `digest` have the same model,
    passes, hosts and networks: their measurements are of the same cells.
    """

    title: str
    cells: tuple[StudyCell, ...]
    refused: tuple[tuple[Mapping[str, Any], str], ...]
    model: Transformer
    mocked: Mapping[str, float] | None
    hosts: StudyHosts
    networks: Mapping[str, float | None]
    measuring: Measuring
    digest: str

    @cached_property
    def varied(self) -> tuple[str, ...]:
        """The names of values that differ between cells, also if some have none."""
        names = dict.fromkeys(name for cell in self.cells for name in cell.values)
        seen = {name: {repr(cell.values.get(name)) for cell in self.cells} for name in names}
        return tuple(name for name, values in seen.items() if len(values) > 1)

    @property
    def refused_record(self) -> list[dict[str, Any]]:
        """Combinations of values that cannot be, as JSON."""
        return [{"values": dict(values), "reason": reason} for values, reason in self.refused]

    @property
    def sessions(self) -> dict[Session, list[StudyCell]]:
        """The cells of each session, in order."""
        cells: dict[Session, list[StudyCell]] = {}
        for cell in self.cells:
            cells.setdefault(cell.session, []).append(cell)
        return cells
