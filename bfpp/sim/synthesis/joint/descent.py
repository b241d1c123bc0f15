"""A descent over choices, from neighbour to better neighbour, by any rating."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, zip_longest
from typing import NamedTuple

import numpy as np

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.columns import Seconds as Numbers
from bfpp.schedules.settings.recomputation import NO_RECOMPUTATION
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.synthesis.deadline import Deadline
from bfpp.sim.synthesis.joint.choices import CHOICES
from bfpp.sim.synthesis.ordering import BoardSearch, problem_of
from bfpp.sim.synthesis.outcome import Synthesis
from bfpp.sim.synthesis.problem.memory_limits import Counted
from bfpp.sim.synthesis.problem.placements import Board
from bfpp.sim.synthesis.problem.problem import TOLERANCE, Words

SearchOn = Callable[[Board], BoardSearch]
"""Makes the search on a board."""


class Chosen(NamedTuple):
    """A choice with its merit (less is better, compared in order), and its best words.

    The most promising neighbours are by the `load` of each stage's rank.
    """

    merit: tuple[float, ...]
    load: Numbers
    search: BoardSearch
    words: Words

    @property
    def experiment(self) -> Experiment:
        """With these choices, and no order."""
        return self.search.board.experiment

    def is_better_than(self, other: Chosen) -> bool:
        """By more than rounding."""
        for own, its in zip(self.merit, other.merit, strict=True):
            if abs(own - its) > TOLERANCE * its:
                return own < its
        return False


Rating = Callable[[BoardSearch, Words], Chosen]
"""Of the choices of a board with the best words that are known; may refuse them."""


class Choosing(NamedTuple):
    """Choices of placement and cut, by `names`, with the searches `on` boards."""

    on: SearchOn
    names: Sequence[str]

    def lowest(self, rated: Rating, best: Chosen, deadline: Deadline) -> Chosen:
        """The last neighbour that was better than the one before it."""
        seen = set[tuple[object, object]]()
        neighbours = self._neighbours(best)
        while deadline.left and (experiment := next(neighbours, None)):
            if (said := (experiment.cut, experiment.recompute)) in seen:
                continue
            seen.add(said)
            with suppress(InvalidConfiguration):
                neighbour = rated(self.on(best.search.board.changed(experiment)), best.words)
                if neighbour.is_better_than(best):
                    best, neighbours = neighbour, self._neighbours(neighbour)
        return best

    def _neighbours(self, chosen: Chosen) -> Iterator[Experiment]:
        """Of each kind in turn, the most promising first."""
        kinds = (CHOICES[name].neighbours(chosen.experiment, chosen.load) for name in self.names)
        return filter(None, chain.from_iterable(zip_longest(*kinds)))

    def search_as(self, board: Board, chosen: Synthesis) -> BoardSearch:
        """On a board, with the choices for it."""
        said = {name: getattr(chosen.experiment, name) for name in ("cut", "balance", "recompute")}
        return self.on(board.changed(board.experiment.changed(**said)))


def quickest(choosing: Choosing, search: BoardSearch) -> BoardSearch:
    """With nothing recomputed, the shortest passes of a cut, and unlimited memory."""
    experiment = search.board.experiment
    policy = experiment.require_physical().recomputation
    if "recompute" in choosing.names or policy.layers is not None:
        experiment = experiment.changed(recompute=str(NO_RECOMPUTATION))
    unlimited = Counted(search.problem.sizes, np.full(search.problem.layout.pp, np.inf))
    board = search.board.changed(experiment)
    return BoardSearch(board, unlimited, search.aim, problem_of(board, unlimited))
