"""Faults done to real runs: how each ends and how soon, what it leaves, and how it goes on.

Each fault has a folder of its own, where a small model is trained by two ranks (gloo, a
process each) that save every step. Afterwards a healthy run goes on from what is there,
and the losses of all steps, as the metrics file has them, are compared with those of a
run that nothing happened to. All processes that a fault's runs have started, theirs
included, are known by a variable that they inherit.
"""

from __future__ import annotations

import os
import platform
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import uuid4

from benchmarks.helpers.measure import Results
from benchmarks.helpers.programs import (
    MODELS,
    Ended,
    end_of,
    having,
    lines_of,
    program,
    ranks_of,
    step_of,
    steps_of,
    wait_for,
)
from benchmarks.helpers.programs import run as run_program

KILLS = 30
SEED = 1
ENDLESS = 10**6
MORE = 3
"""Steps that a run goes on for after a fault."""

SOON = 10.0
"""Seconds in which a run ends that a process died of, or that somebody asked to end."""

STARTS = 60.0
"""Seconds in which a run is refused that cannot begin: all processes import PyTorch first."""

HANG, LATE = 5.0, 8.0
"""Values of --task-timeout and --start-timeout, where these decide."""

VARIABLE = "BFPP_FAULT"
SCHEDULE = ("breadth-first", "--pp", 2, "--loops", 2, "--microbatches", 4)
OPTIONS = (*SCHEDULE, "--precision", "float64")

Options = Sequence[object]


def undisturbed(steps: int) -> list[float]:
    """The losses of a run that nothing happens to; its ranks share a process."""
    record = run_program(*OPTIONS, "--steps", steps, "--backend", "local", "--json").record
    return [float(loss) for loss in record["losses"]]


@dataclass
class Site:
    """Place of a fault: its folder, and the processes of its runs."""

    folder: Path
    token: str = field(default_factory=lambda: uuid4().hex)

    @property
    def saved(self) -> Path:
        return self.folder / "saved"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics"

    @property
    def steps(self) -> list[int]:
        """The steps of the checkpoints, as they were saved."""
        return [step_of(path) for path in sorted(self.saved.glob("save-*"))]

    @property
    def last(self) -> int:
        """The step of the last checkpoint, 0 without one."""
        return [0, *self.steps][-1]

    @contextmanager
    def run(
        self,
        *options: object,
        steps: int = ENDLESS,
        model: str = "regression",
        variables: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> Iterator[subprocess.Popen[str]]:
        """A run on its way, which saves every step."""
        named = ("--model", f"{MODELS}:{model}", "--steps", steps)
        files = ("--checkpoint", self.saved, "--save-every", 1, "--metrics", self.metrics)
        own = {VARIABLE: self.token, "TMPDIR": str(self.folder), **(variables or {})}
        words = (*OPTIONS, *named, *files, *options)
        with program(*words, variables=own, prefix=prefix) as process:
            try:
                yield process
            finally:
                process.kill()

    def reach(self, step: int) -> None:
        """Until there is a checkpoint of this step, or of a later one."""
        wait_for(lambda: self.last >= step)

    def left(self) -> list[int]:
        """The processes that there still are."""
        return having(VARIABLE, self.token)

    def losses(self) -> dict[int, float]:
        """The losses by step; of a step that was done again, the later one."""
        return {line["step"]: line["loss"] for line in steps_of(self.metrics)}

    def begin(self) -> None:
        """Train a few steps, to which nothing happens."""
        with self.run("--keep", 9, steps=MORE) as process:
            assert end_of(process).code == 0

    def go_on(self, step: int | None = None) -> Ended:
        """Train some more steps, from the last checkpoint or that of a step."""
        first = self.last if step is None else step
        resume = ("--resume", *([] if step is None else [step]))
        with self.run(*resume, "--backend", "local", steps=first + MORE) as process:
            return end_of(process)


@dataclass(frozen=True)
class End:
    """End of a run, and its delay after the fault."""

    ended: Ended
    seconds: float

    @classmethod
    def of(cls, process: subprocess.Popen[str]) -> End:
        """Once it has, from now on."""
        since = time.monotonic()
        return cls(end_of(process), time.monotonic() - since)


@dataclass(frozen=True)
class Fault:
    """A fault, and the exit code and the line that are expected of it.

    `limit` are the seconds that it may take. What was saved last is gone on from, or the
    checkpoint before it where `damages` that; `saves` is whether there is any.
    """

    name: str
    do: Callable[[Site], End]
    code: int
    line: str
    limit: float
    saves: bool = True
    damages: bool = False


# What is done to a run. Each returns how that ended.


def signalled(site: Site, number: int, rank: int | None, options: Options = ()) -> End:
    """A signal, to a rank or else to the launcher."""
    with site.run(*options) as process:
        site.reach(3)
        os.kill(process.pid if rank is None else ranks_of(process)[rank], number)
        return End.of(process)


def launcher_killed(site: Site) -> End:
    with site.run() as process:
        site.reach(3)
        process.kill()
        since = time.monotonic()
        wait_for(lambda: not site.left())
        return End(end_of(process), time.monotonic() - since)


def slow_to_start(site: Site, pause: float, options: Options = ()) -> End:
    """A rank that stands still for so long before it has said that it is there."""
    with site.run(*options, steps=MORE) as process:
        wait_for(lambda: len(ranks_of(process)) == 2)
        pid, since = ranks_of(process)[1], time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        try:
            ended = end_of(process, pause)
        except subprocess.TimeoutExpired:
            os.kill(pid, signal.SIGCONT)
            ended = end_of(process)
        return End(ended, time.monotonic() - since)


def ill(site: Site, model: str, options: Options = ()) -> End:
    """A model with something wrong in the third step."""
    with site.run(*options, model=model) as process:
        site.reach(2)
        return End.of(process)


def disk_full(site: Site) -> End:
    """No file of a rank may be longer than some bytes any more."""
    with site.run() as process:
        site.reach(3)
        for pid in ranks_of(process).values():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (600, resource.RLIM_INFINITY))
        return End.of(process)


