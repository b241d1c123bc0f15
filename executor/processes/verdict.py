"""Who is to blame when a run stops: a pure function of what was last seen.

The rules, tried in this order, name a culprit and not one of its victims:

1. An exception that was not raised in communication explains itself.
2. A process that gives no sign of life is dead or stopped.
3. A computation that takes longer than the limit hangs. (A wait may be long:
   the last rank waits for all others' first tasks.)
4. A connection that failed is named only if nothing above explains it in time.
5. Where nobody moves and everybody waits, the earliest task says who for whom.

What only a parent knows, how a process ended, goes before all of these.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from executor.processes.beats import Beat, Failure, LaneState, Limits

Wait = tuple[int, int, int, LaneState]  # step, task number, process, lane

MOST_WAITS = 6  # lines of a message that says who waits for whom


@dataclass(frozen=True)
class Verdict:
    """The process to blame, and why in a sentence; `traceback` where there is one.

    `alive`: it may still be asked where it hangs. `foreseen`: nothing is to be
    added to the message.
    """

    process: int
    message: str
    traceback: str = ""
    alive: bool = False
    foreseen: bool = False

    def __str__(self) -> str:
        return "\n".join(filter(None, (self.message, self.traceback.rstrip())))

    def to_json(self) -> str:
        """The form in the store."""
        return json.dumps(asdict(self))


def verdict_from_json(text: str | bytes) -> Verdict:
    """The inverse of `Verdict.to_json`."""
    return Verdict(**json.loads(text))


@dataclass(frozen=True)
class Scene:
    """The last beat of each process, and for how many seconds it has been silent.

    `ending`: somebody already asked the processes to end, so one must have died.
    """

    beats: tuple[Beat | None, ...]
    silent: tuple[float, ...]
    limits: Limits
    ending: bool = False

    @property
    def patience(self) -> float:
        """Seconds of silence that are too many: few, once something is known to be wrong."""
        suspicious = self.ending or any(beat.failure for _, beat in self.known())
        return self.limits.grace if suspicious else self.limits.hang

    def known(self) -> Iterator[tuple[int, Beat]]:
        """The processes that have said something and are not done."""
        for process, beat in enumerate(self.beats):
            if beat is not None and not beat.done:
                yield process, beat

    def name(self, process: int) -> str:
        """`rank 1 (process 3)`; before a process has said its rank, `process 3`."""
        beat = self.beats[process]
        return f"{beat.title} (process {process})" if beat and beat.title else f"process {process}"

    def where(self, process: int, lead: str = ", last seen ") -> str:
        """`, last seen in step 12, in backward of stage 3`, as far as that is known."""
        beat = self.beats[process]
        if beat is None:
            return " before it had started"
        step = "" if beat.step is None else f"in step {beat.step}, "
        return f"{lead}{step}{_doing(beat)}"


def judge(scene: Scene) -> Verdict | None:
    """The first rule's verdict, or none while all may still be well."""
    return next(filter(None, (rule(scene) for rule in RULES)), None)


def judge_exit(scene: Scene, process: int, status: int) -> Verdict:
    """The verdict on a process that ended, by its exit code or its signal (negative)."""
    end = f"was killed by {_signal_name(-status)}" if status < 0 else f"exited with code {status}"
    return Verdict(process, f"{scene.name(process)} {end}{scene.where(process)}")


def _raised(scene: Scene) -> Verdict | None:
    for process, beat in scene.known():
        if beat.failure and not beat.failure.in_communication:
            return _failed(scene, process, "failed", beat.failure)
    return None


def _failed(scene: Scene, process: int, how: str, failure: Failure) -> Verdict:
    beat = scene.beats[process]
    step = f"step {beat.step}" if beat and beat.step is not None else ""
    where = ", ".join(f"in {part}" for part in (step, failure.activity) if part)
    message = " ".join(filter(None, (scene.name(process), how, where)))
    message = f"{message}: {failure.error}"
    return Verdict(process, message, failure.traceback, foreseen=failure.foreseen)


def _silent(scene: Scene) -> Verdict | None:
    for process, seconds in enumerate(scene.silent):
        beat = scene.beats[process]
        allowed = scene.limits.start if beat is None else scene.patience
        if seconds > allowed and not (beat and beat.done):
            message = f"{scene.name(process)} gave no sign of life for {seconds:.0f} s"
            return Verdict(process, message + scene.where(process), alive=True)
    return None


def _hangs(scene: Scene) -> Verdict | None:
    over = [
        (lane.seconds, process)
        for process, beat in scene.known()
        for lane in beat.computing
        if lane.seconds > (lane.activity.limit or scene.limits.hang)
    ]
    if not over:
        return None
    seconds, process = max(over)
    message = f"{scene.name(process)} hangs{scene.where(process, lead=' ')}"
    return Verdict(process, f"{message}, for {seconds:.0f} s", alive=True)


def _disconnected(scene: Scene) -> Verdict | None:
    late = {
        process: beat.failure
        for process, beat in scene.known()
        if beat.failure and beat.failure.seconds > 2 * scene.limits.grace
    }
    if not late:
        return None
    first = min(late, key=lambda process: (late[process].number or 0, process))
    return _failed(scene, first, "lost its connection", late[first])


def _standstill(scene: Scene) -> Verdict | None:
    known = dict(scene.known())
    if not known or any(_may_be_well(beat, scene.limits) for beat in known.values()):
        return None
    waits: list[Wait] = [
        (beat.step or 0, lane.activity.number or 0, process, lane)
        for process, beat in known.items()
        for lane in beat.waiting[:1]
    ]
    waits.sort(key=lambda wait: wait[:3])
    return _idle(scene, known, waits) or _all_wait(scene, waits)


def _may_be_well(beat: Beat, limits: Limits) -> bool:
    """Whether it moves, or may take its time: in a computation, or outside the steps."""
    outside = beat.step is None and not beat.waiting
    return beat.quiet <= limits.hang or bool(beat.computing) or outside


def _idle(scene: Scene, known: dict[int, Beat], waits: list[Wait]) -> Verdict | None:
    """A process that waits for nobody has stopped by itself."""
    for process, beat in known.items():
        if not beat.waiting:
            message = f"{scene.name(process)} has begun no task for {beat.quiet:.0f} s"
            lines = [message + scene.where(process), *_lines(scene, waits)]
            return Verdict(process, "\n".join(lines), alive=True)
    return None


def _all_wait(scene: Scene, waits: list[Wait]) -> Verdict:
    *_, process, _lane = waits[0]
    message = f"nothing has moved for {scene.limits.hang:.0f} s: all processes wait for each other"
    return Verdict(process, "\n".join([message, *_lines(scene, waits)]), alive=True)


def _lines(scene: Scene, waits: list[Wait]) -> Iterator[str]:
    for step, _, process, lane in waits[:MOST_WAITS]:
        peers = " and ".join(scene.name(peer) for peer in lane.activity.peers[:2])
        yield f"  {scene.name(process)} waits for {peers} in step {step}, in {lane.activity.words}"
    if len(waits) > MOST_WAITS:
        yield f"  and {len(waits) - MOST_WAITS} more"


def _doing(beat: Beat) -> str:
    """`in backward of stage 3`: what a process computes, or waits in, or did last."""
    for lanes, preposition in ((beat.computing, "in"), (beat.waiting, "in"), (beat.ended, "after")):
        if lanes:
            return f"{preposition} {lanes[0].activity.words}"
    return "before its first task"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


RULES: tuple[Callable[[Scene], Verdict | None], ...] = (
    _raised,
    _silent,
    _hangs,
    _disconnected,
    _standstill,
)
