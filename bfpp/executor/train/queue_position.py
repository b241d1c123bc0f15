"""The position of a device in its queue of tasks, by the marks that it has passed.

Lanes are in-order queues, so a lane is in the first part of a task whose end it
has not passed: all before it are over, and stay so. A cursor for each lane stays
there from look to look, and queries no mark again that it has seen passed. A look
happens while the host goes on to queue tasks and to end steps. A step's marks are
reused once it is over, so their answers count only for steps that are still under
way once all have been queried.
"""

from __future__ import annotations

from dataclasses import dataclass

from bfpp.executor.dispatch.dispatch import Step
from bfpp.executor.dispatch.worker import Worker
from bfpp.executor.processes.watch.watch import Watch
from bfpp.executor.train.trainer import Trainer
from bfpp.schedules import Task


def lane_name(worker: Worker, task: Task | None = None) -> str:
    """The name of a worker's lane, by the task that is on it."""
    number = "" if task is None else task.peer_lane if task.peer == worker.rank else task.lane
    return f"{worker.rank}.{worker.pipeline}.{number}"


@dataclass(frozen=True)
class LanePart:
    """A lane's part in a task, by its place among all parts of a step (`Step.times`).

    It begins when those that it meets, itself among them, are ready.
    """

    place: int
    joint: range


class Cursor:
    """The first part of a lane whose end was not passed at the last look."""

    def __init__(self) -> None:
        self.parts: list[LanePart] = []
        self.step: Step | None = None
        self.position = 0

    def look(self, steps: tuple[Step, ...]) -> tuple[Step, int] | None:
        """The step and the number of the task that the lane is in, if it is in one."""
        for step in self._left(steps):
            if step is not self.step:
                self.step, self.position = step, 0
            while self.position < len(self.parts):
                part = self.parts[self.position]
                if part.joint.stop > len(step.times):  # not queued yet
                    return None
                own = step.times[part.place]
                if not own.end.passed():
                    begun = all(step.times[each].ready.passed() for each in part.joint)
                    return (step, own.task) if begun else None
                self.position += 1
        return None

    def _left(self, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        """The steps from the cursor's own on; all, if that is over."""
        places = [place for place, step in enumerate(steps) if step is self.step]
        return steps[places[0] :] if places else steps


class Queued:
    """Reports to the watch which task each lane of a device is in."""

    def __init__(self, trainer: Trainer, watch: Watch) -> None:
        self.trainer, self.watch = trainer, watch
        self.doing: dict[str, tuple[int, int]] = {}
        self.cursors: dict[str, Cursor] = {}
        place = 0
        for ends, _ in trainer.dispatcher.program:
            joint = range(place, place + len(ends))
            for place, end in zip(joint, ends, strict=True):
                lane = f"queued {lane_name(end.worker, end.task)}"
                self.cursors.setdefault(lane, Cursor()).parts.append(LanePart(place, joint))
            place = joint.stop

    def look(self) -> None:
        """Report to the watch which task each lane is in."""
        now = self._doing()
        for lane in self.doing.keys() - now.keys():
            self.watch.leave(lane)
        for lane, (step, task) in now.items():
            if self.doing.get(lane) != (step, task):
                self.watch.see(lane, task)
        self.doing = now

    def _doing(self) -> dict[str, tuple[int, int]]:
        """The step and the task under way, by lane."""
        steps = tuple(self.trainer.under_way)
        places = {lane: cursor.look(steps) for lane, cursor in self.cursors.items()}
        left = {id(step) for step in tuple(self.trainer.under_way)}
        return {
            lane: (step.number, task)
            for lane, (step, task) in ((lane, at) for lane, at in places.items() if at)
            if id(step) in left
        }