def read_only_later(site: Site) -> End:
    with site.run(prefix=AS_ANYBODY) as process:
        site.reach(3)
        site.saved.chmod(0o555)
        end = End.of(process)
        site.saved.chmod(0o755)
        return end


def read_only_before(site: Site) -> End:
    site.saved.mkdir(mode=0o555)
    with site.run(prefix=AS_ANYBODY) as process:
        return End.of(process)


AS_ANYBODY = ("setpriv", "--bounding-set=-dac_override") if os.geteuid() == 0 else ()
"""Permissions bind the superuser too."""


def damaged(site: Site, file: str) -> End:
    """One bit of a file of the last checkpoint."""
    site.begin()
    path = site.saved / f"save-{MORE:06}-step-{MORE}" / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    return resumed(site)


def resumed(site: Site, model: str = "regression") -> End:
    with site.run("--resume", model=model) as process:
        return End.of(process)


def of_another_model(site: Site) -> End:
    site.begin()
    return resumed(site, "wider")


def second_run(site: Site) -> End:
    """Another run in the same directory; the first one goes on."""
    with site.run() as first:
        site.reach(2)
        with site.run("--resume", "--metrics", site.folder / "of the second") as second:
            end = End.of(second)
        site.reach(site.last + 2)
        first.terminate()
        assert end_of(first).code == 128 + signal.SIGTERM
    return end


