"""What a prediction says beside its times: of which costs it is, and how far it is."""

from __future__ import annotations

import sys
from io import StringIO
from typing import Any

import pytest
from rich.progress import Progress

import bfpp
from bfpp.api import predictions

ABSTRACT = bfpp.Experiment(
    "1f1b", pp=2, microbatches=2, forward=1, backward=2, transfer=0.5, reduce=0.25, optimizer=0.125
)
DEGREES = {"pp": 2, "dp": 4, "tp": 2, "cp": 1, "ep": 1, "dp_replicate": 1}


def test_a_timeline_says_of_which_costs_it_is() -> None:
    about = bfpp.predict(ABSTRACT).timeline.about
    costs = {"forward": 1, "backward": 2, "transfer": 0.5, "reduce": 0.25, "optimizer": 0.125}
    assert about.items() >= costs.items()


def test_a_timeline_says_of_which_model_and_devices_it_is() -> None:
    job = bfpp.Experiment(
        "1f1b", model="bert-6.6b", cluster="dgx1-v100", microbatches=4, microbatch_size=2,
        sequence_parallel=True, **DEGREES,
    )  # fmt: skip
    about = bfpp.predict(job).timeline.about
    named = {"model": "bert-6.6b", "cluster": "dgx1-v100", "microbatch_size": 2}
    assert about.items() >= (named | DEGREES).items()
    assert about["sequence_parallel"] == "true"


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("least", "is_terminal", "told"),
    [(1, True, [1024, 2048, 3072]), (1, False, []), (10_000, True, [])],
)
def test_a_long_replay_tells_a_terminal_how_far_it_is(
    least: int, is_terminal: bool, told: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Heard(Progress):
        def update(self, *given: Any, **changed: Any) -> None:
            heard.append(changed["completed"])
            super().update(*given, **changed)

    heard: list[int] = []
    monkeypatch.setattr("rich.progress.Progress", Heard)
    monkeypatch.setattr(predictions, "SHOW_PROGRESS_FROM", least)
    monkeypatch.setattr(sys, "stderr", Terminal() if is_terminal else StringIO())
    graph = bfpp.build_graph("gpipe", bfpp.Layout(4, 250))  # 2,000 passes, 1,500 transfers
    predictions.predict(ABSTRACT, graph=graph, engine="simpy")
    assert heard == told
