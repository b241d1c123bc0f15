"""Where a process is among the others, and how it gets there.

The processes that we start ourselves see the same environment variables as
those of torchrun, so there is one way in.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import torch
from torch import distributed

from bfpp.executor.events import Message
from bfpp.executor.processes.beats import Activity, Limits
from bfpp.executor.processes.stopping import Stop, offer
from bfpp.executor.processes.watch import Watch

FOREVER = timedelta(days=30)


@dataclass(frozen=True)
class Place:
    """One process of the run, numbered as torch does: `process` of `processes`.

    `local` numbers those of one host, and so its GPU. `send` gives a message
    to whoever started the run, from the first process, and nothing elsewhere.
    `stop` says whether this process was asked to end the run in order.
    """

    process: int
    processes: int
    local: int
    store: distributed.Store
    watch: Watch
    limits: Limits
    send: Callable[[Message], None]
    stop: Stop = field(default_factory=Stop)

    @property
    def is_first(self) -> bool:
        """Whether it is the process whose outcome is the run's."""
        return self.process == 0

    @property
    def others(self) -> tuple[int, ...]:
        """The numbers of all other processes."""
        return tuple(each for each in range(self.processes) if each != self.process)

    def offer_to_stop(self) -> None:
        """From now on, who asks the run to end is not answered by ending it at once."""
        if self.is_first:
            offer(self.store)

    @property
    def timeout(self) -> timedelta:
        """What a communication may take."""
        return self.limits.communication


def connect(timeout: timedelta) -> distributed.TCPStore:
    """A connection of its own to the store that the environment names.

    One that waits for a key blocks whoever else uses it, so each thread that
    must not wait has one.
    """
    return distributed.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        timeout=timeout,
        wait_for_workers=False,
    )


def join(place: Place) -> None:
    """Make the default process group: over gloo, whatever the devices."""
    with place.watch.during(Activity("joining the process group", place.others)):
        distributed.init_process_group(
            "gloo",
            store=distributed.PrefixStore("group", place.store),
            rank=place.process,
            world_size=place.processes,
            timeout=place.timeout,
        )


def part(place: Place) -> None:
    """The end of `join`, where it was called."""
    if distributed.is_initialized():
        with place.watch.during(Activity("leaving the process group")):
            distributed.destroy_process_group()


def use_cores(processes: int) -> None:
    """Shares the host's cores among its processes, unless the user has done so."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, cores() // processes))


def cores() -> int:
    """The cores that this process may use, where the system tells; else all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
