"""When a process of torchrun's that is asked to end does so, and what it says."""

from __future__ import annotations

import os
import signal

import pytest
from torch.distributed import HashStore

from bfpp.executor.events import Message
from bfpp.executor.processes.launcher.process_context import ProcessContext
from bfpp.executor.processes.launcher.sigterm import ECHO, Stop, offer
from bfpp.executor.processes.launcher.torchrun import Diagnoser
from bfpp.executor.processes.watch.heartbeats import Limits
from bfpp.executor.processes.watch.watch import Watch

LOOKS = 4
"""Twice the grace of 1 s, in heartbeats of 0.5 s."""

INTERRUPTED = [{"event": "end", "how": "interrupted", "reason": ""}]


class Process:
    """The second of three: neither the first nor the last, which diagnose."""

    def __init__(self) -> None:
        self.now, self.sent, self.store = 0.0, list[Message](), HashStore()
        limits = Limits(grace=1.0, heartbeat=0.5)
        self.stop = Stop(lambda: self.now)
        context = ProcessContext(1, 3, 0, self.store, Watch(), limits, self.sent.append, self.stop)
        self._diagnoser = Diagnoser(context, self.store)

    def ends_with(self, signal_number: int = 0, looks: int = 1) -> int | None:
        """The exit code, if it ends within some looks."""
        try:
            for _ in range(looks):
                self._diagnoser.look(signal_number)
        except SystemExit as end:
            return int(str(end.code))
        return None


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)
    return Process()


def test_who_is_not_asked_stays(process: Process) -> None:
    assert process.ends_with(looks=3 * LOOKS) is None
    assert process.sent == []


def test_an_interrupt_ends_it_at_once(process: Process) -> None:
    assert process.ends_with(signal.SIGINT) == 130
    assert process.sent == INTERRUPTED


def test_who_is_asked_leaves_time_for_a_diagnosis_and_ends(process: Process) -> None:
    assert process.ends_with(signal.SIGTERM) is None
    assert process.ends_with(looks=LOOKS - 1) is None
    assert process.sent == []
    assert process.ends_with() == 143
    assert process.sent == INTERRUPTED


def test_who_has_something_to_save_goes_on_until_it_is_asked_again(process: Process) -> None:
    offer(process.store)
    assert process.ends_with(signal.SIGTERM) is None
    assert process.ends_with(looks=3 * LOOKS) is None
    process.now = ECHO / 2  # the same request, forwarded by the launcher
    assert process.ends_with(signal.SIGTERM) is None
    process.now = ECHO * 1.5
    assert process.ends_with(signal.SIGTERM) == 143


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [(Limits(), 3600), (Limits(hang=1000), 10_000), (Limits(start=4000), 8000)],
    ids=str,
)
def test_torchs_own_timeout_is_longer_than_any_of_the_watch(limits: Limits, seconds: int) -> None:
    assert limits.communication.total_seconds() == seconds
