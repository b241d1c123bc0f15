"""`bfpp.train` does as its arguments and its experiment say, or refuses them in one line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bfpp
from bfpp.executor.run.session import TrainingResult
from bfpp.schedules import InvalidConfiguration
from tests.helpers.small_models import chain

pytestmark = pytest.mark.usefixtures("one_thread", "forked_processes")

TINY = bfpp.Transformer(
    "tiny", layers=2, hidden=16, heads=2, sequence=8, vocabulary=257, tied_embeddings=False
)


def trained(**values: Any) -> TrainingResult:
    """A step of a small transformer on two ranks, by an experiment with these values."""
    return bfpp.train(TINY, bfpp.Experiment("gpipe", pp=2, microbatches=2, **values), steps=1)


def held(result: TrainingResult, part: str) -> float:
    """The most bytes of a part of the first rank's memory."""
    return float(np.max(result.memory[0].held.during[part]))


def test_what_the_experiment_recomputes_is_not_kept() -> None:
    nothing, all_of_it = trained(recompute="none"), trained(recompute="full")
    assert held(all_of_it, "saved activations") == 0 < held(nothing, "saved activations")
    assert held(trained(), "saved activations") == 0


def test_the_precision_is_the_experiments() -> None:
    single, double = trained(), trained(precision="fp64")
    assert held(double, "training state") == 2 * held(single, "training state")


REFUSED: dict[str, dict[str, Any]] = {
    "steps: 0 is not a positive whole number": {"steps": 0},
    "steps: 1.5 is not a positive whole number": {"steps": 1.5},
    "precision: 'fp65' is not one of": {"precision": "fp65"},
    "backend: 'gloo' is not one of": {"backend": "gloo"},
    "model: model.py is neither FILE.py:FUNCTION nor": {"model": "model.py"},
    "model: Model.* is no function": {"model": chain(2)},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_is_refused(reason: str) -> None:
    arguments = {"model": TINY, "steps": 1} | REFUSED[reason]
    model = arguments.pop("model")
    with pytest.raises(InvalidConfiguration, match=reason):
        bfpp.train(model, bfpp.Experiment("gpipe", pp=2, microbatches=2), **arguments)
