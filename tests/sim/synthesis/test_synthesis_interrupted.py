"""Ctrl-C while an order is sought: it ends soon, and what was found until then is kept."""

from __future__ import annotations

import json
import os
import signal
import time
from threading import Timer

import pytest

from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.synthesis import ordering, synthesize
from bfpp.sim.synthesis.outcome import Interrupted

LONG = 60.0
"""Seconds of a search that would not end before."""

SHARES = {"proven_at_once": (0.99, 0.0), "search": (0.0, 0.0), "refined": (0.0, 0.99)}
"""By part of the search: of the time, for what CP-SAT proves at first, and after the search."""

GIVEN = {"pp": 8, "microbatches": 32, "forward": 10, "backward_input": 12, "backward_weight": 8}


@pytest.fixture
def interrupted_in(monkeypatch):
    """Interrupts this process soon after a part of the search begins that has nearly all time."""
    timer = Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))

    def arrange(part: str) -> None:
        if part != "search":
            pytest.importorskip("ortools")
        at_first, after = SHARES[part]
        monkeypatch.setattr(ordering, "SHARE_OF_FIRST_PROOF", at_first)
        monkeypatch.setattr(ordering, "SHARE_OF_PROOF", after)
        begin = getattr(ordering, part)

        def begun(*given):
            if not timer.ident:
                timer.start()
            return begin(*given)

        monkeypatch.setattr(ordering, part, begun)

    yield arrange
    timer.cancel()


@pytest.mark.parametrize("part", [*SHARES])
def test_the_best_so_far_is_printed_and_written(tmp_path, bfpp, answer, interrupted_in, part):
    """By the search itself, and by CP-SAT, which Python's handlers of signals do not reach."""
    before, path = signal.getsignal(signal.SIGINT), tmp_path / "best.csv"
    given = [word for name, value in GIVEN.items() for word in (f"--{name}", str(value))]
    interrupted_in(part)
    begun = time.monotonic()
    code, out, err = bfpp(
        "schedule", *(each.replace("_", "-") for each in given), "--memory-limit", "4",
        "--seconds", f"{LONG:g}", "--json", "--out", path,
    )  # fmt: skip
    assert time.monotonic() - begun < LONG / 2
    assert code == 130
    assert err == (
        "bfpp schedule: interrupted: this is the best order found so far\n"
        f"wrote {path}\n"
    )  # fmt: skip
    assert answer("simulate", str(path))["step_time"] == json.loads(out)["step_time"]
    assert signal.getsignal(signal.SIGINT) is before


def test_in_python_it_is_a_keyboard_interrupt_with_the_best_so_far(interrupted_in) -> None:
    interrupted_in("search")
    with pytest.raises(KeyboardInterrupt) as caught:
        synthesize(Experiment("1f1b", **GIVEN), memory_limit=4, seconds=LONG)
    assert isinstance(caught.value, Interrupted)
    assert caught.value.best.bound.seconds < caught.value.best.seconds
