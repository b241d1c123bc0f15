"""A run to be ended in every way: a ring of small gloo exchanges, with a watch.

The same entry serves our own launcher and torchrun (`python toy_run.py FIELDS`).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import distributed

from bfpp.executor.processes.launcher.launch import launch
from bfpp.executor.processes.launcher.process_context import ProcessContext, join
from bfpp.executor.processes.watch.heartbeats import Activity, Limits


def forever() -> None:
    while True:
        pass


def fail() -> None:
    raise ValueError("the weights are gone")


def hold_the_lock() -> None:
    """One call of C that never gives Python's lock back: no thread of the process runs."""
    sum(iter(int, 1))


MISFORTUNES: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "fail": fail,
    "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "leave": lambda: os._exit(0),
    "give up": lambda: os._exit(7),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "loop": forever,
    "hold the lock": hold_the_lock,
}


@dataclass(frozen=True)
class Toy:
    """`misfortune` happens to `process` in step `when`, `pause` seconds into a computation.

    It starts `late` by so many seconds, as one that imports over a network.
    """

    steps: int = 5
    pause: float = 0.0
    misfortune: str = "nothing"
    process: int = 1
    when: int = 3
    hang: float = 60.0
    late: float = 0.0
    start: float = 300.0

    def __setstate__(self, fields: dict[str, Any]) -> None:
        """A process's arguments are read before its first heartbeat."""
        self.__dict__.update(fields)
        self.dawdle()

    def dawdle(self) -> None:
        if os.environ.get("RANK") == str(self.process):
            time.sleep(self.late)


@dataclass(frozen=True)
class Total:
    value: float
    threads: int


TASKS = (
    Activity("forward of stage 1, micro-batch 0", number=0),
    Activity("all-reduce of stage 1", (0, 1), number=1),
)


def train(context: ProcessContext, toy: Toy) -> Total:
    watch = context.watch
    watch.introduce(f"rank {context.process}", TASKS.__getitem__)
    join(context)
    sys.stderr.write("this belongs to the log\n")
    pids = torch.zeros(context.processes, dtype=torch.int64)
    pids[context.process] = os.getpid()
    distributed.all_reduce(pids)
    context.send({"pids": pids.tolist()})
    total = torch.zeros(1)
    for step in range(toy.steps):
        watch.step = step
        watch.enter("compute", 0)
        if (toy.process, toy.when) == (context.process, step):
            time.sleep(toy.pause)
            MISFORTUNES[toy.misfortune]()
        watch.leave("compute")
        watch.enter("data", 1)
        distributed.all_reduce(total.add_(1))
        watch.leave("data")
        context.send({"step": step, "total": total.item()})
    return Total(total.item(), torch.get_num_threads())


def wait_for_each_other(context: ProcessContext, _: Toy) -> None:
    """Both receive and nobody sends."""
    peer = 1 - context.process
    context.watch.introduce(
        f"rank {context.process}", lambda number: Activity(f"receive {number}", (peer,), number)
    )
    join(context)
    context.watch.step = 0
    context.watch.enter("receive", 5 + context.process)
    distributed.recv(torch.zeros(1), src=peer)


def say(words: object) -> None:
    sys.stdout.write(f"{json.dumps(words)}\n")
    sys.stdout.flush()


def main() -> None:
    toy = Toy(**json.loads(sys.argv[1]))
    toy.dawdle()
    limits = Limits(hang=toy.hang, start=toy.start)
    outcome = launch(train, toy, 2, limits, say)
    say({"outcome": outcome and asdict(outcome)})


if __name__ == "__main__":
    main()