def joining(site: Site, rank: int, host: str, port: int) -> End:
    """A process that somebody started by hand, as torchrun does."""
    address = {"MASTER_ADDR": host, "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    with site.run("--start-timeout", HANG, variables={**address, "RANK": str(rank)}) as process:
        return End.of(process)


def port_in_use(site: Site) -> End:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return joining(site, 0, "127.0.0.1", server.getsockname()[1])


def kill_at_random(site: Site, chance: random.Random) -> tuple[int, End]:
    """Which rank was killed: while it started, or once some more checkpoints were there."""
    with site.run("--resume") as process:
        wait_for(lambda: len(ranks_of(process)) == 2)
        pids, first = ranks_of(process), site.last
        if chance.random() < 0.25:
            time.sleep(chance.uniform(0, 6))
        else:
            site.reach(first + chance.randrange(1, 20))
            time.sleep(chance.uniform(0, 0.2))
        rank = chance.randrange(2)
        os.kill(pids[rank], signal.SIGKILL)
        return rank, End.of(process)


def killed_again_and_again(site: Site, kills: int) -> End:
    """Each run goes on from what the one before has left; the slowest end, and its line."""
    chance, ends = random.Random(SEED), list[End]()
    for _ in range(kills):
        rank, end = kill_at_random(site, chance)
        if f"process {rank}" not in line_of(end.ended):
            return end
        ends.append(end)
    return max(ends, key=lambda end: end.seconds)


def chain(kills: int) -> Fault:
    """Kills at random moments, each of the run that goes on after the one before."""
    return Fault(
        f"{kills} times SIGKILL of a rank, at random moments",
        partial(killed_again_and_again, kills=kills),
        1,
        r"(rank \d \()?process \d\)? was killed by SIGKILL.*",
        SOON,
    )


IN_THE_THIRD = r"in step 2, in #\d+ forward of stage 2 micro-batch \d on rank 0"
RANK_0, RANK_1 = (rf"rank {rank} \(process {rank}\)" for rank in range(2))
IN_SAVE = r"\(process \d\) failed in (step \d+, in )?saving step \d+"
DAMAGED = r"--resume: \S*/{}: .*damaged.*"

FAULTS = {
    "stopped": Fault(
        "SIGSTOP of a rank",
        partial(signalled, number=signal.SIGSTOP, rank=1, options=("--task-timeout", HANG)),
        1, rf"{RANK_1} gave no sign of life for \d s, last seen .*", HANG + SOON,
    ),
    "late": Fault(
        f"a rank that starts {LATE:.0f} s late",
        partial(slow_to_start, pause=LATE),
        0, "", LATE + STARTS,
    ),
    "too late": Fault(
        "a rank that does not start",
        partial(slow_to_start, pause=STARTS, options=("--start-timeout", LATE)),
        1, r"process 1 has not started after \d+ s.*", LATE + SOON, saves=False,
    ),
    "exception": Fault(
        "an exception in a layer", partial(ill, model="raising"),
        1, rf"{RANK_0} failed {IN_THE_THIRD}: ValueError: the layer broke", SOON,
    ),
    "hang": Fault(
        "an endless loop in a layer",
        partial(ill, model="hanging", options=("--task-timeout", HANG)),
        1, rf"{RANK_0} hangs {IN_THE_THIRD}, for \d s", HANG + SOON,
    ),
    "exit": Fault(
        "os._exit(0) in a layer", partial(ill, model="leaving"),
        1, rf"{RANK_0} exited with code 0, last seen {IN_THE_THIRD}", SOON,
    ),
    "not finite": Fault(
        "a loss that is not a number", partial(ill, model="diverging"),
        1, r"rank \d \(process \d\) failed in step 2.*: .*(nan|not finite).*", SOON,
    ),
    "allocation": Fault(
        "an allocation that fails", partial(ill, model="greedy"),
        1, rf"{RANK_0} failed {IN_THE_THIRD}: out of memory: tried to allocate .*", SOON,
    ),
    "disk": Fault(
        "a disk that fills up (RLIMIT_FSIZE)", disk_full,
        1, rf".*{IN_SAVE}: .*File too large", SOON,
    ),
    "read-only": Fault(
        "a directory that becomes read-only", read_only_later,
        1, rf".*{IN_SAVE}: .*Permission denied", SOON,
    ),
    "never writable": Fault(
        "a directory that is read-only", read_only_before,
        2, r"--checkpoint: .*: Permission denied", STARTS, saves=False,
    ),
    "manifest": Fault(
        "a flipped bit in the manifest", partial(damaged, file="manifest.json"),
        2, DAMAGED.format(r"manifest\.json"), STARTS, damages=True,
    ),
    "metadata": Fault(
        "a flipped bit in the metadata", partial(damaged, file=".metadata"),
        1, r".* failed in loading .*/\.metadata: .*damaged.*", STARTS, damages=True,
    ),
    "data": Fault(
        "a flipped bit in the values", partial(damaged, file="__1_0.distcp"),
        1, r".* failed in loading .*/__1_0\.distcp: .*damaged.*", STARTS, damages=True,
    ),
    "model": Fault(
        "another model's checkpoint", of_another_model,
        1, r".* failed in loading .*: .* in the model", STARTS,
    ),
    "interrupt": Fault(
        "SIGINT of the launcher", partial(signalled, number=signal.SIGINT, rank=None),
        130, "interrupted", SOON,
    ),
    "terminate": Fault(
        "SIGTERM of the launcher", partial(signalled, number=signal.SIGTERM, rank=None),
        143, r"stopped by SIGTERM after step \d+; saved \S+, go on with --resume", SOON,
    ),
    "launcher": Fault(
        "SIGKILL of the launcher", launcher_killed, -signal.SIGKILL, "", SOON,
    ),
    "second": Fault(
        "a second run in the directory", second_run,
        2, r"--checkpoint: \S+ is in use: process \d+ on \S+ has .*; one run at a time", STARTS,
    ),
    "port": Fault(
        "a port that is in use", port_in_use,
        1, r"process 0 cannot host the run's store at 127\.0\.0\.1, port \d+: .*", STARTS,
        saves=False,
    ),
    "refused": Fault(
        "a host on which nobody answers",
        partial(joining, rank=1, host="127.0.0.1", port=1),
        1, r"process 1 cannot reach the run's store at 127\.0\.0\.1, port 1: .*refused",
        HANG + STARTS, saves=False,
    ),
    "host": Fault(
        "a host that cannot be reached",
        partial(joining, rank=1, host="192.0.2.1", port=29500),
        1, r"process 1 cannot reach the run's store at 192\.0\.2\.1, port 29500: .*",
        HANG + STARTS, saves=False,
    ),
}  # fmt: skip


# What came of it


@dataclass(frozen=True)
class Observed:
    """A fault, how it ended, what was left of it, and the losses of all steps in the end."""

    fault: Fault
    end: End
    line: str
    left: int
    promised: int
    kept: int
    again: Ended | None
    losses: dict[int, float]

    @property
    def is_told(self) -> bool:
        """True if it ended in time with the expected exit code, and one line that says why."""
        ended, fault = self.end.ended, self.fault
        return (
            ended.code == fault.code
            and re.fullmatch(fault.line, self.line) is not None
            and self.end.seconds < fault.limit
            and "bfpp is a fault" not in ended.errors
        )

    @property
    def steps(self) -> int:
        """Number of steps trained in the end."""
        return 1 + max(self.losses, default=-1)

    @property
    def keeps(self) -> bool:
        """True if all that was reported as saved is there."""
        return self.kept >= self.promised and (self.kept > 0) == self.fault.saves

    def goes_on(self, losses: Sequence[float]) -> bool:
        """True if a run has gone on, with the losses of a run without a fault."""
        if self.again is None:
            return not self.losses
        again = range(self.kept, self.kept + MORE)
        is_exact = all(losses[step] == loss for step, loss in self.losses.items())
        return self.again.code == 0 and is_exact and self.losses.keys() >= {*again}

    def is_clear(self, losses: Sequence[float]) -> bool:
        """True if all checks of the fault pass."""
        return self.is_told and self.keeps and self.goes_on(losses) and self.left == 0

    def row(self, losses: Sequence[float]) -> dict[str, str]:
        """In words."""
        is_exact = "yes" if self.goes_on(losses) else "no"
        return {
            "fault": self.fault.name,
            "exit code": str(self.end.ended.code),
            "message": self.line or "nothing",
            "seconds": f"{self.end.seconds:.1f} of {self.fault.limit:.0f}",
            "last good state": f"step {self.kept}" if self.kept else "none yet",
            "goes on bit for bit": is_exact if self.again else "-",
            "processes left": str(self.left),
        }


def line_of(ended: Ended) -> str:
    """The run's line about its end, without its name."""
    lines = [line for line in ended.said if line.startswith("bfpp run: ")]
    return lines[0].removeprefix("bfpp run: ") if lines else ""


def observed(fault: Fault, folder: Path) -> Observed:
    """Do it, and go on from what there is."""
    folder.mkdir()
    site = Site(folder)
    end = fault.do(site)
    left = len(site.left())
    promised = [0, *(line["step"] for line in lines_of(site.metrics) if line["event"] == "save")]
    kept = site.steps[-2] if fault.damages else site.last
    again = site.go_on(kept if fault.damages else None) if kept else None
    line = line_of(end.ended).replace(str(folder), "DIR").replace(platform.node(), "HOST")
    unharmed = promised[-1] - fault.damages
    return Observed(fault, end, line, left, unharmed, kept, again, site.losses())


def all_observed(faults: Sequence[Fault]) -> list[Observed]:
    """Each in a folder of its own, one after another."""
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        return [observed(fault, folder / str(at)) for at, fault in enumerate(faults)]
    finally:
        shutil.rmtree(folder)


def run() -> Results:
    found = all_observed([chain(KILLS), *FAULTS.values()])
    losses = undisturbed(max(each.steps for each in found))
    unclear = [each.fault.name for each in found if not each.is_clear(losses)]
    return Results(
        "Faults: how each ends and how soon, what is kept, and whether it goes on bit for bit",
        "each ends within its limit, with one line that says why, and nothing lost or left",
        [each.row(losses) for each in found],
        [
            f"{len(found) - len(unclear)} of {len(found)} do. Not: {', '.join(unclear) or 'none'}.",
            "Seconds are counted from the fault, or from the start of a run that cannot begin.",
            "In the first row, each run goes on from what the one before has left.",
            f"Its line is that of the slowest end, and all of {found[0].steps} steps are compared.",
        ],
    )
