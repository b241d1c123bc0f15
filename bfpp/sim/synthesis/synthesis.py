"""Synthesis from the outside: takes an experiment, returns it with the best order."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.errors import chosen
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.presets.numbers import LARGEST, is_usable
from bfpp.sim.synthesis.deadline import interruptible
from bfpp.sim.synthesis.joint.choices import require_choices
from bfpp.sim.synthesis.joint.descent import Choosing, SearchOn
from bfpp.sim.synthesis.joint.joint import joint
from bfpp.sim.synthesis.joint.least_memory import least_memory
from bfpp.sim.synthesis.ordering import BoardSearch, problem_of
from bfpp.sim.synthesis.outcome import Interrupted, Synthesis, all_feasible, best_of
from bfpp.sim.synthesis.problem.memory_limits import Limits, memory_of
from bfpp.sim.synthesis.problem.objectives import Aim
from bfpp.sim.synthesis.problem.placements import Board, boards
from bfpp.sim.synthesis.search.annealing import Progress

SHARE_OF_FASTEST = 1 / 3
"""Of the time, for the shortest step, before memory is minimised."""


def synthesize(
    experiment: Experiment,
    *,
    memory_limit: Limits = None,
    memory_gb: Limits = None,
    placement: str = "contiguous",
    split: bool = True,
    choose: Sequence[str] = (),
    objective: Aim | str = Aim.STEP,
    slack: float = 0.0,
    seconds: float = 10.0,
    progress: Progress | None = None,
) -> Synthesis:
    """Search for the best order of passes; the experiment's own schedule is not used.

    The `objective` is `step`, `period`, `robustness`, or `memory`: the least peak of the fullest
    rank in a step that takes at most a share of `slack` longer than the shortest.

    `memory_limit` is the most activations that each rank may keep, one number for all ranks or one
    a rank, in micro-batches of a rank's work (`peak_microbatches`); with a model, `memory_gb` is
    what a rank may reserve, in 2^30 bytes. With `split`, backward passes may be in halves. With a
    model there may be more to `choose`: `cut`, the layers of each stage, and `recompute`, how many
    of them are recomputed. The search takes about `seconds`, and divides them, so that they are
    finite. Raises `InvalidConfiguration` where no order keeps to the limit, and on Ctrl-C
    `Interrupted`, a `KeyboardInterrupt` with the `best`.

    >>> from bfpp.sim.experiment.experiment import Experiment
    >>> result = synthesize(Experiment("1f1b", pp=2, microbatches=4), seconds=0.1)
    >>> result.step_time, result.bound.seconds
    (13.0, 13.0)
    """
    experiment.require_even("bfpp schedule")
    aim = chosen(Aim, "objective", objective)
    _require_slack(slack, aim)
    _require_time(seconds)
    require_choices(experiment, choose)
    made = boards(experiment, placement, split=split)
    if split and ("recompute" in choose or _recomputes(experiment)):
        # What is recomputed is kept between the halves, which may cost more than they gain.
        made += boards(experiment, placement, split=False)

    def on(board: Board) -> BoardSearch:
        memory = memory_of(board.experiment, memory_limit, memory_gb)
        return BoardSearch(board, memory, aim, problem_of(board, memory))

    with interruptible() as is_interrupted:
        try:
            best = _best(on, made, aim, choose, slack, seconds, progress)
        except InvalidConfiguration:
            if is_interrupted():
                raise KeyboardInterrupt from None
            raise
        if is_interrupted():
            raise Interrupted(best)
    return best


def _best(
    on: SearchOn, made: Sequence[Board], aim: Aim, choose: Sequence[str], slack: float,
    seconds: float, progress: Progress | None,
) -> Synthesis:  # fmt: skip
    share = seconds / len(made)
    choosing = Choosing(on, choose)

    def shortest(board: Board, seconds: float) -> Synthesis:
        if choose:
            return joint(choosing, board, seconds, progress)
        return on(board).best(seconds, progress)

    if aim is not Aim.MEMORY:
        return best_of(all_feasible(lambda each: shortest(each, share), made))
    first = share * SHARE_OF_FASTEST
    fastest = all_feasible(lambda each: (each, shortest(each, first)), made)
    return least_memory(fastest, slack, share - first, progress, choosing)


def _recomputes(experiment: Experiment) -> bool:
    physical = experiment.physical
    return physical is not None and bool(physical.recomputation.modules)


def _require_time(seconds: float) -> None:
    if not is_usable(seconds):
        reason = f"must be a number of seconds, at least 0 and at most {LARGEST:g}, not {seconds!r}"
        raise InvalidConfiguration("seconds", reason)


def _require_slack(slack: float, aim: Aim) -> None:
    if slack and aim is not Aim.MEMORY:
        raise InvalidConfiguration("slack", f"goes with --objective {Aim.MEMORY}, not {aim}")
    if not 0 <= slack < inf:
        raise InvalidConfiguration("slack", "must be a share of the step time of at least 0")
