"""Jobs made up for the analysis of stragglers: rows as a profiler of Megatron-LM records them.

Each rank runs its passes in the order of a schedule of ours, and waits for what it receives. Sends
and receives last from when their own end is ready; so do collectives at each of their members.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from random import Random
from typing import Any

from bfpp.schedules import Layout, find_schedule
from bfpp.schedules.operations.operations import Operation

COLUMNS = (
    "dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mb_id", "mc",
    "gmc",
)  # fmt: skip

FORWARD, BACKWARD = "forward", "backward"
LETTERS = {Operation.FORWARD: FORWARD, Operation.BACKWARD: BACKWARD}
SHARE = {FORWARD: 1.0, BACKWARD: 2.1, "optimizer": 0.2}
"""The time of an operation, relative to a forward pass."""

TRANSFER, NOTHING = 4e-4, 2e-6
"""Seconds of a transfer, and of what is recorded but does not run."""

Row = dict[str, Any]
Worker = tuple[int, int]

Scale = Callable[[int, int, int, str], float]
"""By how much an operation of a step, replica, rank and type takes longer."""


@dataclass
class Job:
    """A job: its sizes, and what is uneven in it."""

    dp: int = 2
    pp: int = 4
    vpp: int = 1
    microbatches: int = 4
    steps: tuple[int, ...] = (3, 4, 7)
    scale: Scale = lambda *_: 1.0
    noise: float = 0.02
    gap: float = 1e-3
    overlapped: bool = False
    seed: int = 0
    forward: float = 0.06
    random: Random = field(init=False)

    def rows(self) -> list[Row]:
        """The rows of the job's table."""
        self.random = Random(self.seed)
        return [row for step in self.steps for row in _Step(self, step).rows()]

    def columns(self) -> dict[str, list[Any]]:
        """The same, a list a column."""
        return columns_of(self.rows())

    def drawn(self, seconds: float) -> float:
        return seconds * self.random.lognormvariate(0.0, self.noise)

    def delay(self) -> float:
        return self.gap * self.random.random()

    def orders(self) -> list[list[tuple[str, int, int]]]:
        """For each rank, its passes: type, chunk and micro-batch."""
        rule = find_schedule("1f1b" if self.vpp == 1 else "depth-first")
        return [
            [
                (LETTERS[operation], stage // self.pp, microbatch)
                for operation, stage, microbatch, _ in order.tolist()
            ]
            for order in rule.orders(Layout(self.pp, self.microbatches, self.vpp))
        ]


def columns_of(rows: list[Row]) -> dict[str, list[Any]]:
    """Rows as columns; -1 where there is no such thing."""
    return {name: [row.get(name, -1) for row in rows] for name in COLUMNS}


def parquet_of(columns: Mapping[str, Any]) -> bytes:
    """The contents of a Parquet file."""
    import pyarrow as arrow
    from pyarrow.parquet import write_table

    file = BytesIO()
    write_table(arrow.table(dict(columns)), file)
    return file.getvalue()


class _Step:
    """One step of a job, as it runs."""

    def __init__(self, job: Job, step: int) -> None:
        self.job, self.step = job, step
        self.found: list[Row] = []

    def rows(self) -> list[Row]:
        """All rows, numbered by start within their type on a worker."""
        gathered = self._gathers()
        ran = [_Pipeline(self, replica, gathered) for replica in range(self.job.dp)]
        ends = {(each.replica, rank): end for each in ran for rank, end in enumerate(each.run())}
        self._update(ends, {key: end for each in ran for key, end in each.reducible().items()})
        counts: dict[tuple[int, int, str], int] = defaultdict(int)
        for row in sorted(self.found, key=lambda row: row["start_ts"]):
            key = row["dp_rank"], row["stage"], row["optype"]
            row["seq_id"] = counts[key]
            counts[key] += 1
        return self.found

    def scaled(self, worker: Worker, kind: str) -> float:
        return self.job.scale(self.step, *worker, kind)

    def add(self, worker: Worker, optype: str, start: float, end: float, **more: int) -> None:
        replica, rank = worker
        self.found.append(
            {
                "dp_rank": replica, "stage": rank, "rank": rank * self.job.dp + replica,
                "step": self.step, "optype": optype, "start_ts": 10 * self.step + start,
                "duration": end - start, **more,
            }
        )  # fmt: skip

    def _together(
        self, optype: str, starts: Mapping[Worker, float], seconds: float, **more: int
    ) -> dict[Worker, float]:
        """A collective of some workers, each from its own start; when each has ended."""
        begin = max(starts.values())
        slowest = max(self.scaled(worker, optype) for worker in starts)
        ends = {worker: begin + self.job.drawn(seconds * slowest) for worker in starts}
        for worker, start in starts.items():
            self.add(worker, optype, start, ends[worker], **more)
        return ends

    def _of_rank(self, rank: int) -> list[Worker]:
        return [(replica, rank) for replica in range(self.job.dp)]

    def _gathers(self) -> dict[tuple[int, int, int], float]:
        """By replica, rank and chunk, when its parameters are there."""
        job, gathered = self.job, {}
        for rank in range(job.pp):
            free = {worker: job.delay() for worker in self._of_rank(rank)}
            for chunk in range(job.vpp):
                free = self._together("params-all-gather", free, 0.02 / job.vpp, mc=chunk)
                gathered |= {(*worker, chunk): end for worker, end in free.items()}
        return gathered

    def _update(
        self, ends: dict[Worker, float], reducible: Mapping[tuple[int, int, int], float]
    ) -> None:
        job, workers = self.job, list(ends)
        reduced = self._reductions(reducible) if job.overlapped else ends
        for worker in workers:
            collected = ends[worker] + 1e-3 * (self.scaled(worker, "gc") - 1)
            self.add(worker, "gc", ends[worker], collected)
            start = max(collected, reduced[worker]) + job.delay()
            ends[worker] = start + 4e-5
            self.add(worker, "layernorm-grads-all-reduce", start, ends[worker])
        for replica in range(job.dp):
            pair = {(replica, rank): ends[replica, rank] for rank in {0, job.pp - 1}}
            ends |= self._together("embedding-grads-all-reduce", pair, 0.01)
        for rank in range(job.pp):
            own = {worker: ends[worker] for worker in self._of_rank(rank)}
            if job.overlapped:
                ends |= self._together("separate-grads-all-reduce", own, 0.004)
                continue
            for chunk in reversed(range(job.vpp)):
                own = self._together("grads-reduce-scatter", own, 0.03 / job.vpp, mc=chunk)
            ends |= own
        ends |= self._together("optimizer-clip-main-grad", ends, 0.002)
        for worker in workers:
            seconds = job.drawn(SHARE["optimizer"] * job.forward)
            self.add(worker, "optimizer", ends[worker], ends[worker] + seconds)

    def _reductions(self, ready: Mapping[tuple[int, int, int], float]) -> dict[Worker, float]:
        """Reductions that overlap passes, the last chunk first; when each worker has all."""
        job, free = self.job, dict[Worker, float]()
        for rank in range(job.pp):
            for chunk in reversed(range(job.vpp)):
                own = {
                    worker: max(ready[(*worker, chunk)] + 1e-5, free.get(worker, 0.0))
                    for worker in self._of_rank(rank)
                }
                free |= self._together("grads-reduce-scatter", own, 0.03 / job.vpp, mc=chunk)
        return free


class _Pipeline:
    """The passes of a replica, run in turn on each rank."""

    def __init__(
        self, step: _Step, replica: int, gathered: Mapping[tuple[int, int, int], float]
    ) -> None:
        self.step, self.replica, self.gathered = step, replica, gathered
        job = self.job = step.job
        self.orders = job.orders()
        self.done = [0] * job.pp
        self.free = [0.0] * job.pp
        self.posted: list[dict[str, float]] = [{} for _ in range(job.pp)]
        """By type, when a rank posts its next receive: with the end of its last pass."""
        self.received: dict[tuple[int, str], float] = defaultdict(float)
        self.ended: dict[tuple[str, int, int], float] = {}

    def run(self) -> list[float]:
        """Run all passes; when each rank has ended its last one."""
        job = self.job
        while any(self.done[rank] < len(self.orders[rank]) for rank in range(job.pp)):
            before = sum(self.done)
            for rank in range(job.pp):
                while self.done[rank] < len(self.orders[rank]) and self._pass(rank):
                    self.done[rank] += 1
            assert sum(self.done) > before, "the ranks wait for each other"
        return self.free

    def reducible(self) -> dict[tuple[int, int, int], float]:
        """By replica, rank and chunk, when its last backward pass has ended."""
        found: dict[tuple[int, int, int], float] = defaultdict(float)
        for (kind, stage, _), end in self.ended.items():
            chunk, rank = divmod(stage, self.job.pp)
            if kind == BACKWARD:
                key = self.replica, rank, chunk
                found[key] = max(found[key], end)
        return found

    def _pass(self, rank: int) -> bool:
        """Run a rank's next pass, if what it receives has been sent; whether it ran."""
        job, worker = self.job, (self.replica, rank)
        kind, chunk, microbatch = self.orders[rank][self.done[rank]]
        stage = chunk * job.pp + rank
        onwards = 1 if kind == FORWARD else -1
        ready = self._receive(rank, kind, stage, stage - onwards, microbatch)
        if ready is None:
            return False
        if kind == FORWARD:
            ready = max(ready, self.gathered[(*worker, chunk)])
        start = ready + job.delay()
        seconds = job.drawn(SHARE[kind] * job.forward / job.vpp) * self.step.scaled(worker, kind)
        end = self.free[rank] = self.posted[rank][kind] = start + seconds
        self.step.add(worker, f"{kind}-compute", start, end, mb_id=microbatch, mc=chunk, gmc=stage)
        first = next(at for at, each in enumerate(self.orders[rank]) if each[0] == BACKWARD)
        if self.done[rank] == first - 2:
            self.posted[rank].setdefault(BACKWARD, end)
        self.ended[kind, stage, microbatch] = end
        if job.vpp > 1 and not 0 <= stage + onwards < job.pp * job.vpp:
            self.step.add(worker, f"{kind}-send", end, end + NOTHING)
        return True

    def _receive(
        self, rank: int, kind: str, stage: int, source: int, microbatch: int
    ) -> float | None:
        """The time when a pass has its input, or None if that has not been sent."""
        job, worker = self.job, (self.replica, rank)
        posted = self.posted[rank].get(kind, 0.0) + 1e-5
        if 0 <= source < job.pp * job.vpp:
            if (kind, source, microbatch) not in self.ended:
                return None
            sent = self.ended[kind, source, microbatch] + NOTHING
            end = max(sent, posted) + job.drawn(TRANSFER)
            end = self.received[rank, kind] = max(end, self.received[rank, kind])
            self.step.add(worker, f"{kind}-recv", posted, end)
            self.step.add((self.replica, source % job.pp), f"{kind}-send", sent, end)
            return max(end, self.free[rank])
        if job.vpp > 1 and (kind, stage, microbatch) != (FORWARD, 0, 0):
            self.step.add(worker, f"{kind}-recv", posted, posted + NOTHING)
        return self.free[rank]


JOBS = {
    "a slow worker": Job(
        dp=2, pp=4, microbatches=6, scale=lambda _, dp, pp, __: 1.3 if (dp, pp) == (1, 2) else 1.0
    ),
    "a slow last stage": Job(
        dp=4,
        pp=2,
        microbatches=8,
        scale=lambda _, __, pp, kind: 1.3 if pp == 1 and kind in SHARE else 1.0,
    ),
    "unequal sequences": Job(dp=8, pp=4, microbatches=8, noise=0.25),
    "interleaved": Job(
        dp=2, pp=4, vpp=2, microbatches=8, scale=lambda _, dp, __, ___: 1.4 if dp == 1 else 1.0
    ),
    "interleaved, overlapped": Job(
        dp=4, pp=2, vpp=3, microbatches=6, overlapped=True, noise=0.1,
        scale=lambda _, dp, pp, __: 1.5 if (dp, pp) == (2, 1) else 1.0,
    ),
    "a slow reduction": Job(
        dp=4, pp=4, microbatches=8, overlapped=True, noise=0.1,
        scale=lambda step, _, __, kind: 30.0 if "reduce" in kind and step == 4 else 1.0,
    ),
    "no pipeline": Job(dp=8, pp=1, microbatches=4, noise=0.2),
}  # fmt: skip
"""Jobs whose answers by the published program are kept (`tests/traces/stragglers/answers.json`)."""
